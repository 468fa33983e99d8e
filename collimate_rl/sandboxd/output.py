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

from collimate_rl.sandboxd.inside.channel import ChannelClosed, receive_report, report_in, wait_readable

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

    `pipe` is read without blocking ever; where it is None the output comes behind the report, whose `output` is how
    many bytes it has. `reports` is the socket on which the report arrives; `pidfd` is the fork's, where there is one.
    """

    def __init__(self, *, pipe: int | None, reports: socket.socket, pidfd: int | None, cap: int) -> None:
        self.output = Output(cap=cap)
        self._pipe = pipe
        self._reports = reports
        self._report: dict[str, Any] | None = None
        self._begun = b""
        """What has come of a report, where its output comes behind it."""
        self._missing = 0
        self._poll = select.poll()
        if pipe is not None:
            os.set_blocking(pipe, False)
            self._poll.register(pipe, select.POLLIN)
        self._poll.register(reports.fileno(), select.POLLIN)
        if pidfd is not None:
            self._poll.register(pidfd, select.POLLIN)
        self._open = True

    @property
    def is_closed(self) -> bool:
        """Whether there can be no more output: the pipe's end was read, so that every writer is gone; without a pipe,
        all of it has come, or its sender has let go of the socket."""
        return not self._open

    def until_report(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> dict[str, Any] | None:
        """The next report, or None when the deadline passed. ChannelClosed when the fork died without one."""
        while self._report is None or self._missing:
            left = deadline - clock()
            # What has been said counts, however late this thread came to read it.
            if left <= 0 and not wait_readable(self._reports, timeout_s=0):
                return None
            self._take_what_comes(max(left, 0.0) * 1000 + 1)
        report, self._report = self._report, None
        return report

    def _take_what_comes(self, timeout_ms: float) -> None:
        dead = False
        for fd, _ in self._poll.poll(timeout_ms):
            if fd == self._pipe:
                self._read_once()
            elif fd == self._reports.fileno():
                self._read_report()
                return
            else:
                dead = True
        if dead:
            # A report sent just before the death is still in the socket: ask once more, for that alone.
            if not wait_readable(self._reports, timeout_s=0):
                raise ChannelClosed
            self._read_report()

    def _read_report(self) -> None:
        if self._pipe is not None:
            self._report = receive_report(self._reports)[0]
            return
        # Nobody reads from this socket but this collector, and all that comes is one report with its output: one
        # read takes what is there of both.
        try:
            chunk = self._reports.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not chunk:
            raise ChannelClosed
        if self._report is None:
            self._begun += chunk
            found = report_in(self._begun)
            if found is None:
                return
            self._report, end = found
            self._missing = self._report.pop("output", 0)
            chunk, self._begun = self._begun[end:], b""
        chunk = chunk[: self._missing]
        self.output.add(chunk)
        self._missing -= len(chunk)
        self._open = self._missing > 0

    def until_closed(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> bool:
        """Read until `is_closed`; False when the deadline came first. Without a pipe nothing of it is kept."""
        poll = select.poll()
        poll.register(self._reports if self._pipe is None else self._pipe, select.POLLIN)
        while self._open:
            left = deadline - clock()
            if left <= 0:
                return False
            if poll.poll(left * 1000 + 1):
                if self._pipe is None:
                    self._skip_once()
                else:
                    self._read_once()
        return True

    def _skip_once(self) -> None:
        try:
            self._open = bool(self._reports.recv(_CHUNK, socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except OSError:
            # It was closed with something of ours unread.
            self._open = False

    def what_is_there(self) -> None:
        """Read what the pipe holds now; later writers (background processes) are not waited for."""
        assert self._pipe is not None
        held = struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, b"\0\0\0\0"))[0]
        while held > 0 and self._open:
            count = self._read_once()
            if count == 0:
                # Somebody inside opened the pipe and reads it, too: what was there is theirs.
                return
            held -= count

    def _read_once(self) -> int:
        assert self._pipe is not None
        try:
            chunk = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return 0
        if not chunk:
            self._open = False
            self._poll.unregister(self._pipe)
        self.output.add(chunk)
        return len(chunk)
