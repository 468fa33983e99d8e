"""Waiting for SIGTERM and SIGINT without doing anything inside a signal handler."""

from __future__ import annotations

import os
import select
import signal
from types import TracebackType
from typing import Any


class StopSignals:
    """A context in which SIGTERM and SIGINT are counted through a pipe; for the main thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> StopSignals:
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, _noted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, other: int | None = None) -> None:
        """Until one more signal came, or the descriptor `other` is readable or closed at its other end."""
        # By poll: a daemon with many sessions has descriptors above 1023, where select ends.
        poll = select.poll()
        for fd in (self._read,) if other is None else (self._read, other):
            poll.register(fd, select.POLLIN)
        if self._read in dict(poll.poll()):
            os.read(self._read, 1)


def _noted(*_: object) -> None:
    """The wakeup descriptor has been written to; that is all."""
