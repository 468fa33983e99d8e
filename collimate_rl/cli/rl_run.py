"""One step of a trainer without a model: groups of rollouts, some right and some wrong, graded through a client."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from collimate_rl.cli.burst_run import quantiles
from collimate_rl.grading.result import GradeResult
from collimate_rl.rewards import PropertyReward, grade_batch
from collimate_rl.seeds import group_seeds
from collimate_rl.transport import SessionClient

_RIGHT = "def solve(x):\n    return x * {factor}\n"
_WRONG = "def solve(x):\n    return x * {factor} + 1\n"


@dataclass(frozen=True, kw_only=True)
class Step:
    """What came of a step. `wrong` rollouts had another reward than they must, `infra` had none."""

    rollouts: int
    groups: int
    mean_reward: float
    wrong: int
    infra: int
    seconds: float
    exec_ms: dict[str, float]
    errors: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {**vars(self), "per_second": self.per_second, "seconds": round(self.seconds, 3)}

    @property
    def per_second(self) -> float:
        """Rollouts graded in a second."""
        return round(self.rollouts / self.seconds, 1) if self.seconds else 0.0

    def summary(self) -> str:
        """One line for people."""
        text = (
            f"{self.rollouts} rollouts in {self.groups} groups, mean reward {self.mean_reward:.3f}, "
            f"{self.per_second:g} per second, {self.infra} infra errors"
        )
        parts = [f"{text}, {self.wrong} WRONG REWARDS" if self.wrong else text]
        return "; ".join([*parts, *(f"{count}x {error}" for error, count in self.errors.items())])


def run_step(
    client: SessionClient,
    template: str,
    *,
    share_right: float,
    group: int,
    prompts: int,
    concurrency: int,
    timeout_seconds: int,
) -> Step:
    """Grade `prompts` groups of `group` rollouts, `concurrency` in flight. A run that is set up wrongly raises."""
    groups_at_once = max(1, min(prompts, concurrency // group or 1))
    right = round(share_right * group)

    def grade_one(prompt: int) -> list[GradeResult]:
        candidates = [(_RIGHT if index < right else _WRONG).format(factor=prompt + 2) for index in range(group)]
        spec = PropertyReward(reference=f"    return x * {prompt + 2}", generator="random.randrange(1000)", k=4)
        return grade_batch(
            client,
            template,
            candidates,
            spec,
            seeds=group_seeds(group, mode="crn"),
            timeout_seconds=timeout_seconds,
            concurrency=max(1, concurrency // groups_at_once),
            on_infra_error="zero",
        )

    began = time.monotonic()
    with ThreadPoolExecutor(groups_at_once, thread_name_prefix="rl") as pool:
        graded = [result for results in pool.map(grade_one, range(prompts)) for result in results]
    seconds = time.monotonic() - began
    good = [result for result in graded if not result.infra_error]
    must = [1.0 if index % group < right else 0.0 for index in range(len(graded))]
    pairs = zip(graded, must, strict=True)
    return Step(
        rollouts=len(graded),
        groups=prompts,
        mean_reward=sum(result.reward or 0.0 for result in good) / len(good) if good else 0.0,
        wrong=sum(not result.infra_error and result.reward != expected for result, expected in pairs),
        infra=len(graded) - len(good),
        seconds=seconds,
        exec_ms=quantiles([result.exec_time_ms for result in good]),
        errors=dict(Counter(str(result.error_code) for result in graded if result.infra_error)),
    )
