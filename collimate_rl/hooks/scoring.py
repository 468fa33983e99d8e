"""Scoring the completions of one prompt over a `Grader`: what every adapter does between its framework and us.

- It runs on the trainer's loop, or on one of ours: parsing and grading happen on threads, a semaphore bounds the groups
  in flight, and every group has a deadline of its own. What is bound to a loop is kept per running loop.
- One score per completion, in order; a finite reward, or the infra failure that left it without one, never a 0.
- Infra trouble is tried again until its budget is spent. What no retry heals is raised, whatever the policy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from collimate_rl.errors import CollimateError
from collimate_rl.formats import candidate_of
from collimate_rl.grading.grader import MAX_CANDIDATES, Grader, GroupRequest, GroupScore
from collimate_rl.hooks.forks import ForkLock
from collimate_rl.hooks.policy import cannot_heal
from collimate_rl.hooks.rows import plain
from collimate_rl.protocol.bounds import MAX_CANDIDATE_BYTES
from collimate_rl.rewards import RewardSpec, reward_spec_from_ground_truth

log = logging.getLogger("collimate_rl.hooks")

MAX_COMPLETION_CHARS: Final = 2 << 20
"""Longer ones are not searched for code, which would cost the trainer seconds and gigabytes."""
DEADLINE_MARGIN_S: Final = 60.0
"""Beyond a group's deadline: a grader that keeps its own deadline answers within it."""
MOST_PAUSE_S: Final = 15.0
NOT_RETRIED: Final = frozenset({"expired", "cancelled", "quarantined"})
"""Answers that stand: time is up, somebody wanted it so, or it cost workers their lives."""


class Scored(Protocol):
    """What of the settings scoring reads."""

    @property
    def template(self) -> str: ...
    @property
    def timeout_seconds(self) -> int: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def entry(self) -> str: ...
    @property
    def concurrency(self) -> int: ...


S = TypeVar("S", bound=Scored)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Member:
    """One completion to score; `name` is for messages. `seed` is 64 hex characters, or None for fresh entropy."""

    completion: str
    seed: str | None
    name: str


