"""The slime hook, written once: it takes a `Grader`, and is the same for inline and for queued grading.

What slime asks of a reward hook, and how it is met here:

- It runs on the loop that generates, with unbounded concurrency and no timeout: parsing and grading happen on threads,
  a semaphore bounds the groups in flight, and every group has a deadline of its own. Loops come and go: what is bound
  to a loop (the semaphore) is kept per running loop.
- None is a TypeError there, NaN poisons the group, a short list misaligns: what comes back is a finite float per sample
  in the shape that was asked for. None only under `collimate_on_infra_error="filter"`, with `drop_infra_groups`.
- Infra trouble is never a 0: it raises (the default), or leaves the sample unrewarded and flagged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from collimate_rl.grading.grader import Grader, GroupScore
from collimate_rl.hooks.scoring import GroupScorer, Member, pieces, raise_what_cannot_heal
from collimate_rl.slime.samples import (
    META_KEY,
    Nested,
    describe,
    flatten,
    metadata_of,
    partition,
    response_of,
    seed_of,
    shaped_like,
)
from collimate_rl.slime.settings import SlimeSettings

log = logging.getLogger("collimate_rl.slime")


class RewardHook:
    """Turns Samples into rewards over the grader that `grader_for(settings)` hands out (once per distinct settings).

    `groups_in_flight(settings)` bounds the groups that one loop has under way; further calls wait, without a deadline
    running.
    """

    def __init__(
        self,
        grader_for: Callable[[SlimeSettings], Grader],
        *,
        groups_in_flight: Callable[[SlimeSettings], int] = lambda settings: settings.concurrency,
    ) -> None:
        self._scorer = GroupScorer(grader_for, groups_in_flight=groups_in_flight)

    async def rewards(self, args: object, samples: Nested) -> Nested:
        """Rewards in the shape of `samples`: a number, a list, or a list of lists; dicts under slime's --reward-key.

        Raises ValueError for a sample without usable ground truth, RunMisconfigured for infra codes that no retry
        heals, and CollimateError for other infra trouble unless the run asked for "filter".
        """
        settings = SlimeSettings.read(args)
        flat = flatten(samples)
        groups = [(truth, piece) for truth, positions in partition(flat) for piece in pieces(positions)]
        tasks = [
            asyncio.ensure_future(self._group(settings, truth, [flat[position] for position in positions]))
            for truth, positions in groups
        ]
        try:
            graded = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        scores = {
            position: score
            for (_, positions), group in zip(groups, graded, strict=True)
            for position, score in zip(positions, group, strict=True)
        }
        for position, sample in enumerate(flat):
            _account(sample, scores[position])
        _raise_failures(settings, [(sample, scores[position]) for position, sample in enumerate(flat)])
        return shaped_like(samples, [_reward(settings, scores[position]) for position in range(len(flat))])

    async def _group(self, settings: SlimeSettings, truth: Any, samples: list[Any]) -> list[GroupScore]:
        """The scores of samples that share their ground truth, in order."""
        members = [
            Member(completion=response_of(sample), seed=seed_of(sample, settings), name=describe(sample))
            for sample in samples
        ]
        where = "metadata (its label is empty)" if isinstance(truth, dict) and not samples[0].label else "label"
        return await self._scorer.scores(settings, truth, members, about=f"{members[0].name}, in its {where}")


def _account(sample: Any, score: GroupScore) -> None:
    """Notes the grading in a copy of the metadata: fanned-out samples may share one dict."""
    failure = score.failure
    sample.metadata = {
        **metadata_of(sample),
        META_KEY: {
            "infra_error": failure is not None,
            "error_code": failure.error_code if failure is not None else None,
            "outcome": score.outcome,
            "detail": failure.message if failure is not None else score.detail,
            "seed": score.seed,
            "integrity": score.integrity,
            "grader_version": score.grader_version,
        },
    }


def _raise_failures(settings: SlimeSettings, scored: list[tuple[Any, GroupScore]]) -> None:
    """Raises for infra trouble where the run's policy, or the trouble itself, asks for it; logs what is filtered."""
    failed = [(sample, score.failure) for sample, score in scored if score.failure is not None]
    for sample, failure in failed:
        raise_what_cannot_heal(describe(sample), failure)
    for sample, failure in failed:
        if settings.on_infra_error == "raise":
            raise failure
        log.warning("%s was not graded, its group is to be dropped: %s", describe(sample), failure.message)


def _reward(settings: SlimeSettings, score: GroupScore) -> Any:
    """What slime gets for one sample: None only where `_raise_failures` let a failure pass."""
    return {settings.reward_key: score.reward, "outcome": score.outcome} if settings.reward_key else score.reward
