"""Who of a node's worker processes may take a batch: those that hold a turn, and there are few.

A process takes a turn before it listens for a bell, and gives it back once every candidate of its batch has begun. So a
node is at few batches that still have candidates to begin, one after the other as they were submitted, and a batch that
only waits for its slowest candidates holds nobody up: the slots that it leaves idle go to the next batch, in another
process. Each process without a turn has a batch, and with it a slot, or sleeps; with a process for each slot beside
those with a turn, no slot is idle while batches wait.

A turn is an exclusive `flock`, as a slot is: a killed holder gives it back by dying.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from worker.slots import try_lock


class Turns:
    """`count` turns in `directory`, of which this object holds one at most. Every call is safe in any thread."""

    def __init__(self, directory: Path, count: int) -> None:
        if count < 1:
            raise ValueError(f"a node needs at least one turn, not {count}")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._guard = threading.Lock()
        self._held: int | None = None
        self._files: list[int] = []
        try:
            for number in range(count):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._files.append(os.open(directory / f"turn-{number}", flags, 0o600))
        except BaseException:
            self.close()
            raise

    @property
    def held(self) -> bool:
        return self._held is not None

    def take(self) -> bool:
        """Hold a turn: the one that is held already, or a free one. False when others hold them all; never waits."""
        with self._guard:
            if self._held is None:
                self._held = next((file for file in self._files if try_lock(file)), None)
            return self._held is not None

    def give_back(self) -> None:
        """Let another process take a batch. Nothing where none is held."""
        with self._guard:
            held, self._held = self._held, None
            if held is not None:
                fcntl.flock(held, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files; a turn that was held is free then."""
        with self._guard:
            files, self._files, self._held = self._files, [], None
            for file in files:
                os.close(file)
