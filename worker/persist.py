"""Calls to the queue that outlast a short absence of the server."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from collimate_rl.errors import RedisUnavailable

OUTAGE_S = 60.0
"""How long a call is tried again while the server is away."""

T = TypeVar("T")


def persist(
    call: Callable[[], T],
    *,
    for_s: float = OUTAGE_S,
    stop: threading.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Make an idempotent call, again and again while the server is away; the last `RedisUnavailable` comes out.

    Gives up after `for_s` seconds, or once `stop` is set.
    """
    until = clock() + for_s
    while True:
        try:
            return call()
        except RedisUnavailable:
            if clock() >= until or (stop is not None and stop.is_set()):
                raise
            sleep(random.uniform(0.1, 0.6))
