"""Everything that the product needs to know of rq's jobs and lists, and every workaround for them, in one place
(rq >= 3.0, < 4); of its worker, in `rq_worker`.

An rq job is only a bell: it says that there may be work on batch `k`, and may be lost, doubled or late. Nothing of
ours reads rq's job status, registries or retries. People still see what they know: queues, workers, jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError
from rq.exceptions import DequeueTimeout, StopRequested
from rq.executions import Execution
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job, JobStatus
from rq.job_lifecycle import record_job_failure
from rq.queue import Queue
from rq.utils import now, utcformat

from collimate_rl.errors import BadMessage
from collimate_rl.protocol import keys
from collimate_rl.queue import faults
from collimate_rl.queue._raw import raw, text
from collimate_rl.queue.codec import MsgpackSerializer

JOB_FUNCTION = "collimate.grade/1"
"""The one name that our jobs carry. It is no import path: only our worker resolves it, to its own batch job."""
RESULT_TTL_S = 60
FAILURE_TTL_S = 3600
BELL_TTL_S = 86_400
PAUSE_S = 1.0
LISTED_PART = 4096
"""So many entries of the list are read at once: less than a millisecond of the server."""
SERIALIZER = f"{MsgpackSerializer.__module__}.{MsgpackSerializer.__qualname__}"


class _NoServer(Redis):
    """rq wants a connection to build a job; building one sends nothing."""

    def execute_command(self, *args: Any, **_options: Any) -> Any:
        raise AssertionError(f"building a bell must not talk to a server: {args[0]}")


_NOWHERE = _NoServer()


def bell_fields(k: str, queue: str) -> bytes:
    """The fields of a bell's job hash, made by rq's own `Job.to_dict()`, as netstrings for `scripts/prelude.lua`.

    No timeout (-1: rq's default of 180 s is raised by SIGALRM in the main thread, while threads run on), no retry, no
    meta, no group.
    """
    job = Job.create(
        JOB_FUNCTION,
        args=(k,),
        id=f"{k}-0",
        connection=_NOWHERE,
        serializer=MsgpackSerializer,
        timeout=-1,
        result_ttl=RESULT_TTL_S,
        failure_ttl=FAILURE_TTL_S,
        status=JobStatus.QUEUED,
        origin=queue,
    )
    job.enqueued_at = now()
    out = bytearray()
    for name, value in job.to_dict(include_meta=False).items():
        if value is None:
            continue
        raw = value if isinstance(value, bytes) else str(getattr(value, "value", value)).encode()
        for part in (name.encode(), raw):
            out += b"%d:%s" % (len(part), part)
    return bytes(out)


class BellJob(Job):
    """A job as our worker reads it: of what its hash says, only what a bell needs.

    A job hash can name functions to import (the job's, its callbacks') and URLs to call (webhooks). None of that is
    read: whoever can write to the server must not be able to run code in a worker.
    """

    FIELDS: ClassVar[frozenset[bytes]] = frozenset(
        b"created_at data origin description enqueued_at started_at ended_at last_heartbeat worker_name timeout "
        b"result_ttl failure_ttl status".split()
    )
    ring: Callable[[str], str] | None = None
    """Set by the worker that is about to run it."""
    listed_on: str | None = None
    """The queue that its worker pops bells from."""

    @classmethod
    def fetch(cls, id: str, connection: Redis | None = None, serializer: Any = None) -> Any:
        """A bell that was popped. Its id says all: its hash, which people read, is not read here, and may be gone."""
        if cls.listed_on is None or keys.k_of_job(id) is None:
            return super().fetch(id, connection=connection, serializer=serializer)
        job = cls(id, connection=connection, serializer=serializer)
        job.origin = cls.listed_on
        job.timeout, job.result_ttl, job.failure_ttl = -1, RESULT_TTL_S, FAILURE_TTL_S
        job.func_name = JOB_FUNCTION
        return job

    def save(self, pipeline: Pipeline | None = None, include_meta: bool = True, include_result: bool = True) -> None:
        """What has changed since it was rung; the rest of the hash was not read."""
        moments = {"started_at": self.started_at, "ended_at": self.ended_at, "last_heartbeat": self.last_heartbeat}
        told: dict[Any, Any] = {name: utcformat(at) for name, at in moments.items() if at is not None}
        to: Redis | Pipeline = self.connection if pipeline is None else pipeline
        to.hset(self.key, mapping={**told, "worker_name": self.worker_name or ""})

    def restore(self, raw_data: dict[bytes, bytes]) -> Any:
        return super().restore({name: value for name, value in raw_data.items() if name in self.FIELDS})

    @property
    def func(self) -> Any:
        k = keys.k_of_job(self.id)
        if k is None or self.func_name != JOB_FUNCTION or self.ring is None:
            raise BadMessage(f"job {self.id} is no bell of this queue: its function is {self.func_name!r}")
        ring = self.ring
        # The id says which batch; the arguments are there for people who look at the job.
        return lambda *_args, **_kwargs: ring(k)


class Gate(Enum):
    """What a worker does at the safe point, before it pops a bell."""

    GO = "go"
    WAIT = "wait"
    LATER = "later"
    """As WAIT, by a gate that has waited itself."""
    STOP = "stop"


class PoppedBells(IntermediateQueue):
    """rq's list of what was popped and not started. Our own sweep keeps it clean: rq's would mark every bell that it
    meets there, be it for a moment, by a key that stays for a day.
    """

    def cleanup(self, worker: Any, queue: Any) -> None:
        pass


class BellQueue(Queue):
    """Asks its worker's gate around every pop: the one point where a stop leaves no bell behind.

    Between BLMOVE, the execution entry and the start, a stop would leave the bell on the intermediate list. A bell that
    was popped while the gate closed goes back to where it was, untouched.
    """

    job_class = BellJob
    gate: Callable[[], Gate] = staticmethod(lambda: Gate.GO)
    homed: str | None = None
    """The list of bells for this worker's node alone, looked at before each pop; a bell on it goes the same way."""

    @classmethod
    def lmove(cls, connection: Redis, queue_key: str, timeout: int | None) -> Any:
        gate, source = cls.gate(), queue_key
        popped: tuple[str, Any] | None = None
        if gate is Gate.GO and cls.homed is not None:
            waiting = connection.lmove(cls.homed, f"{queue_key}:intermediate", "LEFT", "RIGHT")
            if waiting is not None:
                source, popped = cls.homed, (queue_key, waiting)
        if gate is Gate.GO and popped is None:
            popped = super().lmove(connection, queue_key, timeout)
        if popped is not None:
            faults.reach("bell_popped")
        if popped is not None and (gate := cls.gate()) is not Gate.GO:
            with connection.pipeline() as pipe:
                pipe.lrem(f"{queue_key}:intermediate", 1, popped[1])
                pipe.lpush(source, popped[1])
                if source != queue_key:
                    pipe.expire(source, BELL_TTL_S)
                pipe.execute()
        if gate is Gate.STOP:
            raise StopRequested
        if gate is Gate.WAIT:
            time.sleep(PAUSE_S)
        if gate in (Gate.WAIT, Gate.LATER):
            raise DequeueTimeout(timeout, queue_key)
        return popped

    @property
    def intermediate_queue(self) -> PoppedBells:
        return PoppedBells(self.key, connection=self.connection)

    @classmethod
    def lpop(cls, queue_keys: Any, timeout: int | None, connection: Redis | None = None) -> Any:
        raise RuntimeError("a worker serves one queue: with several, rq pops without the intermediate list")


def clear_worker(connection: Redis, queue: str, name: str, *, k: str | None = None) -> list[str]:
    """Clears what rq keeps of a worker whose process is gone: its executions, its registration, and bells of which rq
    had perhaps not been told: of the batch `k` that it owned, and of batches that are answered, as its last one may be.

    Returns the ids of the jobs that it was at. rq's own `job.delete()` is no way: after a crash it raises, since an
    execution's hash expires before its entry. To be called after `BatchQueue.bury`.
    """
    executions_key = f"rq:worker:{name}:executions"
    found: list[str] = []
    with connection.pipeline() as pipe:
        for entry in connection.lrange(keys.rq_intermediate(queue), 0, -1):
            job_id = raw(entry).decode("utf-8", "replace")
            rung = keys.k_of_job(job_id)
            if rung is None:
                continue
            # Should another process be at a bell of this batch, it takes it off itself, and finds it gone.
            if rung == k:
                found.append(job_id)
                pipe.lrem(keys.rq_intermediate(queue), 0, job_id)
                pipe.delete(keys.rq_job(job_id))
            elif connection.exists(keys.BatchKeys(rung).done):
                found.append(job_id)
                pipe.lrem(keys.rq_intermediate(queue), 0, job_id)
                pipe.expire(keys.rq_job(job_id), RESULT_TTL_S)
        for entry in connection.smembers(executions_key):
            named = text(entry)
            if named.count(":") != 1:  # no entry of rq's; it goes with the rest
                continue
            execution = Execution.from_composite_key(named, connection)
            execution.worker_name = name
            if execution.job_id not in found:
                found.append(execution.job_id)
            job = BellJob(execution.job_id, connection=connection, serializer=MsgpackSerializer)
            job.origin = queue
            try:
                job.refresh()  # type: ignore[no-untyped-call]
            except RedisError:
                raise
            except Exception:  # noqa: BLE001 - rq parses what another version, or anybody, may have written
                # Gone, a hash without data (what a heartbeat makes of one that has expired), or not to be read: it was
                # only a bell, and must not keep the dead unburied.
                pipe.delete(job.key)
            else:
                record_job_failure(job, f"worker {name} died", pipeline=pipe)
            execution.delete(job=job, pipeline=pipe)
            pipe.lrem(keys.rq_intermediate(queue), 0, job.id)
        worker_key = f"rq:worker:{name}"
        pipe.srem("rq:workers", worker_key)
        pipe.srem(f"rq:workers:{queue}", worker_key)
        pipe.delete(worker_key, executions_key)
        pipe.execute()
    return found


class IntermediateSweep:
    """Takes bells off rq's intermediate list that nobody is at: popped by a worker that died before it began.

    One object per janitor: a bell must be seen twice, `look_s` apart, without an execution.
    """

    def __init__(self, connection: Redis, queue: str, *, look_s: float = 4.0, clock: Callable[[], float]) -> None:
        self.connection = connection
        self.queue = queue
        self.look_s = look_s
        self.clock = clock
        self._seen: dict[bytes, float] = {}

    def sweep(self) -> list[str]:
        """One pass; returns the job ids that it removed."""
        # As bytes: what others push need not be text.
        listed = {raw(entry) for entry in self.connection.lrange(keys.rq_intermediate(self.queue), 0, -1)}
        idle = {entry for entry in listed if not self.connection.zcard(b"rq:executions:" + entry)}
        t = self.clock()
        self._seen = {entry: self._seen.get(entry, t) for entry in idle}
        stale = [entry for entry, since in self._seen.items() if t - since >= self.look_s]
        for entry in stale:
            self.connection.lrem(keys.rq_intermediate(self.queue), 0, entry)  # type: ignore[arg-type]
            faults.reach("sweeping")
            self.connection.delete(keys.rq_job("").encode() + entry)
            del self._seen[entry]
        return [entry.decode("utf-8", "replace") for entry in stale]


def listed_batches(connection: Redis, queue: str) -> set[str]:
    """Batches with a bell on the queue's list. By LRANGE: rq's own counts and registries run clean-ups.

    A long list is read in parts, so that the server answers others in between. From its end: what workers take off the
    front meanwhile moves nothing past the place that has been read to, and what is rung is read twice at worst.
    """
    found: set[str] = set()
    end = -1
    while True:
        part = connection.lrange(keys.rq_queue(queue), end - LISTED_PART + 1, end)
        names = (keys.k_of_job(raw(entry).decode("utf-8", "replace")) for entry in part)
        found.update(k for k in names if k is not None)
        if len(part) < LISTED_PART:
            return found
        end -= LISTED_PART
