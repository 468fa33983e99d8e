"""A node's sandbox slots as file locks, shared by all its worker processes; a killed holder frees its own by dying.

A slot is an exclusive `flock` on one file. The kernel drops it with the last descriptor, so nothing has to be cleaned
up after kill -9. Locks belong to an open file, not to a thread: which slots this process holds is kept beside them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

QUIET_WAIT_S = 30.0
"""How long somebody waits for a quiet slot before any slot will do."""
POLL_S = 0.01
"""How long a waiting process sleeps before it looks again for a slot that ANOTHER process freed."""


def slots_directory(state_dir: str, node: str) -> Path:
    """Where a node's slots are, shared by its processes."""
    return Path(state_dir) / node / "slots"


class SlotTimeout(TimeoutError):
    """No slot came free before the deadline, or the caller asked to stop."""


class Slots:
    """`count` slots in `directory`; one object per process, used by all its threads.

    `on_held` hears how many it holds, whenever that changes.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_held: Callable[[int], None] = lambda _count: None,
    ) -> None:
        if count < 1:
            raise ValueError(f"a node needs at least one slot, not {count}")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._clock = clock
        self._on_held = on_held
        self._free_here = threading.Condition()
        self._turn = threading.Lock()
        self._held: set[int] = set()
        self._files: list[int] = []
        self._quiet = -1
        self._quiet_turn = threading.Lock()
        try:
            for number in range(count):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._files.append(os.open(directory / f"slot-{number}", flags, 0o600))
            self._quiet = os.open(directory / "quiet", flags, 0o600)
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        return len(self._files)

    @property
    def held(self) -> int:
        """How many slots this process holds just now."""
        return len(self._held)

    @contextmanager
    def slot(self, *, until: float, stop: threading.Event | None = None) -> Iterator[float]:
        """Hold one slot; yields the seconds it took to get it. `until` is on the clock that the object was given.

        Raises `SlotTimeout` when there is none before `until`, or when `stop` is set meanwhile.
        """
        started = self._clock()
        number = self._acquire(until, stop)
        try:
            yield self._clock() - started
        finally:
            self._release(number)

    @contextmanager
    def quiet_slot(
        self, *, until: float, others: int, stop: threading.Event | None = None, patience_s: float = QUIET_WAIT_S
    ) -> Iterator[float]:
        """As `slot`, while at most `others` further slots of the node are taken, by whatever process.

        Takes the rest as they come free, and keeps them. One at a time per node does; whoever waits for that, or for
        the rest, longer than `patience_s`, goes on with what there is.
        """
        started = self._clock()
        with self.slot(until=until, stop=stop):
            end = min(until, self._clock() + patience_s)
            with self._kept_quiet(self.count - 1 - others, end, stop):
                yield self._clock() - started

    @contextmanager
    def _kept_quiet(self, wanted: int, end: float, stop: threading.Event | None) -> Iterator[None]:
        """Hold `wanted` further slots, or none where they can't be had before `end`."""

        def waits() -> bool:
            return self._clock() < end and not (stop is not None and stop.is_set())

        if wanted < 1 or not self._quiet_turn.acquire(timeout=max(0.0, end - self._clock())):
            yield
            return
        taken: list[int] = []
        try:
            self._collect(taken, wanted, waits)
            if len(taken) < wanted:
                self._give_back(taken)
            yield
        finally:
            self._give_back(taken)
            fcntl.flock(self._quiet, fcntl.LOCK_UN)
            self._quiet_turn.release()

    def _collect(self, taken: list[int], wanted: int, waits: Callable[[], bool]) -> None:
        while waits() and not try_lock(self._quiet):
            time.sleep(POLL_S)
        # With the turn nobody else of this process takes what comes free meanwhile.
        while not self._turn.acquire(timeout=0.05):
            if not waits():
                return
        try:
            while len(taken) < wanted and waits():
                with self._free_here:
                    number = self._try_each()
                    if number is None:
                        self._free_here.wait(POLL_S)
                    else:
                        taken.append(number)
        finally:
            self._turn.release()

    def _give_back(self, taken: list[int]) -> None:
        while taken:
            self._release(taken.pop())

    def _acquire(self, until: float, stop: threading.Event | None) -> int:
        # One thread per process looks for a slot, the others queue behind it: first come, first served, and two dozen
        # threads don't hammer the same files.
        while not self._turn.acquire(timeout=0.05):
            self._check(until, stop)
        try:
            while True:
                self._check(until, stop)
                with self._free_here:
                    number = self._try_each()
                    if number is not None:
                        return number
                    self._free_here.wait(POLL_S)
        finally:
            self._turn.release()

    def _check(self, until: float, stop: threading.Event | None) -> None:
        if stop is not None and stop.is_set():
            raise SlotTimeout("asked to stop while waiting for a sandbox slot")
        if self._clock() >= until:
            raise SlotTimeout("no sandbox slot came free in time")

    def _try_each(self) -> int | None:
        first = random.randrange(len(self._files))
        for offset in range(len(self._files)):
            number = (first + offset) % len(self._files)
            if number in self._held:
                continue
            if not try_lock(self._files[number]):
                continue
            self._held.add(number)
            self._on_held(len(self._held))
            return number
        return None

    def _release(self, number: int) -> None:
        with self._free_here:
            self._held.discard(number)
            self._on_held(len(self._held))
            fcntl.flock(self._files[number], fcntl.LOCK_UN)
            self._free_here.notify()

    def close(self) -> None:
        """Close the files; whatever this process still held is free then."""
        for descriptor in [*self._files, self._quiet]:
            if descriptor >= 0:
                os.close(descriptor)
        self._files = []
        self._quiet = -1
        self._held = set()


def try_lock(descriptor: int) -> bool:
    """Lock an open file for this process; False when another has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True
