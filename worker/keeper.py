"""Keeps one claimed batch: renews its lease, and says when the work on it has to stop, and why.

A thread of its own, so that no exec and no slow case can let the lease run out. The batch job asks `stop` and, when
it returns, `reason`. Where the job doesn't return in time (execs under way end by their own limit only), `on_late` is
called from here, so that a cancelled batch is answered, and a batch that a stopping worker can't finish is released;
a stopping worker then needn't wait for execs whose batch is closed (`leave`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from enum import Enum

from collimate_rl.errors import CollimateError, RedisUnavailable
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Grant, Renewed
from worker import logs
from worker.outage import Outage

TICK_S = 0.1
EXIT_STUCK = 70
PATIENCE_S = 0.5
"""How long the job may take to return by itself once it was told to stop."""
STUCK_S = 300.0
"""A job that hasn't returned so long after it was told to stop, plus the batch's own time limit, never will."""


_THREADS = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="keeper")
"""One per batch under way; kept for the next batch, which so waits for no thread to start."""


class Reason(Enum):
    """Why the work on a batch stops before its end."""

    FENCED = "fenced"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SHUTDOWN = "shutdown"
    DRAINING = "draining"


class Fenced(Exception):
    """Somebody else owns the batch: nothing more may be written, and nothing deleted."""


class Keeper:
    """One claimed batch's watch. `stopping_for()` says for how many seconds this worker has been stopping, or None."""

    def __init__(
        self,
        queue: BatchQueue,
        grant: Grant,
        *,
        grace_s: float,
        stopping_for: Callable[[], float | None],
        cancel_asked: Callable[[], bool],
        on_tick: Callable[[], None],
        on_late: Callable[[Reason], object],
        leave: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._grant = grant
        self._grace_s = grace_s
        self._stopping_for = stopping_for
        self._cancel_asked = cancel_asked
        self._on_tick = on_tick
        self._on_late = on_late
        self._leave = leave
        self._clock = clock
        self._ended = threading.Event()
        self.stop = threading.Event()
        """Set when no further exec may start."""
        self.reason: Reason | None = None
        self.deadline = clock() + grant.deadline_in_s
        """When the batch expires, on `clock`; moved by what each renewal says."""
        self.exec_limit_s = 0.0
        """How long one exec of the batch may take: a job that stops may need as long."""
        self._renewed_at = clock()
        self._outage = Outage(clock=clock)
        self._halted_at = 0.0
        self._late = False
        self._stuck = False
        self._watch: Future[None] | None = None

    def __enter__(self) -> Keeper:
        self._watch = _THREADS.submit(self._run)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        if self._watch is not None:
            wait([self._watch])

    def halt(self, reason: Reason) -> None:
        """Stop the work, for the first reason given; being fenced outranks all."""
        if self.reason is None:
            self._halted_at = self._clock()
        if self.reason is None or reason is Reason.FENCED:
            self.reason = reason
        self.stop.set()

    def _run(self) -> None:
        while not self._ended.wait(TICK_S):
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - a watch that dies would let the lease run out without a word
                logs.emit(logs.LOOP_FAILED, logging.ERROR, loop=f"keeper-{self._grant.hold.k[:8]}", exc_info=True)

    def tick(self) -> None:
        """One look at everything that can end the work."""
        now = self._clock()
        self._on_tick()
        if now - self._renewed_at >= self._queue.timing.renew_every_ms / 1000 and self.reason is not Reason.FENCED:
            self._renew(now)
        if self._cancel_asked():
            self.halt(Reason.CANCELLED)
        if now >= self.deadline:
            self.halt(Reason.EXPIRED)
        stopping = self._stopping_for()
        if stopping is not None and stopping >= self._grace_s:
            self.halt(Reason.SHUTDOWN)
        if self.reason is not None:
            self._watch_the_end(self.reason, now - self._halted_at)
            if self._late and stopping is not None:
                self._leave()

    def _renew(self, now: float) -> None:
        try:
            reply = self._queue.renew(self._grant.hold)
        except RedisUnavailable as error:
            # Nobody takes over before the queue's clock has settled again, so keep trying, soon.
            self._renewed_at = now - self._queue.timing.renew_every_ms / 1000 + 0.5
            self._outage.report(logs.RENEW_FAILED, k=self._grant.hold.k, error=error.message)
            return
        except CollimateError as error:
            self._renewed_at = now
            self._outage.report(logs.RENEW_FAILED, logging.ERROR, k=self._grant.hold.k, error=error.message)
            return
        self._renewed_at = now
        self._outage.over()
        if reply.word is Renewed.FENCED:
            self.halt(Reason.FENCED)
        elif reply.word is Renewed.OVERDUE:
            self.halt(Reason.EXPIRED)
        else:
            self.deadline = now + reply.deadline_in_s
            if reply.cancelled:
                self.halt(Reason.CANCELLED)

    def _watch_the_end(self, reason: Reason, halted_s: float) -> None:
        if halted_s >= PATIENCE_S and not self._late:
            self._on_late(reason)
            self._late = True
        if halted_s >= self.exec_limit_s + STUCK_S and not self._stuck:
            self._stuck = True
            logs.emit(logs.STUCK_EXIT, logging.ERROR, k=self._grant.hold.k, reason=reason.value)
            self._give_up()

    def _give_up(self) -> None:
        """End this process: its supervisor starts another. Apart so that a test can stand in."""
        os._exit(EXIT_STUCK)
