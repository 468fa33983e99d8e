"""The queue's janitor: finds what is due among the unanswered batches, and has it mended. One leader per queue."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from collimate_rl.errors import QueueError
from collimate_rl.protocol import BatchStatus, keys
from collimate_rl.queue import faults
from collimate_rl.queue._raw import server_ms, text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.replies import Mended
from collimate_rl.queue.rq_edge import IntermediateSweep, listed_batches

log = logging.getLogger(__name__)

MAX_DUE = 500
"""Batches that are looked at together; a pass takes as many such lots as are due, and as its lease has time for."""


@dataclass(frozen=True)
class Pass:
    """What one pass did. `led` is False when another janitor holds the lease: then nothing was done."""

    led: bool
    mended: Counter[Mended] = field(default_factory=Counter)
    bumped: int = 0
    swept: tuple[str, ...] = ()
    broken: int = 0
    """Batches whose keys are not as this program writes them; they are logged, and don't stop the others."""


class QueueJanitor:
    """To be run every `timing.beat_every_ms` by every supervisor; work is by lease.

    token -- of this janitor, unique per process start.
    """

    def __init__(self, queue: BatchQueue, token: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.queue = queue
        self.token = token
        look_s = queue.timing.look_ms / 1000
        self._clock = clock
        self._sweep = IntermediateSweep(queue.client, queue.queue, look_s=look_s, clock=clock)

    def run_once(self) -> Pass:
        """One pass. Raises `RedisUnavailable`; the next pass goes on where this one stopped."""
        name = f"janitor:{self.queue.queue}"
        if not self.queue.lease(name, self.token, self.queue.timing.janitor_lease_ms).mine:
            return Pass(False)
        # What waits in order is looked at, too, and comes first: it must not keep the janitor from what is lost.
        until = self._clock() + self.queue.timing.janitor_lease_ms / 2000
        listed: set[str] | None = None
        done: Counter[Mended] = Counter()
        bumped = broken = 0
        while due := self._due():
            if listed is None:
                with translate_errors("read the list of bells"):
                    listed = listed_batches(self.queue.client, self.queue.queue)
            moved, wrong = self._see_to(due, listed, done)
            bumped, broken = bumped + moved, broken + wrong
            if len(due) < MAX_DUE or self._clock() >= until:
                break
        with translate_errors("sweep the intermediate list"):
            swept = self._sweep.sweep()
        return Pass(True, done, bumped, tuple(swept), broken)

    def _see_to(self, due: list[str], listed: set[str], done: Counter[Mended]) -> tuple[int, int]:
        """Bumps or mends each, and counts what mending did; returns how many were bumped, and how many are broken."""
        waiting = [k for k in due if k in listed]
        over = self._over(waiting)
        bumped = self.queue.bump(k for k in waiting if k not in over)
        broken: list[str] = []
        strange: list[str] = []
        for k in due:
            if k in listed and k not in over:
                continue
            faults.reach("mending")
            try:
                done[self.queue.mend(k, listed=k in listed)] += 1
            except QueueError as exc:
                if exc.__class__ is not QueueError:  # an outage ends the pass
                    raise
                broken.append(k)
                log.warning("batch %s cannot be mended: %s", k, exc)
            except ValueError:  # the script's word on an argument: no batch has such a name
                strange.append(k)
                log.warning("%.80r among the unanswered batches is none of ours: taken out", k)
        if strange:
            with translate_errors("take out what is no batch"):
                self.queue.client.zrem(keys.pending(self.queue.queue), *strange)
        self.queue.bump(broken)  # else they would fill every pass
        return bumped, len(broken)

    def _due(self) -> list[str]:
        with translate_errors("read what is due"):
            now_ms = server_ms(self.queue.client.time())
            found = self.queue.client.zrangebyscore(keys.pending(self.queue.queue), "-inf", now_ms, 0, MAX_DUE)
        return [text(raw) for raw in found]

    def _over(self, ks: list[str]) -> set[str]:
        """Those that a waiting bell is not enough for: owned (and perhaps lost), cancelled, or past the deadline."""
        if not ks:
            return set()
        with translate_errors("read deadlines"), self.queue.client.pipeline(transaction=False) as pipe:
            for k in ks:
                pipe.hmget(keys.BatchKeys(k).state, "status", "cancel", "deadline_at")
            pipe.time()
            *states, told_at = pipe.execute(raise_on_error=False)
        now_ms = server_ms(told_at)
        over = set()
        for k, state in zip(ks, states, strict=True):
            # A key that holds something else is left to `mend`, which says so.
            if isinstance(state, Exception):
                over.add(k)
                continue
            status, cancel, deadline_at = (None if raw is None else text(raw) for raw in state)
            if status != BatchStatus.OPEN.value or cancel == "1" or int(deadline_at or 0) < now_ms:
                over.add(k)
        return over

    def resign(self, queue: BatchQueue | None = None) -> None:
        """Gives the lease back, so that another janitor leads at once; `queue` is the same one over another
        connection."""
        (queue or self.queue).lease(f"janitor:{self.queue.queue}", self.token, 0)
