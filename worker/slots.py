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

POLL_S = 0.005
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
        try:
            for number in range(count):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._files.append(os.open(directory / f"slot-{number}", flags, 0o600))
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
            try:
                fcntl.flock(self._files[number], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
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
        for descriptor in self._files:
            os.close(descriptor)
        self._files = []
        self._held = set()
