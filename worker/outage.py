"""Says that something is away: at once, again every now and then while it stays so, and for how long it was."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from worker import logs

AGAIN_S = 30.0


class Outage:
    """One thing that may be away. Reports come as often as it is tried; the log hears of few. For one thread."""

    def __init__(self, *, again_s: float = AGAIN_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s = again_s
        self._clock = clock
        self._began_at: float | None = None
        self._said_at = 0.0

    def report(self, event: str, level: int = logging.WARNING, **fields: Any) -> None:
        """It is away: log `event` where that is news, or was said longer ago than `again_s`."""
        now = self._clock()
        if self._began_at is None:
            self._began_at = self._said_at = now
            logs.emit(event, level, **fields)
        elif now - self._said_at >= self._again_s:
            self._said_at = now
            logs.emit(event, level, away=round(now - self._began_at, 1), **fields)

    def over(self) -> float | None:
        """It is there; the seconds for which it was away, or None when it wasn't."""
        began_at, self._began_at = self._began_at, None
        return None if began_at is None else self._clock() - began_at
