"""How many execs run at once. Whoever finds no place waits in line, and that wait is no part of the exec's time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from collimate_rl.errors import CollimateError


def draining() -> CollimateError:
    """503: the daemon is going away; nothing was done."""
    return CollimateError("the daemon is draining: it takes no new work", 503, "draining")


def at_capacity(message: str) -> CollimateError:
    """503: refused before forking; nothing was done."""
    return CollimateError(message, 503, "at_capacity")


def no_descriptors(exc: OSError) -> CollimateError:
    """`at_capacity` for a step that the kernel refused the daemon: of descriptors there are no more, as a rule."""
    return at_capacity(f"the daemon has no room for one more exec: {exc.strerror}; raise its limit (ulimit -n)")


class Admission:
    """`max_inflight` places, handed out in the order of asking; waiting ends after `wait_s` with `at_capacity`."""

    def __init__(self, max_inflight: int, wait_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_inflight = max_inflight
        self._wait_s = wait_s
        self._clock = clock
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: deque[_Ticket] = deque()
        self._running = 0
        self._draining = False

    @property
    def running(self) -> int:
        """Execs that hold a place."""
        return self._running

    @property
    def queued(self) -> int:
        """Execs that wait for one."""
        return len(self._waiting)

    @property
    def is_draining(self) -> bool:
        """Whether new work is refused."""
        return self._draining

    def place(self, *, hung_up: Callable[[], bool] | None = None, until: float | None = None) -> _Place:
        """A context that holds a place. CollimateError `at_capacity` when none came free in time, `draining` when none
        will.

        `hung_up` is asked after a wait: whoever is gone by then needs no place, which goes to the next in line.
        `until`, by the clock, is the end of a wait that began before.
        """
        return _Place(self, hung_up, until)

    def last_moment(self) -> float:
        """Until when whoever comes now waits."""
        return self._clock() + self._wait_s

    def enter(self, until: float | None = None) -> bool:
        """Take a place; whether that took a wait. `leave` gives it back."""
        with self._lock:
            if self._draining:
                raise draining()
            if self._running < self.max_inflight and not self._waiting:
                self._running += 1
                return False
            ticket = _Ticket()
            self._waiting.append(ticket)
        ticket.wait(self._wait_s if until is None else max(0.0, until - self._clock()))
        with self._lock:
            if ticket.granted:
                return True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if self._draining:
                raise draining()
        raise at_capacity(f"as many execs as may be are under way, and no place came free within {self._wait_s:g} s")

    def leave(self) -> None:
        """Give the place to the next in line."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().grant()
            else:
                self._running -= 1
                if self._running == 0:
                    self._idle.notify_all()

    def drain(self) -> None:
        """Refuse new work, and those in line too; what runs goes on."""
        with self._lock:
            self._draining = True
            while self._waiting:
                self._waiting.popleft().decide()

    def wait_idle(self, timeout_s: float) -> bool:
        """Until nothing runs; False when that took too long."""
        with self._lock:
            return self._idle.wait_for(lambda: self._running == 0, timeout=timeout_s)


class _Place:
    """What `place` gives. A class of its own costs a fraction of what a generator does, which every exec would pay."""

    __slots__ = ("_admission", "_hung_up", "_until")

    def __init__(self, admission: Admission, hung_up: Callable[[], bool] | None, until: float | None) -> None:
        self._admission = admission
        self._hung_up = hung_up
        self._until = until

    def __enter__(self) -> None:
        if self._admission.enter(self._until) and self._hung_up is not None and self._hung_up():
            self._admission.leave()
            raise at_capacity("the caller hung up while its exec waited for a place: nothing was run")

    def __exit__(self, *_: object) -> None:
        self._admission.leave()


class _Ticket:
    """Decided once. A lock that is released tells it: an event would make three objects for each exec."""

    def __init__(self) -> None:
        self._undecided = threading.Lock()
        self._undecided.acquire()
        self.granted = False

    def wait(self, timeout_s: float) -> None:
        self._undecided.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def decide(self) -> None:
        self._undecided.release()

    def grant(self) -> None:
        self.granted = True
        self.decide()
