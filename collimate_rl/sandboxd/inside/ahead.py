"""Forks made before they are asked for: each lies in its namespaces, laid out, and waits for its channel.

They are made while nothing else is asked of the zygote, so that a group which arrives after a pause finds them there;
under load there are none, and none is made beside work that somebody waits for.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Callable, NoReturn, Optional

from . import syscalls
from .channel import is_readable, pass_descriptor, receive_packet

MOST = 8
"""Per zygote; each holds about as much memory as a session of a small template."""
QUIET_MS = 50
"""Without a request or an end for so long, there is time for one."""
_PAUSE_S = 5.0
"""After one that died, or could not be made: something is short."""
_HANDED_OVER = 3
"""The one descriptor that a waiting fork keeps."""


class Waiting:
    """A fork that waits; `first` and `pidfd` as of any fork."""

    def __init__(self, pid: int, pidfd: int, first: int, handover: socket.socket) -> None:
        self.pid, self.pidfd, self.first = pid, pidfd, first
        self._handover = handover

    def begin(self, channel: socket.socket) -> None:
        """Give it its channel. OSError when it is gone."""
        with self._handover:
            pass_descriptor(self._handover, b"c", channel.fileno())

    def forget(self) -> None:
        """Let it end, should it live: it ends with the other end of its handover."""
        self._handover.close()
        syscalls.kill_by_pidfd(self.first)


class ForksAhead:
    """Those of one zygote.

    `make` forks, calls what it is given in the fork, and returns its pid, pidfd and placeholder. There `lay_out`
    prepares what needs no request, and `become` goes on once there is a channel.
    """

    def __init__(
        self,
        *,
        make: Callable[[Callable[[], NoReturn]], tuple[int, int, int]],
        lay_out: Callable[[], None],
        become: Callable[[socket.socket], NoReturn],
        max_fd: int,
    ) -> None:
        self._make = make
        self._lay_out = lay_out
        self._become = become
        self._max_fd = max_fd
        self._waiting: list[Waiting] = []
        self._not_before = 0.0
        self._asked = False

    def quiet_ms(self) -> Optional[int]:
        """How long the zygote may sleep before there is something to do here; None for as long as it likes."""
        if not self._asked or len(self._waiting) >= MOST:
            return None
        return max(QUIET_MS, int((self._not_before - time.monotonic()) * 1000))

    def take(self) -> Optional[Waiting]:
        """One that lives."""
        self._asked = True
        while self._waiting:
            # The one that has waited longest is surely laid out.
            taken = self._waiting.pop(0)
            if not is_readable(taken.pidfd):
                return taken
            taken.forget()
        return None

    def add(self) -> None:
        """Make one more, if it can be made."""
        if time.monotonic() < self._not_before:
            return
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            self._pause()
            return
        with theirs:
            try:
                pid, pidfd, first = self._make(lambda: self._wait(theirs))
            except OSError:
                ours.close()
                self._pause()
                return
        self._waiting.append(Waiting(pid, pidfd, first, ours))

    def _wait(self, handover: socket.socket) -> NoReturn:
        """In the fork. It holds nothing of what the zygote has open meanwhile."""
        try:
            syscalls.keep_one(handover.fileno(), _HANDED_OVER, self._max_fd)
            self._lay_out()
            with socket.socket(fileno=_HANDED_OVER) as mine:
                word, channel = receive_packet(mine, 1)
            if word and channel >= 0:
                self._become(socket.socket(fileno=channel))
        finally:
            # The zygote sees its end.
            os._exit(1)

    def lost(self, pidfd: int) -> None:
        """It ended while it waited."""
        for waiting in [each for each in self._waiting if each.pidfd == pidfd]:
            self._waiting.remove(waiting)
            waiting.forget()
            self._pause()

    def _pause(self) -> None:
        self._not_before = time.monotonic() + _PAUSE_S
