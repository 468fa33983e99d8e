"""A thread that does one thing again and again, can be woken early, and is stopped for certain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from worker import logs


class Periodic:
    """Calls `work` every `every_s` seconds until stopped. An exception is logged and ends that round only."""

    def __init__(self, name: str, every_s: float, work: Callable[[], object]) -> None:
        self._every_s = every_s
        self._work = work
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Have the next round now."""
        self._wake.set()

    def end(self) -> None:
        """No further round. Doesn't wait for the one under way."""
        self._stopped = True
        self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """No further round; waits for the one under way. False when that took longer than `timeout_s`."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._work()
            except Exception:  # noqa: BLE001 - the loop outlives a fault in one round, and says so
                logs.emit(logs.LOOP_FAILED, logging.ERROR, loop=self._thread.name, exc_info=True)
            self._wake.wait(self._every_s)
            self._wake.clear()
