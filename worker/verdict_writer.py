"""The verdicts of one batch on their way to the queue: each by itself, or several together that come within a moment.

A verdict that waits is lost with its process, and its candidate graded again: that is what `held_s` may cost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.protocol import Verdict
from collimate_rl.queue import faults
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.endings import Packed, end_with, write_together
from collimate_rl.queue.replies import Hold, PublishReply, Written
from worker.persist import persist

HELD_S = 0.05
"""How long a verdict may wait for others; the last of a batch's verdicts never does."""
HELD_BYTES = 256 * 1024
"""Above this, those that wait are written at once."""


class Outcome(NamedTuple):
    """What came of a verdict: the queue's word, or why the queue will not have it."""

    verdict: Verdict
    came: Written | Exception


class VerdictWriter:
    """Used by all threads of one batch. What came of each verdict is kept until somebody asks for the `next_outcome`.

    held_s -- how long a verdict may wait; 0 writes each at once, in the thread that brings it.
    on_stands -- called with the index of each candidate whose verdict stands, before the call that wrote it returns.
    """

    def __init__(
        self,
        queue: BatchQueue,
        hold: Hold,
        *,
        held_s: float,
        on_stands: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._hold = hold
        self._held_s = held_s
        self._on_stands = on_stands
        self._clock = clock
        self._sending = threading.Lock()
        self._guard = threading.Lock()
        self._waiting: list[Packed] = []
        self._since = 0.0
        """When the first of these came."""
        self._outcomes: deque[Outcome] = deque()
        self._failures: list[RedisUnavailable] = []
        self.fenced = False
        """Whether a verdict was refused since the batch is somebody else's."""

    def put(self, verdict: Verdict) -> None:
        """Write a verdict, or have it wait. ValueError for none; `RedisUnavailable` when the server stays away."""
        packed = Packed.of(verdict)
        if not self._held_s:
            self._keep(self._came([packed], self._sent([packed])))
        elif self._add(packed):
            self.flush()
        else:
            faults.reach("verdict_waits")

    def end(self, verdict: Verdict) -> PublishReply | None:
        """Write a batch's last verdict and all that wait, and ask for the answer; None where one can't be written."""
        packed = Packed.of(verdict)
        replies: list[PublishReply] = []

        def send(verdicts: Sequence[Packed]) -> list[Written]:
            written, reply = end_with(self._queue, self._hold, verdicts)
            replies[:] = [reply]
            return written

        with self._sending:
            self._add(packed)
            self._send_waiting(send)
        return replies[0] if replies else None

    def flush(self) -> None:
        """Write what waits. `RedisUnavailable` when the server stays away; then it waits on."""
        failures = len(self._failures)
        with self._sending:
            if len(self._failures) > failures:  # in the call that this one waited for: it has been tried long enough
                raise self._failures[-1]
            self._send_waiting()

    def flush_due(self) -> list[Outcome]:
        """Write what has waited for long enough, in one try, raising nothing: for a thread that has more to see to.

        What came of these is returned, and kept for nobody else.
        """
        with self._guard:
            due = bool(self._waiting) and self._clock() - self._since >= self._held_s
        if not due or not self._sending.acquire(blocking=False):
            return []
        try:
            with self._guard:
                verdicts = list(self._waiting)
            return self._written(verdicts, write_together(self._queue, self._hold, verdicts)) if verdicts else []
        except (QueueError, ValueError):
            return []  # they wait on, and whoever writes next meets it
        finally:
            self._sending.release()

    def next_outcome(self) -> Outcome | None:
        """What came of a verdict, each once, in the order in which they were written; None when all were asked for."""
        with self._guard:
            return self._outcomes.popleft() if self._outcomes else None

    def _add(self, packed: Packed) -> bool:
        """Whether those that wait are to be written now."""
        with self._guard:
            now = self._clock()
            if not self._waiting:
                self._since = now
            self._waiting.append(packed)
            size = sum(len(each.blob) for each in self._waiting)
            return now - self._since >= self._held_s or size >= HELD_BYTES

    def _send_waiting(self, send: Callable[[Sequence[Packed]], list[Written]] | None = None) -> None:
        with self._guard:
            verdicts = list(self._waiting)
        if not verdicts:
            return
        try:
            came = self._sent(verdicts, send)
        except RedisUnavailable as error:
            self._failures.append(error)
            raise
        self._keep(self._written(verdicts, came))

    def _sent(
        self, verdicts: Sequence[Packed], send: Callable[[Sequence[Packed]], list[Written]] | None = None
    ) -> Sequence[Written | Exception]:
        writing = send or (lambda some: write_together(self._queue, self._hold, some))
        try:
            return persist(lambda: writing(verdicts))
        except RedisUnavailable:
            raise
        except (QueueError, ValueError) as error:
            if len(verdicts) == 1 and send is None:
                return [error]
            # One that is refused keeps no other from being written, and a refused answer none from having been.
            return [came for each in verdicts for came in self._sent([each])]

    def _written(self, verdicts: Sequence[Packed], came: Sequence[Written | Exception]) -> list[Outcome]:
        with self._guard:
            del self._waiting[: len(verdicts)]
            self._since = self._clock()
        return self._came(verdicts, came)

    def _came(self, verdicts: Sequence[Packed], came: Sequence[Written | Exception]) -> list[Outcome]:
        for packed, word in zip(verdicts, came, strict=True):
            if word is Written.FENCED:
                self.fenced = True
            elif isinstance(word, Written):
                self._on_stands(packed.verdict.index)
        return [Outcome(packed.verdict, word) for packed, word in zip(verdicts, came, strict=True)]

    def _keep(self, outcomes: Sequence[Outcome]) -> None:
        with self._guard:
            self._outcomes += outcomes
