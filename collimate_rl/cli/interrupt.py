"""Ctrl-C and SIGTERM as a flag that a command checks at its safe points, so that it stops what it started in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """While entered (in the main thread), a stop signal is a `SystemExit` of 128 + its number: for commands that have
    nothing to stop in order, only to clean up.
    """

    def leave(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    previous = {signum: signal.signal(signum, leave) for signum in STOP_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


class Interrupted(Exception):
    """The command was asked to stop; `exit_code` is the shell's 128 + signal number."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum


class Interrupt:
    """While entered (in the main thread), SIGINT and SIGTERM only set a flag; `check` raises `Interrupted` then."""

    def __init__(self) -> None:
        self._caught: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for signum in STOP_SIGNALS:
            self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._caught = self._caught or signum

    def check(self) -> None:
        """Raises `Interrupted` once a signal came."""
        if self._caught is not None:
            raise Interrupted(self._caught)
