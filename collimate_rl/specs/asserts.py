"""Tests that are code and run as a whole: HumanEval's `check`, MBPP's assert lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from collimate_rl.specs.code import MODULE, TestCodeReward
from collimate_rl.specs.options import Credit, check_credit, wire_options

_CLASSIC = """\
_scope, _entry = {{"__name__": "solution"}}, {entry!r}
with open({path!r}, encoding="utf-8") as _file:
    _source = _file.read()
try:
    exec(compile(_source, {path!r}, "exec"), _scope)
    exec(compile({setup!r}, "<setup>", "exec"), _scope)
    exec(compile({test!r}, "<test>", "exec"), _scope)
    if _entry is not None and "check" in _scope:
        _scope["check"](_scope[_entry])
    _reward = 1.0
except BaseException:
    _reward = 0.0
print(_reward)
"""


@dataclass
class AssertReward(TestCodeReward):
    """Reward 1.0 when the test code runs through, else 0.0; with `per_assert`, the fraction of its top-level asserts.

    `test` is Python: asserts on the names that the candidate is to define, or a `check(candidate)` that is called with
    the function named `entry`. `case_timeout_s` is for one call of the candidate; `max_cases` caps the calls that the
    plan may grow by in one round (1,500 by default). With `per_assert`, `credit` says what the asserts are worth, as in
    `UnitTestReward`; `weights` are one for each. The rest is `TestCodeReward`'s.
    """

    test: str
    _: KW_ONLY
    entry: str | None = None
    prompt: str = ""
    setup: str = ""
    reference: str | None = None
    per_assert: bool = False
    case_timeout_s: float | None = None
    max_cases: int | None = None
    module: str = MODULE
    integrity: str = "any"
    credit: str = "fraction"
    weights: Sequence[float] | None = None

    digest_fields: ClassVar[tuple[str, ...]] = (
        *("test", "entry", "prompt", "setup", "reference", "per_assert", "case_timeout_s", "max_cases"),
    )
    later_fields: ClassVar[tuple[str, ...]] = ("module", "integrity", "credit", "weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.per_assert, bool):
            raise ValueError(f"per_assert is true or false, not {self.per_assert!r}")
        check_credit(self.credit, self.weights, None)
        if self.credit != "fraction" and not self.per_assert:
            raise ValueError(f"credit={self.credit!r} needs per_assert: without it a test is one case")

    def credit_of(self, cases: int) -> Credit:
        """What passed asserts are worth, of so many; one that broke the test off between two counts as one more."""
        if self.weights is None:
            return Credit(mode=self.credit)
        padded = [*self.weights, *[0.0] * cases][:cases]
        return Credit(mode=self.credit, weights=padded) if sum(padded) > 0 else Credit()

    def build(self, candidate_path: str) -> str:
        """The classic one-program grader, which a subclass that overrides `build` or `parse` is graded by."""
        return _CLASSIC.format(path=candidate_path, setup=self.setup, test=self.test, entry=self.entry)

    def to_wire(self) -> dict[str, Any]:
        if type(self) is not AssertReward:
            return super().to_wire()
        return {"type": "assert", **wire_options(self, self.digest_fields, self.later_fields)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> AssertReward:
        """The spec that `to_wire` wrote; ValueError when it didn't."""
        return cls(**{key: value for key, value in wire.items() if key != "type"})
