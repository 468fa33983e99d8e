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
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
        pieces = [
            (truth, positions[start : start + MAX_CANDIDATES])
            for truth, positions in partition(flat)
            for start in range(0, len(positions), MAX_CANDIDATES)
        ]
        tasks = [
            asyncio.ensure_future(self._group(settings, truth, [flat[position] for position in positions]))
            for truth, positions in pieces
        ]
        try:
            graded = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        scores = {
            position: score
            for (_, positions), group in zip(pieces, graded, strict=True)
            for position, score in zip(positions, group, strict=True)
        }
        for position, sample in enumerate(flat):
            _account(sample, scores[position])
        _raise_failures(settings, [(sample, scores[position]) for position, sample in enumerate(flat)])
        return shaped_like(samples, [_reward(settings, scores[position]) for position in range(len(flat))])

    async def _group(self, settings: SlimeSettings, truth: Any, members: list[Any]) -> list[GroupScore]:
        """The scores of samples that share their ground truth, in order."""
        async with self._semaphore(settings):
            loop, threads = asyncio.get_running_loop(), self._threads()
            prepared = await loop.run_in_executor(threads, _prepare, settings, truth, members)
            scores = dict(prepared.refused)
            if prepared.request is not None:
                # on a thread too: a grader's first use may look its server up
                grader = await loop.run_in_executor(threads, self._grader_for, settings)
                scores |= zip(prepared.kept, await self._graded(grader, prepared.request), strict=True)
            return [scores[index] for index in range(len(members))]

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


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A group ready to be graded: the request, which members it covers, and the scores of those that it cannot."""

    request: GroupRequest | None
    kept: tuple[int, ...]
    refused: dict[int, GroupScore]


def _prepare(settings: SlimeSettings, truth: Any, members: list[Any]) -> _Prepared:
    """Parses the ground truth and takes the code out of the completions. For a thread: both may be megabytes."""
    try:
        spec = reward_spec_from_ground_truth(truth, entry=settings.entry)
    except ValueError as error:
        where = "metadata (its label is empty)" if isinstance(truth, dict) and not members[0].label else "label"
        raise ValueError(f"the ground truth of {describe(members[0])}, in its {where}: {error}") from error
    candidates: dict[int, str] = {}
    refused: dict[int, GroupScore] = {}
    for index, sample in enumerate(members):
        candidate = extract_code(response_of(sample), entry=entry_of(spec, settings.entry))
        size = len(candidate.encode("utf-8", "surrogatepass"))
        if size <= MAX_CANDIDATE_BYTES:
            candidates[index] = candidate
        else:
            message = f"the candidate of {describe(sample)} is {size} bytes; at most {MAX_CANDIDATE_BYTES} are graded"
            refused[index] = GroupScore(failure=CollimateError(message, None, "candidate_too_large"))
    request = candidates and GroupRequest(
        template=settings.template,
        spec=spec,
        candidates=tuple(candidates.values()),
        seeds=tuple(seed_of(members[index], settings) for index in candidates),
        timeout_seconds=settings.timeout_seconds,
        deadline_s=settings.deadline_s,
    )
    return _Prepared(request=request or None, kept=tuple(candidates), refused=refused)


def entry_of(spec: RewardSpec, default: str) -> str:
    """The function that the spec calls, which code extraction looks for."""
    entry = getattr(spec, "entry", None)
    return entry if isinstance(entry, str) and entry else default


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


def _reward(settings: SlimeSettings, score: GroupScore) -> Any:
    """What slime gets for one sample: None only where `_raise_failures` let a failure pass."""
    return {settings.reward_key: score.reward, "outcome": score.outcome} if settings.reward_key else score.reward
