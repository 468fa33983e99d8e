"""Test files that are no longer what they were are noticed, whoever puts them back; other files may change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from collimate_rl.guest.watch import changed, watched


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in ("tests/test_a.py", "tests/data.json", "src/a.py", "conftest.py", "tests/own.py", "tests/data_own"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
    return tmp_path


def rewrite_and_put_back(tree: Path) -> None:
    place = tree / "tests/test_a.py"
    times = os.stat(place)
    place.write_text("x = 2\n")
    place.write_text("x = 1\n")
    os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))


def swap(tree: Path) -> None:
    (tree / "tests/mine").write_text("x = 1\n")
    os.replace(tree / "tests/mine", tree / "tests/test_a.py")


def make(path: str) -> Callable[[Path], None]:
    def do(tree: Path) -> None:
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text("")

    return do


@pytest.mark.parametrize(
    ("do", "found"),
    [
        (lambda tree: None, []),
        (rewrite_and_put_back, ["tests/test_a.py"]),
        (swap, ["tests/test_a.py"]),
        (lambda tree: (tree / "tests/test_a.py").unlink(), ["tests/test_a.py"]),
        (lambda tree: (tree / "tests").rename(tree / "gone"), ["tests/own.py", "tests/test_a.py"]),
        (make("conftest.py"), ["conftest.py"]),
        (make("tests/conftest.py"), ["tests/conftest.py"]),
        (make("pytest.ini"), ["pytest.ini"]),
        (make("tests/own.py"), ["tests/own.py"]),
        (make("tests/data_own"), []),
        (make("tests/data.json"), []),
        (make("src/a.py"), []),
        (make("tests/test_new.py"), []),
        (make("build/conftest.py"), []),
    ],
)
def test_what_changed(tree: Path, do: Callable[[Path], None], found: list[str]) -> None:
    own = {"tests/own.py", "tests/data_own"}
    before = watched(str(tree), own)
    do(tree)
    assert changed(before, watched(str(tree), own)) == found
