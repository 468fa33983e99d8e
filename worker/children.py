"""The worker processes of one supervisor: started, watched, started again with a bounded backoff, reaped.

Nothing here knows Redis. What is done about a death is the caller's; `reap` says who died.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.process import ProcessId

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
SETTLED_S = 10.0
"""A process that lived this long was healthy: its place is filled again at once, as after its first end."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """One living worker process. `name` is unique per start: `node-place-random`."""

    place: int
    name: str
    process: subprocess.Popen[bytes]
    identity: ProcessId | None
    started_at: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One worker process that is gone and reaped. `code` is negative for a signal, as in `subprocess`."""

    child: Child
    code: int
    lived_s: float
    restart_in_s: float


@dataclass
class _Place:
    failures: int = 0
    due_at: float = 0.0
    child: Child | None = None


class Children:
    """Keeps `count` places filled. Call it from the thread that the processes' life is tied to: the main thread.

    `name_for(place)` gives every start a name of its own; `spawn(name)` starts the process.
    """

    def __init__(
        self,
        count: int,
        spawn: Callable[[str], subprocess.Popen[bytes]],
        *,
        name_for: Callable[[int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawn = spawn
        self._name_for = name_for
        self._clock = clock
        self._places = [_Place() for _ in range(count)]

    @property
    def count(self) -> int:
        """How many places there are, filled or not."""
        return len(self._places)

    def widen(self, count: int) -> None:
        """Have `count` places from now on; never fewer than there are."""
        self._places += [_Place() for _ in range(count - len(self._places))]

    @property
    def living(self) -> Sequence[Child]:
        """The processes that were alive when last looked at."""
        # Read by other threads too: a place may be emptied between two reads.
        return [child for child in [place.child for place in self._places] if child is not None]

    def start_due(self) -> list[Child]:
        """Start a process in every empty place whose backoff is over."""
        started = []
        for number, place in enumerate(self._places):
            if place.child is None and place.due_at <= self._clock():
                name = self._name_for(number)
                try:
                    process = self._spawn(name)
                except OSError:  # no process or no memory to be had just now
                    place.failures = max(place.failures, 1)  # at once would be as hopeless
                    self._back_off(place)
                    continue
                place.child = Child(
                    place=number,
                    name=name,
                    process=process,
                    identity=ProcessId.of(process.pid),
                    started_at=self._clock(),
                )
                started.append(place.child)
        return started

    def reap(self) -> list[Ended]:
        """Collect every process that ended since the last call; never blocks."""
        ended = []
        for place in self._places:
            child = place.child
            if child is None:
                continue
            code = child.process.poll()
            if code is None:
                continue
            lived = self._clock() - child.started_at
            if lived >= SETTLED_S:
                place.failures = 0
            place.child = None
            wait = self._back_off(place)
            ended.append(Ended(child=child, code=code, lived_s=lived, restart_in_s=wait))
        return ended

    def _back_off(self, place: _Place) -> float:
        again = place.failures - 1
        # Where one process is the whole node, its batch waits for this start.
        wait = 0.0 if again < 0 else min(FIRST_BACKOFF_S * 2.0 ** min(again, 20), LONGEST_BACKOFF_S)
        place.failures += 1
        place.due_at = self._clock() + wait
        return wait

    def next_start_in(self) -> float | None:
        """Seconds until a place is due to be filled; None when all are."""
        waits = [place.due_at - self._clock() for place in self._places if place.child is None]
        return max(0.0, min(waits)) if waits else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every living process; one that is gone already is reaped by the next `reap`."""
        for child in self.living:
            child.process.send_signal(number)
