"""What grading one candidate gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from collimate_rl.grading.version import grader_version
from collimate_rl.protocol.codes import OUTCOMES

MAX_DETAIL: Final = 4096
MAX_TAIL: Final = 4096


class CaseResult(NamedTuple):
    """One case: its outcome, and the milliseconds that the candidate took (0.0 when it never ran)."""

    outcome: str
    ms: float


class SpecFault(ValueError):
    """The ground truth is at fault, not the candidate: it can't be graded by it."""


@dataclass(frozen=True)
class GradeResult:
    """One candidate's grade. The first eight fields are the classic ones; they and `raw` are the runner fork's.

    `reward` is a finite number in [0, 1]; None only in an infra-flagged result. `outcome` is one of OUTCOMES, None with
    `infra_error`; then `error_code` says why. `cases` holds the first 256 of `cases_total`. `detail` is for people and
    never names an expected value; `output_tail` is the end of what the candidate printed. Times are milliseconds.
    `integrity` is "split" where the answers never shared a sandbox with the candidate, else "shared".
    """

    reward: float | None
    seed: str | None = None
    seed_ack: str | None = None
    exit_code: int = 0
    fork_time_ms: float = 0.0
    exec_time_ms: float = 0.0
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    infra_error: bool = False
    outcome: str | None = None
    error_code: str | None = None
    integrity: Literal["split", "shared"] = "split"
    cases: tuple[CaseResult, ...] = field(default=(), repr=False)
    grader_version: str = field(default_factory=grader_version)
    cases_total: int = 0
    cases_passed: int = 0
    detail: str | None = None
    output_tail: bytes = field(default=b"", repr=False)
    truncated: bool = False
    judge_time_ms: float = 0.0
    session_id: str | None = None
    flags: tuple[str, ...] = ()
    """Names out of `protocol.flags.FLAGS`: what smells, with no influence on the reward."""
    python: str = ""
    """The version of the interpreter that ran the candidate, as its runner saw it; empty where no runner told."""

    def __post_init__(self) -> None:
        if self.reward is None:
            if not self.infra_error:
                raise ValueError("a grade without a reward is an infra error")
        elif not (math.isfinite(self.reward) and 0.0 <= self.reward <= 1.0):
            raise ValueError(f"a reward is a finite number from 0.0 to 1.0, not {self.reward!r}")
        if self.outcome is not None and self.outcome not in OUTCOMES:
            raise ValueError(f"{self.outcome!r} is no outcome")
        if self.detail is not None:
            object.__setattr__(self, "detail", printable(self.detail))


def printable(text: str) -> str:
    """The text with what no terminal, log or message should meet (controls, lone surrogates) as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
