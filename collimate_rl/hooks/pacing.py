"""Starting many calls on a trainer's loop without keeping it: a few in each of its iterations, in the order they came.

A trainer that gathers hundreds of calls starts them all in one iteration. What each does before it first waits is
little, and hundreds of times that little keep generation waiting for tens of milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from collimate_rl.hooks.forks import ForkLock

AT_ONCE: Final = 8


class Pace:
    """Lets `at_once` of those that wait for their `turn` go on in each iteration of their loop; serves many loops."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._lock = ForkLock()
        self._waiting: dict[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]] = {}

    async def turn(self) -> None:
        """Waits for the caller's turn, which comes whatever the others do."""
        loop = asyncio.get_running_loop()
        with self._lock:
            for closed in [one for one in self._waiting if one.is_closed()]:
                del self._waiting[closed]
            waiting = self._waiting.setdefault(loop, deque())
        mine: asyncio.Future[None] = loop.create_future()
        if not waiting:
            loop.call_soon(self._go_on, loop, waiting)
        waiting.append(mine)
        await mine

    def _go_on(self, loop: asyncio.AbstractEventLoop, waiting: deque[asyncio.Future[None]]) -> None:
        for _ in range(min(self._at_once, len(waiting))):
            one = waiting.popleft()
            if not one.done():  # cancelled with its caller
                one.set_result(None)
        if waiting:
            loop.call_soon(self._go_on, loop, waiting)
