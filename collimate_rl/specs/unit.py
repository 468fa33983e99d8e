"""Tests that are data: calls of one function, each with the value that it is to return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from collimate_rl.specs.base import RewardSpec, check_entry, check_flag, check_limits, last_number
from collimate_rl.specs.classic import unit_program
from collimate_rl.specs.options import (
    CALL_OPTIONS,
    OPTIONS,
    CompareOptions,
    check_checker,
    check_credit,
    check_prelude,
    wire_options,
)
from collimate_rl.specs.plain_json import from_json, to_json


@dataclass
class UnitTestReward(RewardSpec):
    """Reward = the fraction of `tests` passed; each is {"input", "expected"}.

    A list input is splatted into arguments, anything else is one argument. `entry` is a function, or a method of a
    `class Solution` (one `Solution()` per case). `compare` "exact" is Python's == between plain values; "json" forgives
    what JSON can't tell apart (tuple and list, integer keys as text) and drains iterators. `tolerance` is for floats,
    relative above 1, or absolute beside a `relative_tolerance`; `unordered` ignores the order of a returned list.
    `checker` is Python that defines `check(given, got, expected)`, and judges instead. `credit` says what passed tests
    are worth ("fraction", "all", "weighted" by `weights`, "first_failure"). `case_timeout_s` defaults to half of the
    total. `max_cases` takes so many tests, drawn by their own content. `checker_missing` marks a problem with many
    right answers and no checker: its grades carry that flag. `wrapped` lets each value also come in a list of its own.
    `prelude` is Python whose names the candidate finds where it defines none such itself. Not frozen, since classic
    subclasses set fields of their own.
    """

    tests: Sequence[Mapping[str, Any]]
    entry: str = "solve"
    _: KW_ONLY
    compare: str = "exact"
    tolerance: float | None = None
    unordered: bool = False
    case_timeout_s: float | None = None
    max_cases: int | None = None
    relative_tolerance: float | None = None
    checker: str | None = None
    credit: str = "fraction"
    weights: Sequence[float] | None = None
    checker_missing: bool = False
    wrapped: bool = False
    prelude: str = ""

    def __post_init__(self) -> None:
        tests: object = self.tests
        if not isinstance(tests, list | tuple):
            raise ValueError(f"tests is a list of {{'input', 'expected'}}, not {type(tests).__name__}")
        for i, test in enumerate(tests):
            if not isinstance(test, Mapping) or "input" not in test or "expected" not in test:
                raise ValueError(f"test {i} is no object with 'input' and 'expected'")
        check_entry(self.entry)
        check_limits(self.case_timeout_s, self.max_cases)
        check_checker(self.checker)
        check_credit(self.credit, self.weights, len(tests))
        check_flag("checker_missing", self.checker_missing)
        check_flag("wrapped", self.wrapped)
        check_prelude(self.prelude)
        self.options()

    def options(self) -> CompareOptions:
        """How results are compared, validated."""
        return CompareOptions(
            mode=self.compare,
            tolerance=self.tolerance,
            relative=self.relative_tolerance,
            unordered=self.unordered,
        )

    def build(self, candidate_path: str) -> str:
        """The classic one-program grader, which a subclass that overrides `build` or `parse` is graded by."""
        return unit_program(candidate_path, self.entry, [(t["input"], t["expected"]) for t in self.tests])

    def parse(self, stdout: str) -> float:
        return last_number(stdout)

    def to_wire(self) -> dict[str, Any]:
        if type(self) is not UnitTestReward:
            return super().to_wire()
        tests = [{"input": to_json(t["input"]), "expected": to_json(t["expected"])} for t in self.tests]
        return {"type": "unit_test", "tests": tests, **wire_options(self, ("entry", *OPTIONS), CALL_OPTIONS)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> UnitTestReward:
        """The spec that `to_wire` wrote; ValueError when it didn't."""
        options = {key: value for key, value in wire.items() if key not in ("type", "tests")}
        tests = wire.get("tests")
        if not isinstance(tests, list) or not all(
            isinstance(t, dict) and {"input", "expected"} <= set(t) for t in tests
        ):
            raise ValueError("tests is a list of {'input', 'expected'}")
        return cls([{"input": from_json(t["input"]), "expected": from_json(t["expected"])} for t in tests], **options)
