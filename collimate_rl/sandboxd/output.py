"""Collecting one exec's merged output while it runs, and noticing how it ends."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from collimate_rl.sandboxd.inside.channel import ChannelClosed, receive_report, wait_readable

_CHUNK = 1 << 16


@dataclass(kw_only=True)
class Output:
    """Merged output up to a cap; what is above it is counted and dropped."""

    cap: int
    data: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def add(self, chunk: bytes) -> None:
        """Keep what fits."""
        room = self.cap - len(self.data)
        if len(chunk) > room:
            self.truncated = True
            chunk = chunk[:room]
        self.data += chunk


class Collector:
    """Reads an exec's pipe until its report comes, its fork dies, or its time is over.

    `pipe` is read without blocking ever; `reports` is the socket on which the report arrives; `pidfd` is the fork's,
    where there is one.
    """

    def __init__(self, *, pipe: int, reports: socket.socket, pidfd: int | None, cap: int) -> None:
        self.output = Output(cap=cap)
        self._pipe = pipe
        self._reports = reports
        self._poll = select.poll()
        os.set_blocking(pipe, False)
        self._poll.register(pipe, select.POLLIN)
        self._poll.register(reports.fileno(), select.POLLIN)
        if pidfd is not None:
            self._poll.register(pidfd, select.POLLIN)
        self._open = True

    @property
    def is_closed(self) -> bool:
        """Whether the pipe's end was read: every writer is gone."""
        return not self._open

    def until_report(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> dict[str, Any] | None:
        """The report, or None when the deadline passed. ChannelClosed when the fork died without one."""
        dead = False
        while True:
            left = deadline - clock()
            if left <= 0:
                return None
            for fd, _ in self._poll.poll(left * 1000 + 1):
                if fd == self._pipe:
                    self._read_once()
                elif fd == self._reports.fileno():
                    return receive_report(self._reports)[0]
                else:
                    dead = True
            if dead:
                # A report sent just before the death is still in the socket: ask once more, for that alone.
                if wait_readable(self._reports, timeout_s=0):
                    return receive_report(self._reports)[0]
                raise ChannelClosed

    def until_closed(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> bool:
        """Read to the pipe's end (every writer is gone); False when the deadline came first."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while self._open:
            left = deadline - clock()
            if left <= 0:
                return False
            if poll.poll(left * 1000 + 1):
                self._read_once()
        return True

    def what_is_there(self) -> None:
        """Read what the pipe holds now; later writers (background processes) are not waited for."""
        held = struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, b"\0\0\0\0"))[0]
        while held > 0 and self._open:
            count = self._read_once()
            if count == 0:
                # Somebody inside opened the pipe and reads it, too: what was there is theirs.
                return
            held -= count

    def _read_once(self) -> int:
        try:
            chunk = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self._open = False
            self._poll.unregister(self._pipe)
        self.output.add(chunk)
        return len(chunk)
