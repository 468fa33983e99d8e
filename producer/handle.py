"""`BatchHandle`: one submitted batch, and the ways to wait for it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from collimate_rl.protocol import BatchResult, GradeBatch
from collimate_rl.protocol.manifest import Manifest, manifest_of
from collimate_rl.queue.replies import Cancelled

if TYPE_CHECKING:
    from producer.producer import Producer

OVERDUE_GRACE_S = 1.0


class BatchHandle:
    """A submitted batch. Made by `Producer.submit`; every method may be called from any thread.

    It is bound to no event loop: it may be awaited in one loop, and in another when that one is gone, also several
    times. Giving up a wait (a timeout, a cancelled task) leaves the batch alone.
    """

    def __init__(self, producer: Producer, k: str, batch: GradeBatch, content_hash: str) -> None:
        self.k = k
        """The batch's key id on the queue."""
        self.batch = batch
        self.content_hash = content_hash
        self.overdue_at: float | None = None
        """On the producer's clock: from here on the producer sees to an answer itself. None until the queue has it."""
        self._producer = producer
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._result: BatchResult | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[BatchHandle], None]] = []

    @property
    def id(self) -> str:
        """The batch's id within its run."""
        return self.batch.id

    def done(self) -> bool:
        """Whether `result()` would return (or raise) at once."""
        return self._finished.is_set()

    def manifest(self, index: int) -> Manifest:
        """What the verdict of candidate `index` was made of; for a handle that is done."""
        return manifest_of(self.batch, self.result(0).results[index])

    def result(self, timeout: float | None = None) -> BatchResult:
        """Waits for the answer, at most `timeout` seconds (`TimeoutError`; None waits as long as it takes: a submitted
        batch is always answered, at the latest some 30 s after its deadline while the server can be reached).

        Raises `GraderChanged` when another grader judged than the one that the run is held to; `BatchGone` when
        the answer is no longer kept, `QueueError` when the producer was closed or lost its name. Infra-flagged
        candidates are no error here: see `BatchResult.rewards`.
        """
        if not self._finished.wait(timeout):
            hint = self._producer.unserved
            raise TimeoutError(f"batch {self.id!r} was not answered within {timeout:g} s{f'; {hint}' if hint else ''}")
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise RuntimeError("a finished handle has a result or an error")
        return self._result

    def __await__(self) -> Generator[object, None, BatchResult]:
        return self._wait_in_loop().__await__()

    async def _wait_in_loop(self) -> BatchResult:
        if not self.done():
            loop = asyncio.get_running_loop()
            finished: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not finished.done():
                    finished.set_result(None)

            def tell(_handle: BatchHandle) -> None:
                try:
                    loop.call_soon_threadsafe(wake)
                except RuntimeError:  # the loop was closed while the batch ran: nobody waits there any more
                    pass

            self.add_done_callback(tell)
            try:
                await finished
            finally:
                self._remove_callback(tell)
        return self.result(0)

    def add_done_callback(self, callback: Callable[[BatchHandle], None]) -> None:
        """Calls `callback(handle)` once it is done, at once if it is; from the producer's thread, so be quick."""
        with self._lock:
            if not self._finished.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def _remove_callback(self, callback: Callable[[BatchHandle], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def cancel(self) -> Cancelled:
        """Asks that the batch not be graded on. It is answered all the same, `cancelled` where nothing was judged."""
        return self._producer.cancel(self)

    def acknowledged(self, deadline: float) -> None:
        """For the producer: the queue has the batch, and its deadline is at `deadline` of the producer's clock."""
        self.overdue_at = deadline + OVERDUE_GRACE_S

    def finish(self, result: BatchResult | None, error: Exception | None = None) -> bool:
        """For the producer: sets the answer, once; False when there was one already (a duplicate)."""
        with self._lock:
            if self._finished.is_set():
                return False
            self._result, self._error = result, error
            callbacks, self._callbacks = self._callbacks, []
            self._finished.set()
        for callback in callbacks:
            callback(self)
        return True

    def __repr__(self) -> str:
        return f"<BatchHandle {self.batch.run}/{self.id} {'done' if self.done() else 'waiting'}>"


def as_completed(handles: Iterable[BatchHandle], timeout: float | None = None) -> Iterator[BatchHandle]:
    """Yields each handle once, as it finishes; `TimeoutError` when `timeout` seconds pass before the last one does."""
    waiting = list(dict.fromkeys(handles))
    finished: queue.SimpleQueue[BatchHandle] = queue.SimpleQueue()
    for handle in waiting:
        handle.add_done_callback(finished.put)
    end = None if timeout is None else time.monotonic() + timeout
    for left in range(len(waiting), 0, -1):
        try:
            yield finished.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{left} of {len(waiting)} batches were not answered within {timeout:g} s") from None
