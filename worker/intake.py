"""Whether this process may take a job. Asked at the safe point only, so a closed intake leaves no bell behind."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from collimate_rl.errors import CollimateDrainingError, CollimateError, UnreachableError
from worker import logs
from worker.backend import BackendState

LOOK_EVERY_S = (4.0, 6.0)
"""Between two looks at a daemon that doesn't take work: jittered, so that a fleet doesn't look all at once."""
TRY_ANYWAY_S = 5.0
"""A daemon that went away while it was at work may hold jobs back for so long; then a batch finds out, and its
infrastructure errors are counted and answered, where waiting would only run into its deadline."""


class Intake:
    """Closed until the daemon has been seen to take work; closed again by a batch that the daemon failed.

    `ready` looks at the daemon. `refused` says why this worker must not work at all; it never opens then.
    """

    def __init__(
        self,
        ready: Callable[[], BackendState],
        *,
        allow_unisolated: bool,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._ready = ready
        self._allow_unisolated = allow_unisolated
        self._clock = clock
        self._uniform = uniform
        self._open = False
        self._next_look = 0.0
        self._try_anyway_at: float | None = None
        self._reported = False
        self.refused: str | None = None

    def failed(self, error: CollimateError) -> None:
        """A batch met this error beyond its retries: close, when it says that the daemon as a whole is away."""
        draining = isinstance(error, CollimateDrainingError)
        if not self._open or not (draining or isinstance(error, UnreachableError)):
            return
        self._open, self._reported = False, True
        self._next_look = self._clock()
        self._try_anyway_at = None if draining else self._clock() + TRY_ANYWAY_S
        logs.emit(logs.BACKEND_DOWN, logging.WARNING, reason=error.message)

    def may_take(self) -> bool:
        """Whether a job may be taken now. Looks at the daemon where a look is due; that takes seconds at most."""
        if self._open or self.refused is not None:
            return self._open
        now = self._clock()
        self._open = now >= self._next_look and self._look(now)
        if not self._open and self._try_anyway_at is not None and now >= self._try_anyway_at:
            self._open, self._try_anyway_at = True, None
        return self._open

    def _look(self, now: float) -> bool:
        state = self._ready()
        if state.unisolated and not self._allow_unisolated:
            self.refused = UNISOLATED
            return False
        if state.up:
            if self._reported:
                logs.emit(logs.BACKEND_UP)
            self._reported = False
            return True
        if not self._reported:
            logs.emit(logs.BACKEND_DOWN, logging.WARNING, reason=state.reason)
            self._reported = True
        self._next_look = now + self._uniform(*LOOK_EVERY_S)
        return False


UNISOLATED = (
    "the sandbox daemon reports isolation 'none': candidates would run unconfined on this machine. "
    "Start it with --isolation namespaces, or allow this with --allow-unisolated"
)
