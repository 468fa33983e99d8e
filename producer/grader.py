"""The queued `Grader`: groups go to the workers over Redis. Adapters that take a `Grader` take this one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from collimate_rl.errors import CollimateError
from collimate_rl.grading.grader import GroupRequest, GroupScore
from collimate_rl.protocol import Verdict
from producer.handle import BatchHandle
from producer.producer import Producer

SUBMITTERS = 8
"""Threads that submit. A submit may wait for room in the run's window, which must not keep the caller's loop."""


class QueuedGrader:
    """Grades over `producer`; serves any number of loops."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._pool = ThreadPoolExecutor(max_workers=SUBMITTERS, thread_name_prefix="collimate-submit")

    async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
        """As `Grader.grade_group`. A cancelled task cancels its batch."""
        drawn = all(seed is None for seed in request.seeds)
        submitted = self._pool.submit(
            partial(
                self._producer.submit,
                template=request.template,
                candidates=list(request.candidates),
                spec=request.spec,
                seeds=None if drawn else list(request.seeds),
                timeout_seconds=request.timeout_seconds,
                deadline_s=request.deadline_s,
            )
        )
        try:
            handle = await asyncio.shield(asyncio.wrap_future(submitted))
            result = await handle
        except asyncio.CancelledError:
            submitted.add_done_callback(self._forget)
            raise
        except CollimateError as error:
            return [GroupScore(failure=error)] * len(request.candidates)
        return [score_of(verdict) for verdict in result.results]

    def _forget(self, submitted: Future[BatchHandle]) -> None:
        if not submitted.cancelled() and submitted.exception() is None:
            self._pool.submit(submitted.result().cancel)

    def close(self) -> None:
        """Lets the threads and the producer go."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._producer.close()


def score_of(verdict: Verdict) -> GroupScore:
    """A verdict of the queue as a Grader's score."""
    failure = None
    if verdict.infra_error:
        failure = CollimateError(verdict.detail or f"the queue answered {verdict.error_code}", None, verdict.error_code)
    return GroupScore(
        reward=verdict.reward,
        outcome=verdict.outcome,
        failure=failure,
        detail=verdict.detail,
        seed=verdict.seed or None,
        integrity=verdict.integrity,
        grader_version=verdict.grader_version or None,
    )