class GroupScorer(Generic[S]):
    """Scores groups over the grader that `grader_for(settings)` hands out; serves any number of loops.

    `groups_in_flight(settings)` bounds the groups that one loop has under way; further calls wait, without a deadline
    running.
    """

    def __init__(
        self,
        grader_for: Callable[[S], Grader],
        *,
        groups_in_flight: Callable[[S], int] = lambda settings: settings.concurrency,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._grader_for = grader_for
        self._groups_in_flight = groups_in_flight
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._lock = ForkLock()
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._semaphores: dict[asyncio.AbstractEventLoop, dict[int, asyncio.Semaphore]] = {}

    async def scores(
        self,
        settings: S,
        truth: Any,
        members: Sequence[Member] | Callable[[], Sequence[Member]],
        *,
        about: str,
        infra_budget_s: float = 0.0,
        grader: Grader | None = None,
        read: Callable[[Any], Any] = plain,
    ) -> list[GroupScore]:
        """The scores of completions that share their ground truth, in order; at most MAX_CANDIDATES of them.

        `members` may be a function that gives them: it is called once, when the group's turn has come. Infra trouble
        that may pass is tried again for `infra_budget_s` seconds from when it was first met. `grader` takes the place
        of the one that the settings give. `read` makes plain containers of the ground truth, on a thread. ValueError
        for a ground truth that can't be graded by; it says `about` whose it is.
        """
        async with self._semaphore(settings):
            loop, threads = asyncio.get_running_loop(), self._threads()
            members = members() if callable(members) else members
            prepared = await loop.run_in_executor(threads, _prepare, settings, truth, members, about, read)
            scores = dict(prepared.settled)
            if prepared.request is not None:
                # on a thread too: a grader's first use may look its server up
                if grader is None:
                    grader = await loop.run_in_executor(threads, self._grader_for, settings)
                graded = await self._until_graded(grader, prepared.request, infra_budget_s)
                scores |= zip(prepared.kept, graded, strict=True)
            return [scores[index] for index in range(len(members))]

    async def on_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """What `work` gives for `arguments`, worked out beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads(), work, *arguments)

    async def _until_graded(self, grader: Grader, request: GroupRequest, budget_s: float) -> list[GroupScore]:
        end = self._clock() + request.deadline_s
        give_up: float | None = None
        scores: dict[int, GroupScore] = {}
        open_ = list(range(len(request.candidates)))
        attempts = 0
        part = request
        while True:
            attempts += 1
            for index, score in zip(open_, await self._graded(grader, part), strict=True):
                scores[index] = replace(score, attempts=attempts)
            failures = [score.failure for score in scores.values() if score.failure is not None]
            open_ = [index for index in open_ if _worth_another_try(scores[index].failure)]
            now = self._clock()
            give_up = min(end, now + budget_s) if give_up is None else give_up
            if not open_ or now >= give_up or any(cannot_heal(failure) for failure in failures):
                return [scores[index] for index in range(len(request.candidates))]
            pause = min(MOST_PAUSE_S, 2.0 ** min(attempts - 1, 4)) * (0.5 + self._jitter() / 2)
            log.warning(
                "%d of %d candidates were not graded, and are tried again for up to %.0f s: %s",
                len(open_),
                len(request.candidates),
                give_up - now,
                failures[0].message,
            )
            await self._sleep(min(pause, give_up - now))
            part = replace(
                request,
                candidates=tuple(request.candidates[index] for index in open_),
                seeds=tuple(request.seeds[index] for index in open_),
                deadline_s=max(0.001, end - self._clock()),
            )

    async def _graded(self, grader: Grader, request: GroupRequest) -> list[GroupScore]:
        try:
            scores = await asyncio.wait_for(grader.grade_group(request), request.deadline_s + DEADLINE_MARGIN_S)
        except asyncio.TimeoutError:
            late = CollimateError(
                f"the group was not graded within its {request.deadline_s:g} s (deadline_s)", None, "expired"
            )
            return [GroupScore(failure=late)] * len(request.candidates)
        if len(scores) != len(request.candidates):
            raise RuntimeError(f"the grader answered {len(scores)} scores for {len(request.candidates)} candidates")
        return scores

    def _semaphore(self, settings: S) -> asyncio.Semaphore:
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
                self._pool = os.getpid(), ThreadPoolExecutor(max_workers=2, thread_name_prefix="collimate-hook")
            return self._pool[1]


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A group ready to be graded: the request, which members it covers, and the scores of the rest."""

    request: GroupRequest | None
    kept: tuple[int, ...]
    settled: dict[int, GroupScore]


def _prepare(
    settings: Scored, truth: Any, members: Sequence[Member], about: str, read: Callable[[Any], Any]
) -> _Prepared:
    """Parses the ground truth and takes the code out of the completions. For a thread: both may be megabytes."""
    try:
        spec = reward_spec_from_ground_truth(read(truth), entry=settings.entry)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the ground truth of {about}: {error}") from error
    candidates: dict[int, str] = {}
    settled: dict[int, GroupScore] = {}
    for index, member in enumerate(members):
        candidate = _candidate_of(spec, member.completion, settings.entry)
        if isinstance(candidate, GroupScore):
            settled[index] = candidate
        else:
            candidates[index] = candidate
    request = candidates and GroupRequest(
        template=settings.template,
        spec=spec,
        candidates=tuple(candidates.values()),
        seeds=tuple(members[index].seed for index in candidates),
        timeout_seconds=settings.timeout_seconds,
        deadline_s=settings.deadline_s,
    )
    return _Prepared(request=request or None, kept=tuple(candidates), settled=settled)


def _candidate_of(spec: RewardSpec, completion: str, entry: str) -> str | GroupScore:
    """The code in a completion, or the score of one that is too long to be graded: that is its writer's doing, and
    the same whoever grades, so no infra error."""
    if len(completion) > MAX_COMPLETION_CHARS:
        return _too_long(
            f"the completion has {len(completion):,} characters; at most {MAX_COMPLETION_CHARS:,} are read"
        )
    candidate = candidate_of(spec, completion, entry)
    size = len(candidate.encode("utf-8", "surrogatepass"))
    if size > MAX_CANDIDATE_BYTES:
        return _too_long(f"the code has {size:,} bytes; at most {MAX_CANDIDATE_BYTES:,} are graded")
    return candidate


def _too_long(detail: str) -> GroupScore:
    return GroupScore(reward=0.0, outcome="output_limit", detail=detail)


def pieces(positions: Sequence[int]) -> list[Sequence[int]]:
    """A group's positions, cut where it is larger than one request may be."""
    return [positions[start : start + MAX_CANDIDATES] for start in range(0, len(positions), MAX_CANDIDATES)]


def _worth_another_try(failure: CollimateError | None) -> bool:
    return failure is not None and failure.error_code not in NOT_RETRIED and not cannot_heal(failure)
