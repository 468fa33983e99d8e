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
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from collimate_rl.errors import CollimateError, RunMisconfigured
from collimate_rl.grading.grader import MAX_CANDIDATES, Grader, GroupRequest, GroupScore
from collimate_rl.rewards import RewardSpec, extract_code, reward_spec_from_ground_truth
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

MAX_CANDIDATE_BYTES = 1 << 20
DEADLINE_MARGIN_S = 60.0
"""Beyond a group's deadline: a grader that keeps its own deadline answers within it."""


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
        self._grader_for = grader_for
        self._groups_in_flight = groups_in_flight
        self._lock = threading.Lock()
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._semaphores: dict[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] = {}

    async def rewards(self, args: object, samples: Nested) -> Nested:
        """Rewards in the shape of `samples`: a number, a list, or a list of lists; dicts under slime's --reward-key.

        Raises ValueError for a sample without usable ground truth, RunMisconfigured for infra codes that no retry
        heals, and CollimateError for other infra trouble unless the run asked for "filter".
        """
        settings = SlimeSettings.read(args)
        flat = flatten(samples)
        scores: list[GroupScore | None] = [None] * len(flat)
        groups = partition(flat)
        pieces = [
            (truth, positions[start : start + MAX_CANDIDATES])
            for truth, positions in groups
            for start in range(0, len(positions), MAX_CANDIDATES)
        ]
        tasks = [asyncio.ensure_future(self._group(settings, truth, flat, at, scores)) for truth, at in pieces]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        judged = [_account(sample, score) for sample, score in zip(flat, scores, strict=True)]
        _raise_failures(settings, flat, judged)
        return shaped_like(
            samples, [_reward(settings, sample, score) for sample, score in zip(flat, judged, strict=True)]
        )

    async def _group(
        self,
        settings: SlimeSettings,
        truth: Any,
        flat: list[Any],
        positions: list[int],
        scores: list[GroupScore | None],
    ) -> None:
        members = [flat[position] for position in positions]
        async with self._semaphore(settings):
            loop = asyncio.get_running_loop()
            threads = self._threads()
            request, kept, refused = await loop.run_in_executor(threads, _prepare, settings, truth, members)
            for index, score in refused.items():
                scores[positions[index]] = score
            if request is None:
                return
            # on a thread too: a grader's first use may look its server up
            grader = await loop.run_in_executor(threads, self._grader_for, settings)
            for index, score in zip(kept, await self._graded(grader, request), strict=True):
                scores[positions[index]] = score

    async def _graded(self, grader: Grader, request: GroupRequest) -> list[GroupScore]:
        try:
            scores = await asyncio.wait_for(grader.grade_group(request), request.deadline_s + DEADLINE_MARGIN_S)
        except asyncio.TimeoutError:
            late = CollimateError(
                f"the group was not graded within {request.deadline_s:g} s (collimate_deadline_s)", None, "expired"
            )
            return [GroupScore(failure=late)] * len(request.candidates)
        if len(scores) != len(request.candidates):
            raise RuntimeError(f"the grader answered {len(scores)} scores for {len(request.candidates)} candidates")
        return scores

    def _semaphore(self, settings: SlimeSettings) -> asyncio.Semaphore:
        width = self._groups_in_flight(settings)
        with self._lock:
            # a semaphore holds its loop, so weak references would not let a closed loop go
            for loop in [loop for loop in self._semaphores if loop.is_closed()]:
                del self._semaphores[loop]
            per_width = self._semaphores.setdefault(asyncio.get_running_loop(), {})
            return per_width.setdefault(width, asyncio.Semaphore(width))

    def _threads(self) -> ThreadPoolExecutor:
        """For parsing: a ground truth may be megabytes, and the loop is the trainer's. A forked child gets its own."""
        with self._lock:
            if self._pool is None or self._pool[0] != os.getpid():
                self._pool = os.getpid(), ThreadPoolExecutor(max_workers=2, thread_name_prefix="collimate-slime")
            return self._pool[1]


def _prepare(
    settings: SlimeSettings, truth: Any, members: list[Any]
) -> tuple[GroupRequest | None, list[int], dict[int, GroupScore]]:
    """The request, which members it covers, and the scores of those that it cannot (a candidate above the size cap)."""
    try:
        spec = reward_spec_from_ground_truth(truth, entry=settings.entry)
    except ValueError as error:
        raise ValueError(f"the ground truth of {describe(members[0])}: {error}") from error
    refused: dict[int, GroupScore] = {}
    kept: list[int] = []
    candidates: list[str] = []
    for index, sample in enumerate(members):
        candidate = extract_code(response_of(sample), entry=entry_of(spec, settings.entry))
        size = len(candidate.encode("utf-8", "surrogatepass"))
        if size > MAX_CANDIDATE_BYTES:
            message = f"the candidate of {describe(sample)} is {size} bytes; at most {MAX_CANDIDATE_BYTES} are graded"
            refused[index] = GroupScore(failure=CollimateError(message, None, "candidate_too_large"))
        else:
            kept.append(index)
            candidates.append(candidate)
    if not kept:
        return None, kept, refused
    request = GroupRequest(
        template=settings.template,
        spec=spec,
        candidates=tuple(candidates),
        seeds=tuple(seed_of(members[index], settings) for index in kept),
        timeout_seconds=settings.timeout_seconds,
        deadline_s=settings.deadline_s,
    )
    return request, kept, refused


def entry_of(spec: RewardSpec, default: str) -> str:
    """The function that the spec calls, which code extraction looks for."""
    entry = getattr(spec, "entry", None)
    return entry if isinstance(entry, str) and entry else default


def _account(sample: Any, score: GroupScore | None) -> GroupScore:
    """Notes the grading in a copy of the metadata: fanned-out samples may share one dict."""
    if score is None:
        raise RuntimeError(f"{describe(sample)} was left without a score")
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
    return score


def _raise_failures(settings: SlimeSettings, samples: list[Any], scores: list[GroupScore]) -> None:
    """Raises for infra trouble where the run's policy, or the trouble itself, asks for it; logs what is filtered."""
    failed = [
        (sample, score.failure) for sample, score in zip(samples, scores, strict=True) if score.failure is not None
    ]
    for sample, failure in failed:
        if failure.is_misconfigured:
            raise RunMisconfigured(
                f"{describe(sample)} was not graded and no retry heals it: {failure.message} ({failure.error_code}). "
                "The run is set up wrongly; nothing was scored.",
                failure.status,
                failure.error_code,
            ) from failure
    for sample, failure in failed:
        if settings.on_infra_error == "raise":
            raise failure
        log.warning("%s was not graded, its group is to be dropped: %s", describe(sample), failure.message)


def _reward(settings: SlimeSettings, sample: Any, score: GroupScore) -> Any:
    """What slime gets for one sample: None only where `_raise_failures` let a failure pass."""
    if score.failure is None and (score.reward is None or not math.isfinite(score.reward)):
        raise RuntimeError(f"{describe(sample)}: a reward is a finite number, not {score.reward!r}")
    return {settings.reward_key: score.reward, "outcome": score.outcome} if settings.reward_key else score.reward
