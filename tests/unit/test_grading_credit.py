"""What passed cases are worth, which cases are taken, and how a checker judges: run without a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.specs import RewardSpec, StdioReward, UnitTestReward, spec_from_wire
from collimate_rl.specs.options import Credit, chosen
from tests.fixtures.plain_executor import PlainExecutor

TESTS = [{"input": n, "expected": n * n} for n in range(4)]
SQUARE_BUT_2 = "def solve(x): return 5 if x == 2 else x * x\n"


Grades = Callable[..., list[GradeResult]]


@pytest.fixture
def grades(plain_executor: PlainExecutor) -> Grades:
    """Grades candidates by a spec."""

    def of(spec: RewardSpec, *candidates: str) -> list[GradeResult]:
        told = grade_group(plain_executor, spec, candidates, seeds=[None] * len(candidates), timeout_seconds=20)
        assert all(isinstance(each, GradeResult) for each in told), told
        return [each for each in told if isinstance(each, GradeResult)]

    return of


@pytest.mark.parametrize(
    ("options", "reward"),
    [
        ({}, 0.75),
        ({"credit": "all"}, 0.0),
        ({"credit": "weighted", "weights": [1, 1, 2, 0]}, 0.5),
        ({"credit": "first_failure"}, 0.5),
    ],
)
def test_each_credit_mode(grades: Grades, options: dict[str, Any], reward: float) -> None:
    partly, wholly, crash = grades(
        UnitTestReward(TESTS, **options), SQUARE_BUT_2, "def solve(x): return x * x\n", "def solve(x): return 1 / x\n"
    )
    assert (partly.reward, wholly.reward) == (reward, 1.0)
    assert partly.cases_total == 4
    assert crash.outcome == "runtime_error"


def test_nothing_is_run_after_a_case_without_a_result(grades: Grades) -> None:
    code = "import os\nseen = []\ndef solve(x):\n    print(x)\n    return 1 // (1 - x) and x * x\n"
    [grade] = grades(UnitTestReward([{"input": n, "expected": 0} for n in (0, 1, 0)], credit="first_failure"), code)
    assert [case.outcome for case in grade.cases] == ["passed", "runtime_error"]
    assert grade.output_tail == b"0\n1\n"
    assert (grade.cases_total, grade.cases_passed) == (3, 1)


@pytest.mark.parametrize("passed", [[True, False, True], [False], [], [True, True]])
def test_no_credit_leaves_the_range(passed: list[bool]) -> None:
    for mode in ("fraction", "all", "first_failure"):
        assert 0.0 <= Credit(mode=mode).reward(passed) <= 1.0
    assert Credit(mode="weighted", weights=[0.1] * len(passed)).reward(passed) <= 1.0


def test_max_cases_takes_the_same_cases_every_time_and_not_only_the_first(grades: Grades) -> None:
    content = [{"input": n} for n in range(40)]
    first = chosen(40, 8, content)
    assert first == chosen(40, 8, json.loads(json.dumps(content))) == sorted(set(first))
    assert len(first) == 8
    assert first != list(range(8))
    assert first != chosen(40, 8, content[::-1])
    assert chosen(3, 8, content) == chosen(3, None, content) == [0, 1, 2]
    [grade] = grades(UnitTestReward(TESTS, max_cases=3, credit="weighted", weights=[0, 0, 0, 1]), SQUARE_BUT_2)
    assert grade.cases_total == 3


@pytest.mark.parametrize(
    "options",
    [
        {"credit": "some"},
        {"weights": None, "credit": "weighted"},
        {"weights": [1, 1, 1, 1]},
        {"weights": [1, 1], "credit": "weighted"},
        {"weights": [0, 0, 0, 0], "credit": "weighted"},
        {"weights": [1, 1, 1, -1], "credit": "weighted"},
        {"weights": [1, 1, 1, float("nan")], "credit": "weighted"},
        {"checker": ""},
        {"checker": "def check(:"},
        {"checker_missing": "yes"},
        {"relative_tolerance": 1.0},
        {"relative_tolerance": 0.1, "unordered": True},
    ],
)
def test_options_that_do_not_fit_are_value_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options)) if "unordered" not in options else "unordered"):
        UnitTestReward(TESTS, **options)


def test_options_travel_only_where_they_were_set() -> None:
    plain = UnitTestReward(TESTS).to_wire()
    assert set(plain) == {
        *("type", "tests", "entry", "compare", "tolerance", "unordered", "case_timeout_s", "max_cases")
    }
    for spec in (
        UnitTestReward(TESTS, credit="weighted", weights=[1, 2, 3, 4], relative_tolerance=1e-9),
        StdioReward([{"stdin": "", "stdout": "1"}], checker="def check(a, b, c): return True\n", checker_missing=True),
    ):
        assert spec_from_wire(json.loads(json.dumps(spec.to_wire()))) == spec


PAIR = "def check(given, got, expected):\n    a, b = map(int, got.split())\n    return a + b == int(given)\n"
SCRIPT = (
    "import sys\ninput_path, expected_path, output_path = sys.argv[1:]\n"
    "a, b = map(int, open(output_path).read().split())\n"
    "print(1 if a + b == int(open(input_path).read()) else 0)\n"
)


@pytest.mark.parametrize("checker", [PAIR, SCRIPT], ids=["a function", "a script"])
def test_a_checker_judges_programs(grades: Grades, checker: str) -> None:
    spec = StdioReward([{"stdin": "5\n", "stdout": "1 4\n"}, {"stdin": "7\n", "stdout": "0 7\n"}], checker=checker)
    right, wrong, odd, dead = grades(
        spec, "n = int(input())\nprint(n - 2, 2)\n", "input()\nprint(1, 4)\n", "print('x')\n", "1 / 0\n"
    )
    assert (right.reward, right.outcome, right.integrity) == (1.0, "passed", "split")
    assert wrong.reward == 0.5
    assert (odd.reward, odd.outcome) == (0.0, "wrong_answer")
    assert dead.outcome == "runtime_error"


def test_a_checker_judges_values_and_never_meets_a_live_object(grades: Grades) -> None:
    checker = "def check(given, got, expected):\n    return sorted(got) == sorted(expected) and type(got) is list\n"
    spec = UnitTestReward([{"input": [[3, 1, 2]], "expected": [1, 2, 3]}], checker=checker)
    right, wrong, liar, endless = grades(
        spec,
        "def solve(xs): return xs[::-1]\n",
        "def solve(xs): return xs[1:]\n",
        "class Yes(list):\n    def __eq__(self, other): return True\ndef solve(xs): return Yes()\n",
        "def solve(xs): return object()\n",
    )
    assert [each.reward for each in (right, wrong, liar, endless)] == [1.0, 0.0, 0.0, 0.0]
    assert endless.outcome == "unencodable"


def test_a_checker_that_cannot_be_loaded_is_the_specs_fault(grades: Grades) -> None:
    spec = UnitTestReward(TESTS, checker="import nowhere_at_all\ndef check(a, b, c): return True\n")
    with pytest.raises(ValueError, match="checker can't be loaded"):
        grades(spec, SQUARE_BUT_2)


def test_a_missing_checker_marks_every_grade(grades: Grades) -> None:
    spec = StdioReward([{"stdin": "", "stdout": "1"}], checker_missing=True)
    for grade in grades(spec, "print(1)\n", "print(2)\n", ""):
        assert "checker_missing" in grade.flags


@pytest.mark.parametrize(
    ("got", "options", "right"),
    [
        ("1000.5", {"tolerance": 1.0 - 1e-9}, True),
        ("1000.5", {"relative_tolerance": 1e-3}, True),
        ("1000.5", {"relative_tolerance": 1e-6}, False),
        ("1000.5", {"relative_tolerance": 1e-6, "tolerance": 0.5}, True),
        ("1002.0", {"relative_tolerance": 1e-6, "tolerance": 0.5}, False),
    ],
)
def test_tolerances_absolute_and_relative(grades: Grades, got: str, options: dict[str, Any], right: bool) -> None:
    values = UnitTestReward([{"input": 0, "expected": 1000.0}], **options)
    texts = StdioReward([{"stdin": "", "stdout": "1000.0"}], **options)
    [value] = grades(values, f"def solve(x): return {got}\n")
    [text] = grades(texts, f"print({got})\n")
    assert (value.reward == 1.0, text.reward == 1.0) == (right, right)
