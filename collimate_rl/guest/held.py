"""The runner with its holder outside: the candidate is its sandbox's first process, and is held from beyond it.

For whoever keeps sandboxes and knows the runner's text. A job with `sole` and no `id` never enters the sandbox then:
the holders of many run in one process elsewhere.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, NoReturn, Optional, Set, Tuple

from collimate_rl.guest.candidate import candidate
from collimate_rl.guest.holder import TAIL, Holder
from collimate_rl.guest.nursery import wake_up
from collimate_rl.guest.rehearsal import take_streams
from collimate_rl.guest.runner import perform, report

SUDDEN, PIECE = 64, 1 << 15  # pieces that a candidate may send in one go, and more of them where values may be large
PAUSE_S = 0.0005

BEAT_S, STILL_S = 0.25, 0.75  # a beat that is so much too late is no scheduler's doing: this process stood still

flooding: Set[Any] = set()  # those whose candidate is read slowly


class Pulse:
    """Knows for how long this process has stood still: stopped, frozen, paused with its machine, or starved."""

    def __init__(self) -> None:
        self._beat = (0.0, 0.0)  # seconds stood still so far, and when that was; at once, since others read them
        self._starting = threading.Lock()

    def begin(self) -> None:
        """Beat from now on, if it doesn't already."""
        with self._starting:
            if not self._beat[1]:
                self._beat = (0.0, time.monotonic())
                try:
                    threading.Thread(target=self._run, daemon=True).start()
                except RuntimeError:
                    self._beat = (0.0, 0.0)  # no room for a thread now

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_S)
            self._beat = (self.still(), time.monotonic())

    def still(self) -> float:
        """Seconds, up to now."""
        before, at = self._beat
        late = time.monotonic() - at - BEAT_S
        return before + late if at and late > STILL_S else before


pulse = Pulse()


class Outside(Holder):
    """Of the process `pid` at the other end of `frames`, which prints into `out`.

    `link` becomes readable when it has ended, and `ending` then gives the line that `reap` would give, or raises
    OSError where nobody knows. `strike` kills it.
    """

    def __init__(
        self,
        keep: bool,
        link: socket.socket,
        pid: int,
        frames: socket.socket,
        out: int,
        ending: Callable[[], bytes],
        strike: Callable[[], None],
        born: float,
    ) -> None:
        Holder.__init__(self, link, keep, pid)
        self.frames, self.out, self.born = frames, out, born
        self.ending, self.strike = ending, strike
        self.struck = False
        self.pieces = 0
        self.still = pulse.still()

    def spawn(self, stdin: Optional[str] = None) -> None:
        """It is there already, once."""
        self.pid = self.sole
        self.frames.setblocking(False)
        self.out = os.dup(self.out)
        self.fds = [self.out]
        os.set_blocking(self.out, False)
        self.poll = select.poll()
        for fd in (self.frames.fileno(), self.link.fileno(), self.out):
            self.poll.register(fd, select.POLLIN)
        self.answered = [(self.frames.fileno(), select.POLLIN)]

    def line(self) -> Optional[bytes]:
        return self.ending()

    def watch(self, data: memoryview, until: float, most: int, whole: bool) -> str:
        """As ever, and by the shortest way where the answer is the next thing that comes, in one piece."""
        self.pieces = 0
        flooding.discard(self)
        try:
            data = data[self.frames.send(data) :]
            left = until - time.monotonic()
            if not data and left > 0 and self.poll.poll(left * 1000 + 1) == self.answered:
                self.pending += os.read(self.frames.fileno(), PIECE)
                if self.pending[-1:] == b"\n" and len(self.pending) <= most + TAIL:
                    return "frame"
        except OSError:
            pass  # it has closed its end, or there is no room yet
        return Holder.watch(self, data, until, most, whole)

    def take(self, fd: int, most: int) -> Optional[bool]:
        """As ever, and slowly where there is no end: all holders share one interpreter, and none may have it all."""
        self.pieces += 1
        if self.pieces > SUDDEN + most // PIECE:
            flooding.add(self)
            time.sleep(PAUSE_S * len(flooding))
        return Holder.take(self, fd, most)

    def end(self, late: bool = False) -> None:
        """As ever. While this process stood still the candidate waited for it, or might have: as for a processor."""
        known = len(self.late)
        Holder.end(self, late)
        for each in self.late[known:]:
            each[1] = max(0, each[1]) + (pulse.still() - self.still) * 1000

    def kill(self) -> None:
        if self.pid > 0 and self.ended is None:
            self.struck = True
            self.strike()


def hold(job: Dict[str, Any], *places: Any) -> Tuple[str, Optional[int]]:
    """The report on a job, and the wait status of a candidate that ended before it was killed here, else None.

    `places` are an `Outside`'s, after `keep`; its `frames` is closed here. ProcessLookupError when the candidate went
    and nobody knows how.
    """
    pulse.begin()
    holder = Outside(job["prints"], *places)
    try:
        mark, job["until"] = job.pop("mark"), holder.born + job["total_s"]
        body = perform(holder, job, lambda _: None)  # its sandbox has no place of ours
    finally:
        flooding.discard(holder)
        holder.pid = 0
        holder.end()
    if holder.lost:
        raise ProcessLookupError("the candidate is gone")
    ended = None if holder.struck or holder.ended is None else int(holder.ended.split()[0])
    return report(mark, body, "ran"), ended


def alone(fd: int) -> NoReturn:
    """Become the candidate whose holder is at the other end of the socket `fd`."""
    try:
        wake_up(None)
        take_streams()
        os._exit(candidate(fd))
    finally:
        os._exit(1)
