"""Locks that a forked child finds open: a thread of the parent that held one does not exist there to let it go."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkLock:
    """A reentrant lock, for `with`. In a forked child it is held by nobody, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _renew(self) -> None:
        self._lock = threading.RLock()


_all: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_all):
        lock._renew()


os.register_at_fork(after_in_child=_renew_all)
