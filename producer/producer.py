"""`Producer`: a trainer's end of the queue."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

from collimate_rl._variables import warn_once
from collimate_rl.errors import BatchConflict, BatchGone, QueueError, QueueFull, RunMisconfigured
from collimate_rl.protocol import GradeBatch, Timing, batch_key, check_name, content_hash, resubmission_id
from collimate_rl.protocol.bounds import DEFAULT_DEADLINE_S
from collimate_rl.queue import faults
from collimate_rl.queue.batches import DEFAULT_DEPTH, DEFAULT_WINDOW, BatchQueue
from collimate_rl.queue.clients import connect_blocking, connect_commands
from collimate_rl.queue.purging import PurgedRun, purge_run
from collimate_rl.queue.replies import Cancelled, SubmitReply, Submitted
from collimate_rl.queue.server_check import check_server
from collimate_rl.seeds import group_seeds
from producer.grader_pin import GraderPin
from producer.handle import BatchHandle
from producer.reader import BLOCK_S, Reader, Waiting, fetch
from producer.serving import Serving, look

TEMPLATES_FOR_S = 2.0


class WireSpec(Protocol):
    """Any reward spec of `collimate_rl.rewards`."""

    def to_wire(self) -> Mapping[str, Any]: ...


class Producer:
    """Submits batches of one run and hands out their answers. Threads may share it; it uses no event loop.

    redis_url -- redis://…, rediss://… or unix:/path.
    run -- the run's name; batches are known by (run, epoch, id).
    queue -- the queue that the workers serve.
    name -- this process' name within the run; results wait under it. The default is unique per process: give a stable
            one (per rank) to have a restarted trainer take up where it stopped. A name is leased for 15 s: a restarted
            process waits for that.
    epoch -- a higher one is a new life for every id; answers of older ones are refused.
    window -- so many batches of the run may be unanswered at once, counted over all its processes.
    depth -- `QueueFull` when so many batches of the queue are unanswered.
    grader_version -- "pin" holds the run (its epoch) to the first version that answers it, any other text to that one;
                      a batch that another judged raises `GraderChanged`. None takes any.
    cache -- have verdicts of this run used again for the same candidate; a `submit` may say otherwise.

    Nothing is sent before the first `submit` (or `open`). Close it, or use it as a context manager.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        run: str,
        queue: str = "grade",
        name: str | None = None,
        epoch: int = 0,
        window: int = DEFAULT_WINDOW,
        depth: int = DEFAULT_DEPTH,
        grader_version: str | None = None,
        cache: bool = False,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = check_name("run", run)
        self.name = check_name("producer", name if name is not None else _default_name())
        self.epoch = epoch
        self.window = window
        self.depth = depth
        self.queue = BatchQueue(connect_commands(redis_url), queue, timing=timing)
        self._blocking = connect_blocking(redis_url, BLOCK_S)
        self._token = uuid.uuid4().hex
        self._clock = clock
        self.cache = cache
        self._waiting = Waiting(GraderPin(self.queue, self.run, epoch, grader_version, clock=clock).refusal)
        self._opening = threading.Lock()
        self._reader: Reader | None = None
        self._broken: QueueError | None = None
        self._serving = Serving(queue=queue)
        self._looked_at = float("-inf")
        self._pool: ThreadPoolExecutor | None = None

    def open(self) -> Producer:
        """Checks the server, takes the producer's name, starts the reader. `submit` does it when it is needed.

        Raises `RedisUnavailable`, `UnsuitableServer`; `QueueError` when another living process holds the name.
        """
        with self._opening:
            self._check_usable()
            if self._reader is None:
                warn_once()
                check_server(self.queue.client)
                self._take_name()
                self._serving = look(self.queue)
                reader = Reader(
                    queue=self.queue,
                    blocking=self._blocking,
                    run=self.run,
                    name=self.name,
                    token=self._token,
                    epoch=self.epoch,
                    waiting=self._waiting,
                    lost=self._lose,
                    clock=self._clock,
                    jitter=random.random,
                )
                reader.start()
                self._reader = reader
        return self

    def _take_name(self) -> None:
        lease_ms = self.queue.timing.producer_lease_ms
        give_up = self._clock() + lease_ms / 1000 + 2.0
        while True:
            reply = self.queue.lease(f"producer:{self.run}:{self.name}", self._token, lease_ms)
            if reply.mine:
                return
            if self._clock() >= give_up:
                raise QueueError(
                    f"a living process holds the producer name {self.name!r} of run {self.run!r}: "
                    "give every process of a run a name of its own"
                )
            time.sleep(min(0.5, reply.ms / 1000 + 0.01))

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise self._broken

    def submit(
        self,
        *,
        template: str,
        candidates: Sequence[str],
        spec: WireSpec | Mapping[str, Any] | str,
        id: str | None = None,
        seed_mode: str = "vanilla",
        base_seed: str | None = None,
        seeds: Sequence[str | None] | None = None,
        timeout_seconds: int = 30,
        case_timeout_s: float | None = None,
        egress: Mapping[str, Any] | None = None,
        recovery: str = "auto",
        deadline_s: float = DEFAULT_DEADLINE_S,
        tags: Mapping[str, str] | None = None,
        cache: bool | None = None,
        block: bool = True,
    ) -> BatchHandle:
        """Submits one group and returns its handle. Submitting the same (run, epoch, id) again runs nothing again.

        candidates -- 1 to 1,024 source texts of at most 1 MiB.
        spec -- a reward spec, or its wire form as a mapping or as JSON text.
        id -- unique within run and epoch; by default a fresh one.
        seeds -- one per candidate (64 hex digits or None); by default drawn as `seed_mode` and `base_seed` say.
        timeout_seconds -- a candidate's total wall time.
        deadline_s -- what has no verdict by then is answered `expired`.
        cache -- as the producer's, where None.
        block -- with a full window, wait for room (at most `deadline_s`, then `TimeoutError`) or raise `QueueFull`.

        Raises `ValueError` for arguments beyond the bounds, `RunMisconfigured` when no node of the queue has the
        template, `BatchConflict` when the id is known with other content, `QueueFull` when the queue is,
        `RedisUnavailable` (within some 20 s), `UnsuitableServer`.
        """
        batch = GradeBatch(
            run=self.run,
            id=id if id is not None else uuid.uuid4().hex,
            producer=self.name,
            epoch=self.epoch,
            template=template,
            candidates=_texts(candidates),
            spec=_spec_text(spec),
            seeds=tuple(seeds if seeds is not None else group_seeds(len(candidates), seed_mode, base_seed)),
            seed_mode=seed_mode,
            base_seed=base_seed,
            timeout_seconds=timeout_seconds,
            case_timeout_s=case_timeout_s,
            egress=egress,
            recovery=recovery,
            deadline_s=deadline_s,
            submitted_at=time.time(),
            tags=dict(tags or {}),
            cache=self.cache if cache is None else cache,
        )
        return self._submit(batch, content_hash(batch, seeds), block)

    async def submit_async(self, **arguments: Any) -> BatchHandle:
        """`submit` for an event loop: waits for room in a thread of the producer's own, never in the loop."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix=f"producer-{self.name}-submit")
        return await asyncio.wrap_future(self._pool.submit(lambda: self.submit(**arguments)))

    def _submit(self, batch: GradeBatch, digest: str, block: bool) -> BatchHandle:
        self.open()
        self._check_template(batch.template)
        k = batch_key(batch.run, batch.epoch, batch.id)
        mine = BatchHandle(self, k, batch, digest)
        # Known to the reader before the server knows the batch: its answer may come before submit's own reply.
        handle = self._waiting.put(mine)
        if handle is not mine:
            if handle.content_hash != digest:
                raise BatchConflict(_conflict(batch))
            return handle
        try:
            reply = self._send(handle, block)
        except BaseException:
            if not handle.done():
                self._waiting.finish(handle, None, QueueError(f"batch {batch.id!r} could not be submitted"))
            raise
        if reply.word is Submitted.DONE:
            fetch(self.queue, self._waiting, handle)
        else:
            handle.acknowledged(self._clock() + reply.number / 1000)
        return handle

    def _send(self, handle: BatchHandle, block: bool) -> SubmitReply:
        batch = handle.batch
        give_up = self._clock() + batch.deadline_s
        pause = 0.02
        while True:
            self._check_usable()
            reply = self.queue.submit(handle.k, batch, handle.content_hash, window=self.window, depth=self.depth)
            faults.reach("submitted")
            if reply.word is Submitted.CONFLICT:
                raise BatchConflict(_conflict(batch))
            if reply.word is Submitted.FULL:
                raise QueueFull(
                    f"queue {self.queue.queue!r} holds {reply.number:,} unanswered batches: its workers are behind, "
                    "or there are none; submit again later"
                )
            if reply.word is not Submitted.WINDOW:
                return reply
            told = f"run {self.run!r} has {reply.number:,} unanswered batches, and its window is {self.window:,}"
            if not block:
                raise QueueFull(f"{told}: wait for some of them")
            left = give_up - self._clock()
            if left <= 0:
                raise TimeoutError(f"{told}: no room came within {batch.deadline_s:g} s")
            # Answers to this process wake it; those to other processes of the run are found by asking.
            with self._waiting.room:
                self._waiting.room.wait(min(pause, left))
            pause = min(1.0, pause * 2)

    def _check_template(self, template: str) -> None:
        if self._clock() - self._looked_at < TEMPLATES_FOR_S and self._serving.lack(template) is None:
            return
        # A refusal is never given from memory: the node that has the template may just have come.
        self._look()
        lack = self._serving.lack(template)
        if lack is not None:
            raise RunMisconfigured(lack, None, "no_template")

    def _look(self) -> None:
        self._serving = look(self.queue)
        self._looked_at = self._clock()

    @property
    def unserved(self) -> str | None:
        """What to say when no node took work of the queue at the last look, which `open` and `submit` take."""
        return self._serving.unserved

    def resubmit(self, handle: BatchHandle, *, infra_only: bool = True, id: str | None = None) -> BatchHandle:
        """Submits a finished batch's candidates again under a new id, by default only the infra-flagged ones.

        The new batch's candidate i is the i-th of those chosen, in order, under the seed that it had. `ValueError`
        when none is to be graded again. The default id follows from the old one and the choice, so that it is the same
        batch when a restarted trainer does this again.
        """
        old, result = handle.batch, handle.result(0)
        chosen = [v.index for v in result.results if v.infra_error or not infra_only]
        if not chosen:
            raise ValueError(f"batch {handle.id!r} has no infra-flagged candidate to grade again")
        return self.submit(
            template=old.template,
            candidates=[old.candidates[i] for i in chosen],
            spec=old.spec,
            id=id if id is not None else resubmission_id(handle.id, self.epoch, chosen),
            seed_mode=old.seed_mode,
            base_seed=old.base_seed,
            seeds=[old.seeds[i] for i in chosen],
            timeout_seconds=old.timeout_seconds,
            case_timeout_s=old.case_timeout_s,
            egress=old.egress,
            recovery=old.recovery,
            deadline_s=old.deadline_s,
            tags=old.tags,
            cache=old.cache,
        )

    def cancel(self, handle: BatchHandle) -> Cancelled:
        """Asks that a batch not be graded on; its handle gets the answer as ever."""
        return self.queue.cancel(handle.k)

    def cancel_run(self) -> int:
        """Cancels every unanswered batch of the run, whoever submitted it; returns how many there were."""
        ks = self.queue.inflight(self.run)
        for k in ks:
            self.queue.cancel(k)
        return len(ks)

    def purge_run(self, wait_s: float | None = None) -> PurgedRun:
        """Cancels every unanswered batch of the run and removes the run from the server: batches of every epoch,
        results, cursors, whoever submitted them. Nothing is left of it, and its ids can be used anew.

        wait_s -- how long owners may take to stop; by default a little more than they take to learn of it.

        Handles of this producer that have no answer by then raise `BatchGone`. Let the run's other producers stop
        first. Raises `RedisUnavailable`; it may be called again.
        """
        reader = self.open()._reader
        assert reader is not None, "open starts it"
        stop_s = self.queue.timing.renew_every_ms / 1000 + 2.0 if wait_s is None else wait_s
        cancelled = BatchGone(f"run {self.run!r} was purged")
        purged = purge_run(self.queue, self.run, wait_s=stop_s)
        with reader.forget(cancelled):
            # Once more, now that the reader writes no cursor, and for what came meanwhile.
            again = purge_run(self.queue, self.run, wait_s=0.0)
        return replace(purged, batches=purged.batches + again.batches, streams=purged.streams + again.streams)

    @property
    def broken(self) -> QueueError | None:
        """Why it takes no batch any more: it was closed, lost its name, or the server refused it for too long."""
        return self._broken

    def _lose(self, error: QueueError) -> None:
        self._broken = error
        self._waiting.fail_all(error)

    def close(self) -> None:
        """Stops the reader and gives the name back. Batches run on; handles without an answer raise `QueueError`."""
        with self._opening:
            closed = QueueError("this producer was closed; its batches run on, submit them again to get their answers")
            self._broken = self._broken or closed
            reader, self._reader = self._reader, None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        if reader is not None:
            reader.stop()
            try:
                self.queue.lease(reader.lease_name, self._token, 0)
            except QueueError:  # the server is away: the lease runs out by itself
                pass
        self._waiting.fail_all(closed)
        self.queue.client.close()
        self._blocking.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _default_name() -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def _conflict(batch: GradeBatch) -> str:
    return (
        f"batch {batch.id!r} of run {batch.run!r} (epoch {batch.epoch}) was submitted before with other content: "
        "give this one another id, or raise the epoch"
    )


def _texts(candidates: Sequence[str]) -> tuple[str, ...]:
    if isinstance(candidates, str):  # a sequence of texts, too, of one character each
        raise ValueError("candidates is one text: give a list of source texts")
    return tuple(candidates)


def _spec_text(spec: WireSpec | Mapping[str, Any] | str) -> str:
    if isinstance(spec, str):
        return spec
    told = spec if isinstance(spec, Mapping) else getattr(spec, "to_wire", None)
    if told is None:
        raise ValueError(f"a {type(spec).__name__} is no reward spec: reward_spec_from_ground_truth makes one of a row")
    data = told() if callable(told) else told  # a spec that can't travel says so itself
    try:
        return json.dumps(data)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ValueError(f"the spec's wire form is not plain JSON data: {exc}") from exc
