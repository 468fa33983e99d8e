"""How the output of programs is compared."""

from __future__ import annotations

import time

import pytest

from collimate_rl.grading.texts import same_text
from collimate_rl.specs.options import CompareOptions


def same(got: str, want: str, mode: str = "lines", **options: object) -> bool:
    return same_text(got, want, CompareOptions(mode=mode, text=True, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 \n 2\n\n", "1\n2\n", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("\n1\n", "1", True),
        ("1\n\n2", "1\n2", False),
        ("1 2", "1  2", False),
        ("", "", True),
        ("", "1", False),
        ("1\n2\n3", "1\n2", False),
        ("1", "1\n2", False),
        ("YES", "yes", False),
        ("0.333333", "0.3333333333", False),
    ],
)
def test_lines(got: str, want: str, equal: bool) -> None:
    assert same(got, want) is equal


def test_tokens() -> None:
    assert same("1\n2  3", "1 2 3", "tokens")
    assert not same("1 2", "1 2 3", "tokens")
    assert not same("12", "1 2", "tokens")


def test_exact() -> None:
    assert same("1\n", "1\n", "exact")
    assert not same("1", "1\n", "exact")


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        ("0.333333", "0.3333333333", True),
        ("1.0", "1", True),
        ("1e-1", "0.1", True),
        ("YES 1.0000001", "YES 1", True),
        ("1000000000", "1000000001", False),
        ("007", "7", True),
        ("1.1", "1.0", False),
        ("nan", "nan", True),
        ("nan", "1.0", False),
        ("inf", "1.0", False),
        ("1.0 x", "1.0", False),
        ("0x10", "16", False),
        ("1" * 5000, "1" * 4999 + "2", False),
        ("1_0.0", "10.0", False),
        ("999999000.5", "999999937", False),
        ("999999937.0", "999999937", True),
        ("999999936.9999", "999999937", True),
        ("999999937.5", "999999937", False),
        ("999999937", "999999937.5", True),
        ("1e18", "1000000000000000007", False),
        ("1000000000000000007.0", "1000000000000000007", True),
        ("1e400", "1", False),
        ("1e400", "1.5", False),
    ],
)
@pytest.mark.parametrize("mode", ["lines", "tokens"])
def test_tolerance(got: str, want: str, equal: bool, mode: str) -> None:
    assert same(got, want, mode, tolerance=1e-5) is equal


def test_a_long_number_is_read_in_no_time() -> None:
    begun = time.process_time()
    for got in ("9" * 500_000 + "x", "9" * 500_000 + ".x", "1e" + "9" * 500_000, "." * 500_000):
        assert not same(got, "5", tolerance=1e-6)
        assert not same(got, "5.5", tolerance=1e-6)
    assert time.process_time() - begun < 5


def test_unordered() -> None:
    assert same("2\n1\n", "1\n2", unordered=True)
    assert not same("2\n1\n1", "1\n2\n2", unordered=True)
    assert same("3 1\n2", "1 2 3", "tokens", unordered=True)
