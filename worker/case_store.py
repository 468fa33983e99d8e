"""Where a batch keeps the cases that a judge fork made for it."""

from __future__ import annotations

from collimate_rl.queue import faults
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Hold
from worker.keeper import Fenced
from worker.persist import persist


class QueueCaseStore:
    """Cases that a judge fork made, kept with the batch, so that whoever takes it over judges the same ones."""

    def __init__(self, queue: BatchQueue, hold: Hold) -> None:
        self._queue = queue
        self._hold = hold

    def get(self) -> bytes | None:
        return persist(lambda: self._queue.stored_cases(self._hold.k))

    def put(self, blob: bytes) -> bytes:
        """Store once; returns what stands, perhaps another's. Raises `Fenced`."""
        faults.reach("cases_made")
        stands = persist(lambda: self._queue.cases(self._hold, blob))
        if stands is None:
            raise Fenced
        faults.reach("cases_stored")
        return stands
