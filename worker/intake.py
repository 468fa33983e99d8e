"""Whether this process may take a job. Asked at the safe point only, so a closed intake leaves no bell behind.

Two things close it: that this process has not seen the daemon take work yet, and the node's pause, which one process
begins (its batch met a daemon that drains or is away) and whichever process finds the daemon well again ends, for all.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from collimate_rl.errors import CollimateDrainingError, CollimateError, UnreachableError
from worker import logs
from worker.backend import BackendState
from worker.pause import NodePause

LOOK_EVERY_S = (4.0, 6.0)
"""Between two looks at a daemon that doesn't take work: jittered, so that a fleet doesn't look all at once."""
TRY_ANYWAY_S = 5.0
"""A daemon that went away while it was at work may hold jobs back for so long; then a batch finds out, and its
infrastructure errors are counted and answered, where waiting would only run into its deadline."""


class Intake:
    """Closed until the daemon has been seen to take work, and while the node is paused.

    `ready` looks at the daemon, and may probe it by the template that it is given. `refused` says why this worker must
    not work at all; it never opens then.
    """

    def __init__(
        self,
        ready: Callable[[str | None], BackendState],
        pause: NodePause,
        *,
        allow_unisolated: bool,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._ready = ready
        self._pause = pause
        self._allow_unisolated = allow_unisolated
        self._clock = clock
        self._uniform = uniform
        self._seen_up = False
        self._next_look = 0.0
        self._reported = False
        self.refused: str | None = None

    def failed(self, error: CollimateError, template: str | None = None) -> None:
        """A batch met this error beyond its retries: pause the node, when that says that the whole daemon is away.

        `template` is the batch's.
        """
        draining = isinstance(error, CollimateDrainingError)
        if not draining and not isinstance(error, UnreachableError):
            return
        anyway_in_s = None if draining else TRY_ANYWAY_S
        self._begin(error.message, template=template, draining=draining, anyway_in_s=anyway_in_s)

    def may_take(self) -> bool:
        """Whether a job may be taken now. Looks at the daemon where a look is due; that takes seconds at most."""
        if self.refused is not None:
            return False
        if not self._seen_up:
            self._seen_up = self._first_look()
        return self._seen_up and not self._paused()

    def _first_look(self) -> bool:
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + self._uniform(*LOOK_EVERY_S)
        state = self._look(None)
        if state.up and self._reported:
            logs.emit(logs.BACKEND_UP)
        elif state.draining:
            # The whole node's pause, so that it is said once, whichever of its processes looks first.
            template = state.templates[0] if state.templates else None
            self._begin(state.reason, template=template, draining=True, anyway_in_s=None)
        elif not state.up and not self._reported and self.refused is None:
            logs.emit(logs.BACKEND_DOWN, logging.WARNING, reason=state.reason)
            self._reported = True
        return state.up

    def _begin(self, reason: str, *, template: str | None, draining: bool, anyway_in_s: float | None) -> None:
        if self._pause.begin(reason, template=template, draining=draining, anyway_in_s=anyway_in_s):
            logs.emit(logs.BACKEND_DOWN, logging.WARNING, reason=reason)
        self._report_file()

    def _paused(self) -> bool:
        pause = self._pause.current()
        if pause is None:
            return False
        if self._pause.is_over(pause):
            self._pause.end(pause)
            self._report_file()
            return False
        mine = self._pause.take_turn(self._uniform(*LOOK_EVERY_S))
        if mine is None or not self._look(mine.template).up:
            return True
        if self._pause.end(mine):
            logs.emit(logs.BACKEND_UP)
        self._report_file()
        return self._pause.current() is not None

    def _report_file(self) -> None:
        error = self._pause.unshared()
        if error is not None:
            logs.emit(logs.PAUSE_UNSHARED, logging.ERROR, error=str(error))

    def _look(self, template: str | None) -> BackendState:
        state = self._ready(template)
        if state.unisolated and not self._allow_unisolated:
            self.refused = UNISOLATED
            return BackendState(up=False, reason=UNISOLATED)
        return state


UNISOLATED = (
    "the sandbox daemon reports isolation 'none': candidates would run unconfined on this machine. "
    "Start it with --isolation namespaces, or allow this with --allow-unisolated"
)
