"""The signals that a supervisor lives by, as something to wait for."""

from __future__ import annotations

import select
import signal
import socket
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Stop signals and the ends of children, seen through one file that the main thread waits on."""

    def __init__(self) -> None:
        self.stops = 0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._earlier_wakeup = -1
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._earlier_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            self._earlier[number] = signal.signal(number, self._on_stop)
        self._earlier[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._earlier_wakeup)
        self._reader.close()
        self._writer.close()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1

    def wait(self, seconds: float) -> bool:
        """Until a signal comes, at most so long. True when a stop was asked for."""
        select.select([self._reader], [], [], max(0.0, seconds))
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass  # emptied
        return self.stops > 0
