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
import time
from collections.abc import Callable
from pathlib import Path

from collimate_rl.queue.rq_edge import Gate
from worker.slots import try_lock

WAIT_S = 5.0
"""How long a process waits for a turn before rq says again that it is there."""
LOOK_S = (0.002, 0.05)
"""Between two looks for a turn: at first, and at most."""


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


def gate_of(
    turns: Turns,
    opened: Callable[[], Gate],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Gate:
    """GO with a turn held; what `opened` says where that is something else, and then no turn is held.

    LATER when no turn came free for `WAIT_S`. `opened` is asked before each look, so that a stop ends the wait.
    """
    until, pause_s = clock() + WAIT_S, LOOK_S[0]
    while True:
        gate = opened()
        if gate is not Gate.GO:
            turns.give_back()
            return gate
        if turns.take():
            return Gate.GO
        if clock() >= until:
            return Gate.LATER
        sleep(pause_s)
        pause_s = min(1.5 * pause_s, LOOK_S[1])
