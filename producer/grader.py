"""The queued `Grader`: groups go to the workers over Redis. Adapters that take a `Grader` take this one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from collimate_rl.errors import CollimateError, QueueError
from collimate_rl.grading.grader import GroupRequest, GroupScore
from collimate_rl.protocol import Verdict
from collimate_rl.protocol.bounds import MAX_GROUND_TRUTH_BYTES, MAX_PAYLOAD_BYTES
from producer.handle import BatchHandle
from producer.producer import Producer

SUBMITTERS = 8
"""Threads that submit. A submit may wait for room in the run's window, which must not keep the caller's loop."""
ROOM = MAX_PAYLOAD_BYTES - MAX_GROUND_TRUTH_BYTES - (256 << 10)
"""Bytes of candidates in one batch: the rest of a payload is for the spec, seeds and names."""


class QueuedGrader:
    """Grades over `producer`; serves any number of loops."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._pool = ThreadPoolExecutor(max_workers=SUBMITTERS, thread_name_prefix="collimate-submit")

    async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
        """As `Grader.grade_group`; a group too large for one batch goes in several. A cancelled task cancels them."""
        parts = await asyncio.gather(*(self._grade(part) for part in parts_of(request)))
        return [score for part in parts for score in part]

    async def _grade(self, request: GroupRequest) -> list[GroupScore]:
        drawn = all(seed is None for seed in request.seeds)
        submit = partial(
            self._producer.submit,
            template=request.template,
            candidates=list(request.candidates),
            spec=request.spec,
            seeds=None if drawn else list(request.seeds),
            timeout_seconds=request.timeout_seconds,
            deadline_s=request.deadline_s,
        )
        try:
            submitted = self._pool.submit(submit)
        except RuntimeError:  # its threads are gone: it was closed after it was handed out
            closed = QueueError("the producer was closed before the group was submitted")
            return [GroupScore(failure=closed)] * len(request.candidates)
        try:
            handle = await asyncio.shield(asyncio.wrap_future(submitted))
            result = await handle
        except asyncio.CancelledError:
            submitted.add_done_callback(self._forget)
            raise
        except CollimateError as error:
            return [GroupScore(failure=error)] * len(request.candidates)
        except TimeoutError as error:  # the run's window had no room until the deadline
            late = CollimateError(str(error), None, "expired")
            return [GroupScore(failure=late)] * len(request.candidates)
        return [score_of(verdict) for verdict in result.results]

    def _forget(self, submitted: Future[BatchHandle]) -> None:
        if not submitted.cancelled() and submitted.exception() is None:
            try:
                self._pool.submit(submitted.result().cancel)
            except RuntimeError:  # closed: the batch runs on, and nobody waits for it
                pass

    @property
    def broken(self) -> bool:
        """Whether its producer takes no batch any more."""
        return self._producer.broken is not None

    def close(self) -> None:
        """Lets the threads and the producer go."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._producer.close()


def parts_of(request: GroupRequest) -> Iterator[GroupRequest]:
    """The request, cut where its candidates don't fit into one batch; mostly it is whole."""
    start, room = 0, ROOM
    for index, candidate in enumerate(request.candidates):
        room -= len(candidate.encode("utf-8", "surrogatepass"))
        if room < 0 and index > start:
            yield _cut(request, start, index)
            start, room = index, ROOM - len(candidate.encode("utf-8", "surrogatepass"))
    yield _cut(request, start, len(request.candidates))


def _cut(request: GroupRequest, start: int, end: int) -> GroupRequest:
    return replace(request, candidates=request.candidates[start:end], seeds=request.seeds[start:end])


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
        cases=tuple(case.outcome for case in verdict.cases or ()),
        cases_total=verdict.cases_total,
        cases_passed=verdict.cases_passed,
    )
