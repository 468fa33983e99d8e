"""The queued wiring: a hook's settings to a grader over the queue. Every adapter of a process shares its producers."""

from __future__ import annotations

import os
from typing import Protocol

from collimate_rl.hooks.forks import ForkLock
from collimate_rl.queue.batches import DEFAULT_WINDOW
from producer.grader import QueuedGrader
from producer.producer import Producer


class Served(Protocol):
    """What of the settings says which queue, and whose run."""

    @property
    def redis_url(self) -> str | None: ...
    @property
    def run(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def grader_version(self) -> str | None: ...


_graders: dict[tuple[int, str, str, str, str | None], QueuedGrader] = {}
_lock = ForkLock()


def queued_grader(settings: Served) -> QueuedGrader:
    """One producer, and with it one reader thread, per process, server, run and queue; ValueError where no server is
    named."""
    if settings.redis_url is None:
        raise ValueError("no Redis server is named: set COLLIMATE_REDIS_URL (for slime also args.collimate_redis_url)")
    key = (os.getpid(), settings.redis_url, settings.run, settings.queue, settings.grader_version)
    with _lock:
        grader = _graders.get(key)
        # what broke a producer may have passed, and with that one the run's batches would fail to the process' end
        broken = _graders.pop(key) if grader is not None and grader.broken else None
        if key not in _graders:
            producer = Producer(
                settings.redis_url,
                run=settings.run,
                queue=settings.queue,
                window=DEFAULT_WINDOW,
                grader_version=settings.grader_version,
            )
            _graders[key] = QueuedGrader(producer)
        made = _graders[key]
    if broken is not None:
        broken.close()
    return made


def groups_in_flight(_settings: object) -> int:
    """How many groups one loop has under way: as many as the window lets in."""
    return DEFAULT_WINDOW


def close_graders() -> None:
    """Closes this process' producers, as a trainer does at its end, or a test. The next call makes others."""
    with _lock:
        mine = [key for key in _graders if key[0] == os.getpid()]
        graders = [_graders.pop(key) for key in mine]
    for grader in graders:
        grader.close()
