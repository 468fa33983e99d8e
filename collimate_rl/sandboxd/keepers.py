"""Keeping the warm interpreters of a template alive, each template by itself: none waits for another's trouble."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.backend import IsolationUnavailable
from collimate_rl.sandboxd.zygotes import Forked, Zygote, ZygotePlan, bringup_failed

log = logging.getLogger(__name__)
_REPLACEMENT_WAIT_S = 10.0
_BACKOFF_S = (0.0, 0.1, 0.5, 2.0, 10.0, 30.0)
"""Before the next attempt, by how many have failed in a row."""
_REBIRTH_S = (0.0, 0.0, 0.0, 0.5, 2.0)
"""Before the next, by how many died in a row soon after they came up: one that always does must not starve the rest."""
_YOUNG_S = 10.0


def template_failed(reason: str) -> CollimateError:
    """503: the template has no warm interpreter and the last attempt to start one failed; nothing was done."""
    return CollimateError(f"the template could not be brought up: {reason}", 503, "template_failed")


class ZygoteKeeper:
    """Keeps `count` zygotes of one template alive, from one thread of its own.

    That thread starts them all: the kernel ends a zygote when the THREAD that started it ends. `names` are the
    template's, for the log. `make_plan` may raise ValueError; while there are too few zygotes it is tried again and
    again, at growing intervals.
    """

    def __init__(self, names: str, make_plan: Callable[[], ZygotePlan], count: int) -> None:
        self._names = names
        self._make_plan = make_plan
        self._count = count
        self._zygotes: list[Zygote] = []
        self._turn = 0
        self._changed = threading.Condition()
        self._stop, self._stopped = os.pipe()
        self._failure: str | None = None
        self._said: str | None = None
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="zygote-keeper", daemon=True)

    def start(self) -> None:
        """Begin to start them."""
        self._thread.start()

    def settle(self, timeout_s: float | None = None) -> None:
        """Wait until the first attempt is over."""
        self._settled.wait(timeout_s)

    @property
    def is_up(self) -> bool:
        """Whether there is a zygote."""
        with self._changed:
            return bool(self._living())

    @property
    def failure(self) -> str | None:
        """Why there is no zygote; None while there is one, or one is being started."""
        if self._failure is None:
            return None
        with self._changed:
            return None if self._living() else self._failure

    def fork(self, kind: bytes, timeout_s: float) -> tuple[Zygote, Forked]:
        """A fork of the next zygote in turn, after the zygote itself; of the one after it when that has died.

        CollimateError `template_failed` when there is none and none could be started.
        """
        zygote = self._in_turn()
        while True:
            if zygote is None:
                zygote = self._pick()
            try:
                return zygote, zygote.fork(kind, timeout_s)
            except CollimateError:
                # One that died is noticed by that: to look before each fork would be a system call for nothing.
                if not zygote.is_dead():
                    raise
                zygote = None

    def _living(self) -> list[Zygote]:
        return [zygote for zygote in self._zygotes if not zygote.is_dead()]

    def _in_turn(self) -> Zygote | None:
        with self._changed:
            self._turn += 1
            return self._zygotes[self._turn % len(self._zygotes)] if self._zygotes else None

    def _pick(self) -> Zygote:
        """One that lives, as soon as there is one."""
        with self._changed:
            living = self._changed.wait_for(lambda: self._living() or self._failure, timeout=_REPLACEMENT_WAIT_S)
            if isinstance(living, str):
                raise template_failed(living)
            if not living:
                raise bringup_failed("there is no warm interpreter, and none could be started in time")
            return living[self._turn % len(living)]

    def close(self) -> None:
        """End all zygotes and the thread."""
        os.close(self._stopped)
        self._thread.join()
        os.close(self._stop)

    def _keep(self) -> None:
        failures = 0 if self._fill() else 1
        self._settled.set()
        young = 0
        while True:
            poll = select.poll()
            poll.register(self._stop, select.POLLIN | select.POLLHUP)
            owners = {zygote.control.fileno(): zygote for zygote in self._zygotes}
            for fd in owners:
                poll.register(fd, select.POLLHUP)
            short = len(self._zygotes) < self._count
            pause = max(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)], _REBIRTH_S[min(young, len(_REBIRTH_S) - 1)])
            events = [fd for fd, _ in poll.poll(pause * 1000 if short else None)]
            if self._stop in events:
                break
            for fd in events:
                log.warning("template %s: a warm interpreter died; starting another", self._names)
                with self._changed:
                    self._zygotes.remove(owners[fd])
                young = young + 1 if owners[fd].age_s() < _YOUNG_S else 0
                owners[fd].close()
            if short and not events:
                failures = 0 if self._fill() else failures + 1
        for zygote in self._zygotes:
            zygote.close()

    def _fill(self) -> bool:
        """Start those that are missing, side by side; False when one could not be."""
        starting: list[Zygote] = []
        try:
            plan = self._make_plan()
            # One by one: what was started before one that could not be is ended below.
            starting.extend(Zygote(plan) for _ in range(self._count - len(self._zygotes)))
            while starting:
                starting[0].wait_ready(stop=self._stop)
                self._tell(None, starting.pop(0))
        except (OSError, ValueError, IsolationUnavailable) as exc:
            for zygote in starting:
                zygote.close()
            self._report(str(exc))
            self._tell(str(exc), None)
            return False
        self._report(None)
        return True

    def _report(self, failure: str | None) -> None:
        """Say in the log what keeps this template down: when it begins, when it is another reason, when it is over."""
        if failure == self._said:
            return
        self._said = failure
        if failure is not None:
            log.error("template %s: a warm interpreter could not be started: %s", self._names, failure)
        else:
            log.warning("template %s: its warm interpreters are up now", self._names)

    def _tell(self, failure: str | None, zygote: Zygote | None) -> None:
        with self._changed:
            if zygote is not None:
                self._zygotes.append(zygote)
            self._failure = failure
            self._changed.notify_all()
