"""Rollouts of one prompt that come one by one are graded as one group, which plans the row's tests once.

verl calls for each sample by itself, many at once on one loop. A sample waits a moment for its siblings, and as long as
its group waits for its turn anyway, more of them join it. A group is of one loop, one key (the row) and one ground
truth. What becomes of one member's caller (its await is cancelled) leaves the others alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from collimate_rl.grading.grader import MAX_CANDIDATES, GroupScore
from collimate_rl.hooks.forks import ForkLock
from collimate_rl.hooks.rows import same_truth, without_gaps
from collimate_rl.hooks.scoring import GroupScorer, Member, S

WINDOW_S: Final = 0.01
"""How long a sample waits for siblings: little beside a fork and a run, and enough for calls that are made together."""


@dataclass(eq=False)
class _Group(Generic[S]):
    """Samples that are to be graded together. `task` grades them, and ends early when nobody waits any more."""

    settings: S
    key: Hashable
    truth: Any
    waiting: dict[asyncio.Future[GroupScore], Member] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    def takes(self, settings: S, key: Hashable, truth: Any) -> bool:
        return (
            len(self.waiting) < MAX_CANDIDATES
            and (self.settings, self.key) == (settings, key)
            and same_truth(self.truth, truth)
        )

    def leave(self, future: asyncio.Future[GroupScore]) -> None:
        """Lets go of a member whose caller was cancelled."""
        future.cancel()
        if self.task is not None and all(one.done() for one in self.waiting):
            self.task.cancel()


class Siblings(Generic[S]):
    """Gathers samples for `scorer`, on any number of loops. `sleep` waits for siblings, for WINDOW_S."""

    def __init__(self, scorer: GroupScorer[S], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._scorer = scorer
        self._sleep = sleep
        self._lock = ForkLock()
        self._open: dict[asyncio.AbstractEventLoop, list[_Group[S]]] = {}

    async def score(
        self, settings: S, key: Hashable, truth: Any, member: Member, *, infra_budget_s: float
    ) -> GroupScore:
        """One sample's score, graded with those that have the same settings, key and ground truth on this loop.

        Raises ValueError for a ground truth that can't be graded by, to each of them.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[GroupScore] = loop.create_future()
        groups = self._groups_of(loop)
        group = next((one for one in groups if one.takes(settings, key, truth)), None)
        if group is None:
            group = _Group(settings=settings, key=key, truth=truth)
            groups.append(group)
            group.task = loop.create_task(self._grade(groups, group, infra_budget_s))
        group.waiting[future] = member
        try:
            return await future
        except asyncio.CancelledError:
            group.leave(future)
            raise

    async def _grade(self, groups: list[_Group[S]], group: _Group[S], infra_budget_s: float) -> None:
        graded: list[asyncio.Future[GroupScore]] = []

        def members() -> list[Member]:
            """Those that still wait, when the group's turn has come; nobody joins it afterwards."""
            groups.remove(group)
            graded.extend(future for future in group.waiting if not future.done())
            return [group.waiting[future] for future in graded]

        try:
            await self._sleep(WINDOW_S)
            first = next(iter(group.waiting.values()))
            scores = await self._scorer.scores(
                group.settings,
                group.truth,
                members,
                about=first.name,
                infra_budget_s=infra_budget_s,
                read=without_gaps,
            )
            for future, score in zip(graded, scores, strict=True):
                if not future.done():
                    future.set_result(score)
        except asyncio.CancelledError:
            for future in group.waiting:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - each of those that wait gets it
            for future in group.waiting:
                if not future.done():
                    future.set_exception(error)
        finally:
            if group in groups:
                groups.remove(group)

    def _groups_of(self, loop: asyncio.AbstractEventLoop) -> list[_Group[S]]:
        """The open groups of this loop: only its own thread touches them."""
        with self._lock:
            for closed in [one for one in self._open if one.is_closed()]:
                del self._open[closed]
            return self._open.setdefault(loop, [])
