"""The producer's thread: reads finished batches, keeps the producer's name, and sees to what is overdue.

It blocks on the producer's result stream, and between reads keeps house. When the server was away, or has forgotten the
producer's name, it submits again everything that is unanswered: the scripts make that harmless, and it heals whatever
the server has lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from redis import Redis

from collimate_rl.errors import BadMessage, BatchConflict, BatchGone, QueueError, RedisUnavailable
from collimate_rl.protocol import BatchResult, keys
from collimate_rl.queue import faults
from collimate_rl.queue._raw import text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.codec import unpack_result
from collimate_rl.queue.replies import Mended, Submitted
from producer.handle import BatchHandle

log = logging.getLogger("producer")

BLOCK_S = 0.25
"""How long a read waits on the server: short, since stopping waits for it; an answer ends it at once."""
MAX_BACKOFF_S = 5.0
OVERDUE_EVERY_S = 2.0
REFUSED_BUDGET_S = 60.0
"""A server that is there but refuses us (rights taken away) may get over it for so long."""


class NameTaken(QueueError):
    """Another process holds this producer's name: its answers are that process' now."""


class Waiting:
    """The handles that wait for an answer, by batch; shared between the submitting threads and the reader."""

    def __init__(self, refusal: Callable[[BatchResult], Exception | None] = lambda _result: None) -> None:
        self.refusal = refusal
        """Why a result may not be handed out; None where it may."""
        self._lock = threading.Lock()
        self._handles: dict[str, BatchHandle] = {}
        self.room = threading.Condition(self._lock)
        """Notified whenever a batch is answered."""

    def put(self, handle: BatchHandle) -> BatchHandle:
        """Enters `handle`, or returns the one that waits for this batch already."""
        with self._lock:
            return self._handles.setdefault(handle.k, handle)

    def get(self, k: str) -> BatchHandle | None:
        with self._lock:
            return self._handles.get(k)

    def all(self) -> list[BatchHandle]:
        with self._lock:
            return list(self._handles.values())

    def finish(self, handle: BatchHandle, result: Any, error: Exception | None = None) -> None:
        with self._lock:
            if self._handles.get(handle.k) is handle:
                del self._handles[handle.k]
        handle.finish(result, error)
        with self.room:
            self.room.notify_all()

    def fail_all(self, error: Exception) -> None:
        for handle in self.all():
            self.finish(handle, None, error)


def fetch(queue: BatchQueue, waiting: Waiting, handle: BatchHandle, told: bytes | None = None) -> None:
    """Reads the answer of a finished batch into its handle: `told`, where it came along, or what the server has."""
    try:
        result = queue.result(handle.k) if told is None else unpack_result(told)
    except BadMessage as exc:  # written by a later version, or not by us: the handle's owner must hear of it
        waiting.finish(handle, None, exc)
        return
    if result is None:
        waiting.finish(
            handle,
            None,
            BatchGone(f"batch {handle.id!r} of run {handle.batch.run!r} was answered, but its result is gone"),
        )
    else:
        result = replace(result, received_at=time.time())
        refusal = waiting.refusal(result)
        waiting.finish(handle, None if refusal is not None else result, refusal)


class Reader:
    """One thread per producer; `start` and `stop` it. See the module's words.

    lost -- called once, with the error, when the producer's name is somebody else's or the thread cannot go on.
    """

    def __init__(
        self,
        *,
        queue: BatchQueue,
        blocking: Redis,
        run: str,
        name: str,
        token: str,
        epoch: int,
        waiting: Waiting,
        lost: Callable[[QueueError], None],
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self.queue = queue
        self.blocking = blocking
        self.run = run
        self.name = name
        self.token = token
        self.epoch = epoch
        self.waiting = waiting
        self.lost = lost
        self.clock = clock
        self.jitter = jitter
        self.lease_name = f"producer:{run}:{name}"
        self.outages = 0
        """How often the server went away."""
        self._stream = keys.results(run, name)
        self._cursor_key = keys.cursor(run, name)
        self._cursor = "0-0"
        self._taking = threading.Lock()
        self._forgotten = 0
        self._stop = threading.Event()
        self._next_lease = 0.0
        self._next_overdue = 0.0
        self._block_ms = min(int(BLOCK_S * 1000), queue.timing.producer_lease_ms // 6)
        self._thread = threading.Thread(target=self._main, name=f"producer-{name}", daemon=True)

    def start(self) -> None:
        """Takes up the stream where the last life of this name left it. Raises `RedisUnavailable`."""
        with translate_errors("read the cursor"):
            stored = self.queue.client.get(self._cursor_key)
        if stored is not None:
            self._cursor = text(stored)
        self._next_lease = self.clock() + self.queue.timing.producer_lease_ms / 3000
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; it is gone afterwards, at the latest when its blocking read ends."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(BLOCK_S + 10.0)

    def _main(self) -> None:
        try:
            self._loop()
        except QueueError as exc:
            self.lost(exc)
        except Exception as exc:
            log.exception("the producer's reader died")
            self.lost(QueueError(f"the producer's reader died: {type(exc).__name__}: {exc}"))

    def _loop(self) -> None:
        backoff, refused_at = 0.0, None
        while not self._stop.is_set():
            try:
                if backoff:
                    self._keep_name()
                    self._submit_again()
                self._read()
                self._keep_house()
                backoff, refused_at = 0.0, None
                continue
            except NameTaken:
                raise
            except RedisUnavailable as exc:
                trouble: QueueError = exc
            except QueueError as exc:
                trouble = exc
                refused_at = refused_at or self.clock()
                if self.clock() - refused_at > REFUSED_BUDGET_S:
                    raise
            if not backoff:
                self.outages += 1
                log.warning("%s; trying again", trouble)
            backoff = min(MAX_BACKOFF_S, max(0.1, backoff * 2))
            self._stop.wait(backoff * (0.5 + self.jitter() / 2))

    def _read(self) -> None:
        forgotten = self._forgotten
        with translate_errors("read finished batches"):
            reply = self.blocking.xread({self._stream: self._cursor}, count=128, block=self._block_ms)
        streams: Any = reply
        if not streams:
            return
        with self._taking:
            if self._forgotten != forgotten:
                return
            for entry_id, fields in streams[0][1]:
                self._take(fields)
                self._cursor = text(entry_id)
            faults.reach("result_taken")
            self._acknowledge()

    @contextmanager
    def forget(self, error: Exception) -> Iterator[None]:
        """While the caller removes the run from the server: nothing is taken and no cursor written. Then every handle
        that still waits gets `error`."""
        with self._taking:
            self._forgotten += 1
            yield
        self.waiting.fail_all(error)

    def _take(self, fields: dict[bytes, bytes]) -> None:
        handle = self.waiting.get(text(fields.get(b"k", b"")))
        # None: answered already, or a life of this name that is gone asked for it; a new epoch has other keys.
        if handle is not None and int(fields.get(b"epoch", b"0")) >= self.epoch:
            fetch(self.queue, self.waiting, handle, fields.get(b"done"))

    def _acknowledge(self) -> None:
        ms, _, seq = self._cursor.partition("-")
        with translate_errors("acknowledge finished batches"), self.queue.client.pipeline(transaction=True) as pipe:
            pipe.set(self._cursor_key, self._cursor, px=self.queue.timing.keep_ms)
            pipe.xtrim(self._stream, minid=f"{ms}-{int(seq) + 1}", approximate=False)
            pipe.execute()

    def _keep_house(self) -> None:
        t = self.clock()
        if t >= self._next_lease:
            self._keep_name()
        if t >= self._next_overdue:
            self._next_overdue = t + OVERDUE_EVERY_S
            for handle in self.waiting.all():
                if handle.overdue_at is not None and handle.overdue_at <= t:
                    self._see_to(handle)

    def _keep_name(self) -> None:
        lease_ms = self.queue.timing.producer_lease_ms
        self._next_lease = self.clock() + lease_ms / 3000
        with translate_errors("look for the producer's name"):
            forgotten = self.queue.client.get(keys.lease(self.lease_name)) is None
        if not self.queue.lease(self.lease_name, self.token, lease_ms).mine:
            raise NameTaken(
                f"another process took the producer name {self.name!r} of run {self.run!r} while this one was away: "
                "give every process of a run a name of its own"
            )
        if forgotten:  # by a server that was emptied or replaced, with all else; or this process slept for long
            self._submit_again()

    def _see_to(self, handle: BatchHandle) -> None:
        """Nobody answered in time, perhaps because no worker and no janitor is left: have it answered from here."""
        mended = self.queue.mend(handle.k, listed=True)
        if mended in (Mended.ANSWERED, Mended.FORGOT):
            fetch(self.queue, self.waiting, handle)

    def _submit_again(self) -> None:
        for handle in self.waiting.all():
            if handle.overdue_at is None:  # its own submit is still under way
                continue
            reply = self.queue.submit(handle.k, handle.batch, handle.content_hash, window=2**31, depth=2**31)
            if reply.word is Submitted.DONE:
                fetch(self.queue, self.waiting, handle)
            elif reply.word is Submitted.CONFLICT:
                known = f"batch {handle.id!r} of run {handle.batch.run!r} is known with other content"
                self.waiting.finish(handle, None, BatchConflict(known))
            else:
                handle.acknowledged(self.clock() + reply.number / 1000)
