"""Specs are validated when built and come back from the wire as they were."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.specs import PropertyReward, RewardSpec, StdioReward, UnitTestReward, last_number, spec_from_wire
from collimate_rl.specs import base as specs_base


@pytest.mark.parametrize(
    "spec",
    [
        UnitTestReward(tests=[]),
        UnitTestReward([{"input": [1, "a", None, 1.5], "expected": {"a": [True]}}], "f"),
        UnitTestReward([{"input": {1: (2,)}, "expected": {frozenset([1]), "\ud800"}}], compare="json", tolerance=1e-6),
        UnitTestReward([{"input": float("inf"), "expected": {"$collimate": 1}}], unordered=True, max_cases=1),
        UnitTestReward([{"input": OrderedDict(a=1), "expected": 1 << 100}], case_timeout_s=2.5),
        PropertyReward("    return x", "random.random()"),
        PropertyReward("    return x", "1", 3, "f", compare="json", case_timeout_s=1, max_cases=2),
        StdioReward([{"stdin": "1\n", "stdout": "2\n"}]),
        StdioReward([{"stdin": "\ud800", "stdout": ""}], compare="tokens", tolerance=0.1, case_timeout_s=3),
    ],
)
def test_specs_travel(spec: RewardSpec) -> None:
    text = json.dumps(spec.to_wire(), allow_nan=False)
    back = spec_from_wire(json.loads(text))
    assert back == spec
    assert type(back) is type(spec)


def test_plain_tests_travel_as_plain_json() -> None:
    spec = UnitTestReward([{"input": [1], "expected": "a"}])
    assert spec.to_wire()["tests"] == [{"input": [1], "expected": "a"}]


@pytest.mark.parametrize(
    "build",
    [
        lambda: UnitTestReward("tests"),  # type: ignore[arg-type]
        lambda: UnitTestReward([1]),  # type: ignore[list-item]
        lambda: UnitTestReward([{"input": 1}]),
        lambda: UnitTestReward([], entry="a b"),
        lambda: UnitTestReward([], entry="a.b.c"),
        lambda: UnitTestReward([], entry=None),  # type: ignore[arg-type]
        lambda: UnitTestReward([], compare="fuzzy"),
        lambda: UnitTestReward([], tolerance=-1),
        lambda: UnitTestReward([], tolerance=float("nan")),
        lambda: UnitTestReward([], tolerance=0.1, unordered=True),
        lambda: UnitTestReward([], case_timeout_s=0),
        lambda: UnitTestReward([], case_timeout_s=float("inf")),
        lambda: UnitTestReward([], max_cases=0),
        lambda: UnitTestReward([], max_cases=True),
        lambda: PropertyReward("", "1"),
        lambda: PropertyReward("    return x", ""),
        lambda: PropertyReward("return x", "1"),
        lambda: PropertyReward("    return x", "x = 1"),
        lambda: PropertyReward("    return x", "1", k=0),
        lambda: PropertyReward("    return x", "1", k=True),
        lambda: PropertyReward("    return x", "1", k=1 << 20),
        lambda: StdioReward("cases"),  # type: ignore[arg-type]
        lambda: StdioReward([{"stdin": "1"}]),
        lambda: StdioReward([{"stdin": 1, "stdout": "1"}]),  # type: ignore[dict-item]
        lambda: StdioReward([], compare="json"),
        lambda: StdioReward([], compare="exact", tolerance=0.1),
        lambda: StdioReward([{"stdin": "", "stdout": "x" * (5 << 20)}]),
    ],
)
def test_bad_arguments_are_value_errors(build: Any) -> None:
    with pytest.raises(ValueError):
        build()


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"type": "other"},
        {"type": "unit_test"},
        {"type": "unit_test", "tests": 5},
        {"type": "unit_test", "tests": [], "surprise": 1},
        {"type": "unit_test", "tests": [{"input": {"$collimate": ["zz"]}, "expected": 1}]},
        {"type": "property", "reference": "    return x"},
        {"type": "stdio", "cases": [1]},
        {"type": "registered", "name": "nobody", "arguments": {}},
        {"type": "registered"},
    ],
)
def test_bad_wires_are_value_errors(wire: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        spec_from_wire(wire)


def test_a_value_that_is_no_data_cannot_travel() -> None:
    with pytest.raises(ValueError, match="no plain data"):
        UnitTestReward([{"input": object(), "expected": 1}]).to_wire()


class Own(RewardSpec):
    def __init__(self, bonus: float) -> None:
        self.bonus = bonus

    def build(self, candidate_path: str) -> str:
        return "print(1.0)"

    def parse(self, stdout: str) -> float:
        return last_number(stdout)


class NotASpec:
    def __init__(self, **_: Any) -> None: ...


def test_an_own_spec_needs_to_be_registered() -> None:
    with pytest.raises(ValueError, match=r"register it in the entry-point group collimate_rl\.rewards"):
        Own(0.5).to_wire()


class Point:
    """An entry point, as importlib.metadata gives it."""

    name = "own"
    module = Own.__module__
    attr = "Own"
    made: Any = Own

    def load(self) -> Any:
        return self.made


def test_a_registered_spec_travels_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = Point()
    monkeypatch.setattr(specs_base, "entry_points", lambda **_: [point])
    wire = Own(0.5).to_wire()
    assert wire == {"type": "registered", "name": "own", "arguments": {"bonus": 0.5}}
    back = spec_from_wire(wire)
    assert isinstance(back, Own)
    assert back.bonus == 0.5
    point.made = NotASpec
    with pytest.raises(ValueError, match="makes no RewardSpec"):
        spec_from_wire(wire)


@pytest.mark.parametrize(
    ("stdout", "number"),
    [
        ("1.0\n", 1.0),
        ("noise\n0.25\n\n", 0.25),
        ("0.5 \r\n", 0.5),
        ("", 0.0),
        ("\n\n", 0.0),
        ("1.0\nbye\n", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("1.5", 0.0),
        ("-0.1", 0.0),
        ("1", 1.0),
    ],
)
def test_the_last_number(stdout: str, number: float) -> None:
    assert last_number(stdout) == number
    assert UnitTestReward([]).parse(stdout) == number


def classic(spec: RewardSpec, candidate: str, folder: Path, *, path: str = "candidate.py") -> float:
    (folder / "candidate.py").write_text(candidate)
    (folder / "program.py").write_text(spec.build(path))
    done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, timeout=60)
    return spec.parse(done.stdout)


def test_the_classic_programs(tmp_path: Path) -> None:
    unit = UnitTestReward(
        [{"input": [1, 2], "expected": 3}, {"input": "ab", "expected": 2}, {"input": (1,), "expected": 1}]
    )
    code = "def solve(*args): return len(args[0]) if len(args) == 1 else sum(args)\n"
    assert classic(unit, code, tmp_path) == 1.0
    assert classic(unit, "def solve(*args): return 3\n", tmp_path) == pytest.approx(1 / 3)
    assert classic(UnitTestReward([]), code, tmp_path) == 0.0
    odd = PropertyReward("    if x % 2:\n        return 'odd'\n    return 'even'", "random.randint(0, 9)", k=5)
    good = "def solve(x): return ['even', 'odd'][x % 2]\n"
    assert classic(odd, good, tmp_path) == 1.0
    assert classic(odd, "def other(x): return 'odd'\n", tmp_path) == 0.0
    assert classic(odd, good, tmp_path, path=str(tmp_path / "candidate.py")) == 1.0


def test_stdio_has_no_one_program_form() -> None:
    with pytest.raises(NotImplementedError):
        StdioReward([]).build("candidate.py")


def test_classic_subclasses_may_set_fields(tmp_path: Path) -> None:
    class Named(UnitTestReward):
        def __init__(self, tests: list[dict[str, Any]], name: str) -> None:
            self.name = name
            super().__init__(tests)

        def parse(self, stdout: str) -> float:
            return super().parse(stdout)

    assert Named([{"input": 1, "expected": 1}], "mine").name == "mine"
