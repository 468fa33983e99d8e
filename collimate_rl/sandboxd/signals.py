"""Waiting for SIGTERM and SIGINT without doing anything inside a signal handler."""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType
from typing import Any


class StopSignals:
    """A context in which SIGTERM and SIGINT are counted through a pipe; for the main thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._lock = threading.Lock()
        self._closed = False

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
        with self._lock:
            os.close(self._read)
            os.close(self._write)
            self._closed = True

    def wait(self) -> None:
        """Until one more signal came, or another thread called `wake`."""
        os.read(self._read, 1)

    def wake(self) -> None:
        """End one wait, as a signal would. No descriptor is needed for it: a full daemon can be stopped, too."""
        with self._lock:
            if not self._closed:
                try:
                    os.write(self._write, b"\0")
                except BlockingIOError:
                    # It is full of signals that nobody has waited for.
                    pass


def _noted(*_: object) -> None:
    """The wakeup descriptor has been written to; that is all."""
