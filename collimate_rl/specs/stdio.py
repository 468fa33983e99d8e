"""Programs that read standard input and are judged by what they print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from collimate_rl.specs.base import RewardSpec, check_flag, check_limits
from collimate_rl.specs.options import (
    CASE_OPTIONS,
    OPTIONS,
    CompareOptions,
    check_checker,
    check_credit,
    wire_options,
)
from collimate_rl.specs.plain_json import from_json, to_json

MAX_STDOUT = 4 << 20


@dataclass(frozen=True)
class StdioReward(RewardSpec):
    """Reward = the fraction of `cases` ({"stdin", "stdout"}) whose output is right. The candidate is a whole program.

    `compare`: "lines" (each stripped at both ends, empty ones at both ends of the output dropped), "tokens" (split at
    white space), "exact". `tolerance` lets decimal numbers differ, relative above 1, or absolute beside a
    `relative_tolerance`; two integers never may. `unordered` compares lines or tokens as a multiset. `checker`,
    `credit`, `weights`, `max_cases` and `checker_missing` are as in `UnitTestReward`; a checker's three arguments are
    texts here. `case_timeout_s` defaults to 6 s.
    """

    cases: Sequence[Mapping[str, str]]
    _: KW_ONLY
    compare: str = "lines"
    tolerance: float | None = None
    unordered: bool = False
    case_timeout_s: float | None = None
    max_cases: int | None = None
    relative_tolerance: float | None = None
    checker: str | None = None
    credit: str = "fraction"
    weights: Sequence[float] | None = None
    checker_missing: bool = False

    def __post_init__(self) -> None:
        cases: object = self.cases
        if not isinstance(cases, list | tuple):
            raise ValueError(f"cases is a list of {{'stdin', 'stdout'}}, not {type(cases).__name__}")
        for i, case in enumerate(cases):
            if not isinstance(case, Mapping) or not all(isinstance(case.get(k), str) for k in ("stdin", "stdout")):
                raise ValueError(f"case {i} is no object with the texts 'stdin' and 'stdout'")
            if len(case["stdout"]) > MAX_STDOUT:
                raise ValueError(f"case {i} expects {len(case['stdout'])} characters of output, above {MAX_STDOUT}")
        check_limits(self.case_timeout_s, self.max_cases)
        check_checker(self.checker)
        check_credit(self.credit, self.weights, len(cases))
        check_flag("checker_missing", self.checker_missing)
        self.options()

    def options(self) -> CompareOptions:
        """How outputs are compared, validated."""
        return CompareOptions(
            mode=self.compare,
            tolerance=self.tolerance,
            relative=self.relative_tolerance,
            unordered=self.unordered,
            text=True,
        )

    def build(self, candidate_path: str) -> str:
        """Not available: a program and its expected output never share a sandbox, so there is no one-program form."""
        raise NotImplementedError("StdioReward is graded split: it has no one-program form")

    def parse(self, stdout: str) -> float:
        """Not available, as `build`."""
        raise NotImplementedError("StdioReward is graded split: it has no one-program form")

    def to_wire(self) -> dict[str, Any]:
        if type(self) is not StdioReward:
            return super().to_wire()
        cases = [{"stdin": to_json(c["stdin"]), "stdout": to_json(c["stdout"])} for c in self.cases]
        return {"type": "stdio", "cases": cases, **wire_options(self, OPTIONS, CASE_OPTIONS)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> StdioReward:
        """The spec that `to_wire` wrote; ValueError when it didn't."""
        cases = wire.get("cases")
        if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
            raise ValueError("cases is a list of {'stdin', 'stdout'}")
        options = {key: value for key, value in wire.items() if key not in ("type", "cases")}
        return cls([{key: from_json(value) for key, value in case.items()} for case in cases], **options)
