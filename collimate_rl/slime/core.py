"""The slime hook, written once: it takes a `Grader`, and is the same for inline and for queued grading.

What slime asks of a reward hook, and how it is met here:

- It runs on the loop that generates, with unbounded concurrency and no timeout: parsing and grading happen on threads,
  a semaphore bounds the groups in flight, and every group has a deadline of its own. Loops come and go: what is bound
  to a loop (the semaphore) is kept per running loop.
- None is a TypeError there, NaN poisons the group, a short list misaligns: what comes back is a finite float per sample
  in the shape that was asked for. None only under `collimate_on_infra_error="filter"`, with `drop_infra_groups`.
- Infra trouble is never a 0 of ours: it raises (the default), leaves the sample unrewarded for the filter, or gives it
  the neutral reward that the run asked for; flagged in its metadata in every case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from collimate_rl.grading.grader import Grader, GroupScore
from collimate_rl.hooks.pacing import Pace
from collimate_rl.hooks.policy import code_of, settle
from collimate_rl.hooks.rows import is_empty
from collimate_rl.hooks.scoring import GroupScorer, Member, pieces
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
        self._pace = Pace()

    async def rewards(self, args: object, samples: Nested) -> Nested:
        """Rewards in the shape of `samples`: a number, a list, or a list of lists; dicts under slime's --reward-key.

        Raises ValueError for a sample without usable ground truth, RunMisconfigured for infra codes that no retry
        heals, and CollimateError for other infra trouble unless the run asked for "filter" or "neutral".
        """
        await self._pace.turn()
        settings = SlimeSettings.of(args)
        flat = flatten(samples)
        # Samples that slime copied have ground truths of their own, which take long to compare where they are large.
        parted = partition(flat) if len(flat) == 1 else await self._scorer.on_thread(partition, flat)
        groups = [(truth, piece) for truth, positions in parted for piece in pieces(positions)]
        graded = await self._graded(
            settings, [(truth, [flat[position] for position in positions]) for truth, positions in groups]
        )
        scores = {
            position: score
            for (_, positions), group in zip(groups, graded, strict=True)
            for position, score in zip(positions, group, strict=True)
        }
        for position, sample in enumerate(flat):
            _account(sample, scores[position])
        scored = [(describe(sample), scores[position]) for position, sample in enumerate(flat)]
        neutral = settings.neutral_reward if settings.on_infra_error == "neutral" else None
        rewards = settle("slime", settings, scored, no_verdict=neutral)
        outcomes = [score.outcome for _, score in scored]
        return shaped_like(samples, [_answer(settings, *pair) for pair in zip(rewards, outcomes, strict=True)])

    async def _graded(self, settings: SlimeSettings, groups: list[tuple[Any, list[Any]]]) -> list[list[GroupScore]]:
        """The scores of groups of (ground truth, samples); all of them are cancelled with the caller."""
        if len(groups) == 1:  # a call per sample is the common one: no task for it
            return [await self._group(settings, *groups[0])]
        tasks = [asyncio.ensure_future(self._group(settings, *group)) for group in groups]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _group(self, settings: SlimeSettings, truth: Any, samples: list[Any]) -> list[GroupScore]:
        """The scores of samples that share their ground truth, in order."""
        members = [
            Member(completion=response_of(sample), seed=seed_of(sample, settings), name=describe(sample))
            for sample in samples
        ]
        where = "metadata (its label is empty)" if isinstance(truth, dict) and is_empty(samples[0].label) else "label"
        about = f"{members[0].name}, in its {where}"
        return await self._scorer.scores(settings, truth, members, about=about, infra_budget_s=settings.infra_budget_s)


def _account(sample: Any, score: GroupScore) -> None:
    """Notes the grading in a copy of the metadata: fanned-out samples may share one dict."""
    failure = score.failure
    sample.metadata = {
        **metadata_of(sample),
        META_KEY: {
            "infra_error": failure is not None,
            "error_code": code_of(failure) if failure is not None else None,
            "outcome": score.outcome,
            "detail": failure.message if failure is not None else score.detail,
            "seed": score.seed,
            "integrity": score.integrity,
            "grader_version": score.grader_version,
        },
    }


def _answer(settings: SlimeSettings, reward: float | None, outcome: str | None) -> Any:
    return {settings.reward_key: reward, "outcome": outcome} if settings.reward_key else reward
