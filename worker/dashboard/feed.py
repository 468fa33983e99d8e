"""One reader for everybody: the queue is looked at once per interval however many pages are open, and not at all while
none is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from collimate_rl.errors import CollimateError, RedisUnavailable

T = TypeVar("T")
_log = logging.getLogger("worker.dashboard")


@dataclass(frozen=True, kw_only=True)
class Look(Generic[T]):
    """What the latest look found; times are Unix seconds of this machine."""

    serial: int
    """Counts looks: another number is another look."""
    numbers: T | None
    """The last that could be read; None when there never were any."""
    read_at: float | None
    """When these were read."""
    trouble: str = ""
    """Why the latest look found nothing; '' when it did."""
    away: bool = False
    """The trouble is that the server can't be reached, which passes."""
    since: float | None = None
    """Since when there has been trouble."""


class Feed(Generic[T]):
    """Looks by calling `read` in a thread; belongs to one event loop.

    read -- may block for a bounded time; raises `CollimateError` where the queue can't be read: `Look` tells it.
    every_s -- how old a look may be, and the time between two while somebody watches.
    """

    def __init__(
        self,
        read: Callable[[], T],
        *,
        every_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._every_s = every_s
        self._clock = clock
        self._wall = wall
        self._latest: Look[T] = Look(serial=0, numbers=None, read_at=None)
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._watchers = 0
        self._rounds: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def watchers(self) -> int:
        """Who watches now."""
        return self._watchers

    async def look(self) -> Look[T]:
        """The latest look, at most `every_s` old. Callers at the same time share one."""
        async with self._looking:
            if self._clock() - self._looked_at >= self._every_s:
                await self._again()
        return self._latest

    async def after(self, serial: int, timeout_s: float) -> Look[T] | None:
        """A look later than `serial`; None when none came in time, or the feed was closed."""
        async with self._changed:
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: self.closed or self._latest.serial != serial), timeout_s
                )
            except asyncio.TimeoutError:
                return None
        return None if self.closed else self._latest

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While anybody is inside, there is a look every `every_s`."""
        self._watchers += 1
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._while_watched())
        try:
            yield
        finally:
            self._watchers -= 1

    async def close(self) -> None:
        """Lets go of everybody who waits; nothing is looked at afterwards."""
        self.closed = True
        async with self._changed:
            self._changed.notify_all()
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)

    async def _while_watched(self) -> None:
        while self._watchers and not self.closed:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def _again(self) -> None:
        before = self._latest
        numbers, trouble, away = None, "", False
        try:
            numbers = await asyncio.to_thread(self._read)
        except CollimateError as error:
            trouble, away = error.message, isinstance(error, RedisUnavailable)
        except Exception as error:  # noqa: BLE001  (what stands on the server is others' doing; the next look may do)
            _log.exception("a look at the queue broke off")
            trouble = f"what the queue holds could not be understood: {error!r}"
        now = self._wall()
        self._looked_at = self._clock()
        if not trouble:
            self._latest = Look(serial=before.serial + 1, numbers=numbers, read_at=now)
        else:
            self._latest = Look(
                serial=before.serial + 1,
                numbers=before.numbers,
                read_at=before.read_at,
                trouble=trouble,
                away=away,
                since=before.since if before.trouble else now,
            )
        async with self._changed:
            self._changed.notify_all()
