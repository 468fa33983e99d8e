"""Tests that are a file: pytest's functions and classes, unittest's cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from collimate_rl.specs.base import is_number
from collimate_rl.specs.code import MODULE, TestCodeReward
from collimate_rl.specs.options import CREDITS, Credit, wire_options


@dataclass
class TestFileReward(TestCodeReward):
    """Reward = the fraction of a file's tests that passed.

    `test` is the file: functions and classes as pytest takes them, or `unittest.TestCase`s. It imports the candidate
    from `module`, or just uses its names. A test that was there when the row was made ready and did not run has failed;
    a skip or an expected failure is no pass, but what the reference (or, without one, the test by itself) skips is not
    asked of anybody. `credit` says what passed tests are worth, as in `UnitTestReward`; `weights` maps names to weights
    (1.0 where a name isn't in it), `Class.test_x` or `test_x`, which stands for all of its parameters. `max_cases`
    takes so many tests, drawn by their names. `case_timeout_s` is for one call of the candidate, or for one test where
    the two share a sandbox. The rest is `TestCodeReward`'s.
    """

    test: str
    _: KW_ONLY
    entry: str | None = None
    prompt: str = ""
    setup: str = ""
    reference: str | None = None
    case_timeout_s: float | None = None
    max_cases: int | None = None
    module: str = MODULE
    integrity: str = "any"
    credit: str = "fraction"
    weights: Mapping[str, float] | None = None

    is_file: ClassVar[bool] = True
    digest_fields: ClassVar[tuple[str, ...]] = (
        *("test", "entry", "prompt", "setup", "reference", "case_timeout_s", "max_cases", "module"),
    )
    later_fields: ClassVar[tuple[str, ...]] = ("integrity", "credit", "weights")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit not in CREDITS:
            raise ValueError(f"credit is one of {', '.join(CREDITS)}, not {self.credit!r}")
        if (self.credit == "weighted") != (self.weights is not None):
            raise ValueError("weights go with credit='weighted', and that needs them")
        weights: object = self.weights
        if weights is not None and not (
            isinstance(weights, Mapping)
            and all(isinstance(name, str) and is_number(w) and w >= 0 for name, w in weights.items())
        ):
            raise ValueError(f"weights maps the names of tests to numbers from 0, not {weights!r:.200}")

    def credit_of(self, names: Sequence[str]) -> Credit:
        """What these tests are worth."""
        if self.weights is None:
            return Credit(mode=self.credit)
        found = [self.weights.get(name, self.weights.get(name.partition("[")[0], 1.0)) for name in names]
        return Credit(mode=self.credit, weights=found) if sum(found) > 0 else Credit()

    def build(self, candidate_path: str) -> str:
        """Not available: per-test results need more than one number."""
        raise NotImplementedError("TestFileReward has no one-program form")

    def to_wire(self) -> dict[str, Any]:
        if type(self) is not TestFileReward:
            return super().to_wire()
        return {"type": "test_file", **wire_options(self, self.digest_fields, self.later_fields)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> TestFileReward:
        """The spec that `to_wire` wrote; ValueError when it didn't."""
        return cls(**{key: value for key, value in wire.items() if key != "type"})
