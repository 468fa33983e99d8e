"""What a trainer's adapter needs from whoever grades: one async call per group of candidates.

An adapter (slime, verl, TRL, …) is written once against `Grader`; whether the group is graded by this process against a
daemon (`collimate_rl.grading.inline`) or goes over the queue (`producer.grader`) is a matter of wiring.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from collimate_rl.errors import CollimateError
from collimate_rl.specs import RewardSpec

MAX_CANDIDATES = 1024
"""Candidates in one group, at most."""


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """K candidates for one ground truth. `seeds[i]` is 64 hex characters, or None: fresh entropy for that candidate.

    `timeout_seconds` bounds one candidate's run; `deadline_s` the whole group, from the moment that work on it starts.
    """

    template: str
    spec: RewardSpec
    candidates: tuple[str, ...]
    seeds: tuple[str | None, ...]
    timeout_seconds: int = 30
    deadline_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.candidates) <= MAX_CANDIDATES:
            raise ValueError(f"a group holds 1 to {MAX_CANDIDATES} candidates, not {len(self.candidates)}")
        if len(self.seeds) != len(self.candidates):
            raise ValueError(f"{len(self.seeds)} seeds for {len(self.candidates)} candidates: one each")
        if self.timeout_seconds < 1:
            raise ValueError(f"timeout_seconds is at least 1, not {self.timeout_seconds}")
        if not self.deadline_s > 0:
            raise ValueError(f"deadline_s is a positive number of seconds, not {self.deadline_s}")


@dataclass(frozen=True, kw_only=True)
class GroupScore:
    """One candidate's score: `reward` in [0, 1] and `outcome`, or `failure`, the infra error that left it unjudged.

    `cases` are the outcomes of its first 256 cases, of `cases_total`; empty where none was judged by itself. `attempts`
    counts how often the grader was asked for it.
    """

    reward: float | None = None
    outcome: str | None = None
    failure: CollimateError | None = None
    detail: str | None = None
    seed: str | None = None
    integrity: str | None = None
    grader_version: str | None = None
    cases: tuple[str, ...] = ()
    cases_total: int = 0
    cases_passed: int = 0
    attempts: int = 1

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.failure is not None):
            raise ValueError("a score has a reward, or the failure that left it without one: exactly one of the two")
        if self.reward is not None and not (math.isfinite(self.reward) and 0.0 <= self.reward <= 1.0):
            raise ValueError(f"a reward is a finite number from 0.0 to 1.0, not {self.reward!r}")


class Grader(Protocol):
    """Grades a group; answers one score per candidate, in order.

    Infra trouble is a score with `failure`, never an exception and never a reward; a ground truth that cannot be graded
    is a `ValueError`. Must not block the running loop, and stops working on a group whose task is cancelled.
    """

    async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
        """One score per candidate of the request, in order."""
        ...
