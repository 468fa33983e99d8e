"""The inline `Grader`: this process grades against a daemon, on threads of its own.

Nothing here is bound to an event loop, so one grader serves every loop that comes and goes in the process.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from collimate_rl.errors import CollimateError
from collimate_rl.grading.execute import ExecRequest, Executor, OneShotExecutor
from collimate_rl.grading.grader import GroupRequest, GroupScore
from collimate_rl.grading.group import Graded, grade_group
from collimate_rl.grading.losses import LossWitness
from collimate_rl.sandbox import ExecResult
from collimate_rl.transport import SessionClient

ATTEMPTS = 3
"""Rounds in which a candidate that met infra trouble is tried, the first included."""


def jittered_pause(attempt: int) -> float:
    """Seconds before round `attempt` + 1: exponential with full jitter, two to eight seconds at most."""
    return random.uniform(0.5, 2.0 * 2**attempt)  # spreads load; nothing secret


class InlineGrader:
    """Grades over `client`, with at most `concurrency` execs in flight, whatever the number of groups and loops."""

    def __init__(
        self,
        client: SessionClient,
        *,
        concurrency: int = 24,
        attempts: int = ATTEMPTS,
        pause: Callable[[int], float] = jittered_pause,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is at least 1, not {concurrency}")
        self._client = client
        self._concurrency = concurrency
        self._attempts = attempts
        self._pause = pause
        self._slots = threading.BoundedSemaphore(concurrency)
        self._pool = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="collimate-grade")

    async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
        """As `Grader.grade_group`. At the deadline, or when the task is cancelled, no further exec starts; those under
        way end by their own limit, and the verdicts that stand by then are kept."""
        stop = threading.Event()
        scores: dict[int, GroupScore] = {}
        work = asyncio.wrap_future(self._pool.submit(self._grade, request, scores, stop))
        try:
            done, _ = await asyncio.wait({work}, timeout=request.deadline_s)
        finally:
            stop.set()
        if done:
            work.result()
        else:
            work.cancel()
        late = GroupScore(
            failure=CollimateError(f"no verdict within the group's {request.deadline_s:g} s", None, "expired")
        )
        return [scores.get(index, late) for index in range(len(request.candidates))]

    def close(self) -> None:
        """Lets the threads go once what they run has ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _grade(self, request: GroupRequest, scores: dict[int, GroupScore], stop: threading.Event) -> None:
        """Enters every candidate's score into `scores` as it comes, in as many rounds as infra trouble asks for."""
        one_shot = OneShotExecutor(self._client, request.template)
        execute = _Bounded(LossWitness(one_shot, self._client, request.template, stop=stop), self._slots)

        def enter(index: int, graded: Graded) -> None:
            if not stop.is_set():
                scores[index] = score_of(graded)

        for attempt in range(self._attempts):
            grade_group(
                execute,
                request.spec,
                request.candidates,
                seeds=request.seeds,
                timeout_seconds=request.timeout_seconds,
                concurrency=min(self._concurrency, len(request.candidates)),
                skip={index for index, score in scores.items() if not _worth_another_try(score)},
                on_grade=enter,
                stop=stop,
            )
            if not any(_worth_another_try(score) for score in scores.values()):
                return
            if attempt + 1 < self._attempts and stop.wait(self._pause(attempt)):
                return


def score_of(graded: Graded) -> GroupScore:
    """A grade, or the infra error that stands for one, as a Grader's score."""
    if isinstance(graded, CollimateError):
        return GroupScore(failure=graded)
    return GroupScore(
        reward=graded.reward,
        outcome=graded.outcome,
        detail=graded.detail,
        seed=graded.seed,
        integrity=graded.integrity,
        grader_version=graded.grader_version,
        cases=tuple(case.outcome for case in graded.cases),
        cases_total=graded.cases_total,
        cases_passed=graded.cases_passed,
    )


def _worth_another_try(score: GroupScore) -> bool:
    return score.failure is not None and not score.failure.is_misconfigured


class _Bounded:
    """An executor that takes one of the shared slots for each exec, so that groups side by side do not add up."""

    def __init__(self, inner: Executor, slots: threading.BoundedSemaphore) -> None:
        self._inner = inner
        self._slots = slots

    def run(self, request: ExecRequest, *, role: Literal["runner", "judge"], index: int | None) -> ExecResult:
        with self._slots:
            return self._inner.run(request, role=role, index=index)
