"""Waiting for a coroutine in a plain thread, also in one that runs a loop: it runs on a loop of this process' own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from collimate_rl.hooks.forks import ForkLock

T = TypeVar("T")

_lock = ForkLock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. An interrupted wait (KeyboardInterrupt) cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    """One loop per process, on a daemon thread; a forked child gets its own, since threads don't survive a fork."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="collimate-hooks", daemon=True).start()
        return loop
