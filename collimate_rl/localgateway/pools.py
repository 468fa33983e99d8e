"""A template's pool counters.

Local forks are copies of a warm interpreter that are made when they are asked for, so any width is ready at once. The
counters say what a fleet's would: they fill up to the declared width, in the time that the gateway was given for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pool:
    """Fills to `declared` in `converge_s` seconds after each change; `cold_fraction` of it is frozen."""

    def __init__(
        self, declared: int, cold_fraction: float, converge_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.declared = declared
        self.released_at: float | None = None
        self._cold = cold_fraction
        self._converge_s = converge_s
        self._clock = clock
        self._lock = threading.Lock()
        self._from = 0
        self._since = clock()

    def fill(self) -> None:
        """Begin to fill now."""
        with self._lock:
            self._since = self._clock()

    def declare(self, width: int) -> None:
        """Another width from now on; what is beyond it goes at once."""
        with self._lock:
            self._from = min(self._filled(), width)
            self._since = self._clock()
            self.declared = width

    def _filled(self) -> int:
        elapsed = self._clock() - self._since
        if elapsed >= self._converge_s:
            return self.declared
        return min(self._from + int((self.declared - self._from) * elapsed / self._converge_s), self.declared)

    def counts(self) -> tuple[int, int]:
        """(warm, frozen)."""
        with self._lock:
            filled = self._filled()
        frozen = int(filled * self._cold)
        return filled - frozen, frozen
