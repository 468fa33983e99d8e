"""Everything that the product needs to know of rq, and every workaround for it, in one place (rq >= 3.0, < 4).

An rq job is only a bell: it says that there may be work on batch `k`, and may be lost, doubled or late. Nothing of
ours reads rq's job status, registries or retries. People still see what they know: queues, workers, jobs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError, RedisError, TimeoutError
from rq.exceptions import DequeueTimeout, StopRequested
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.job_lifecycle import record_job_failure
from rq.queue import Queue
from rq.timeouts import BaseDeathPenalty
from rq.utils import now
from rq.worker import SimpleWorker, WorkerStatus

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
HEARTBEAT_TTL_S = 120
"""rq's own idea of a lost job must come after our lease has spoken."""
WORKER_TTL_S = 20
"""rq blocks on the queue for this minus 15 s."""
PAUSE_S = 1.0
SPEAK_EVERY_S = 5.0
"""rq beats a worker's heart five times per job, for a registration that lives for more than a minute."""
SUSPENDED_EVERY_S = 1.0
"""How often a busy worker looks whether `rq suspend` holds the workers back."""
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

    @classmethod
    def lpop(cls, queue_keys: Any, timeout: int | None, connection: Redis | None = None) -> Any:
        raise RuntimeError("a worker serves one queue: with several, rq pops without the intermediate list")


class NoPenalty(BaseDeathPenalty):
    """rq's time limit by SIGALRM is not ours: limits belong to the sandboxes, the deadline to the batch."""

    def setup_death_penalty(self) -> None:
        pass

    def cancel_death_penalty(self) -> None:
        pass


class BellWorker(SimpleWorker):
    """What any worker of our queues needs of rq, and no more. Subclasses give `ring`, and perhaps `gate`.

    It does not fork per job: the sandbox is the isolation, and connections stay warm.
    """

    death_penalty_class = NoPenalty
    job_class = BellJob
    queue_class = BellQueue
    max_connection_wait_time = 2.0
    """rq sleeps for so long between tries while the server is away, deaf to a stop."""

    def __init__(self, queue: str, name: str, connection: Redis, *, node: str | None = None, **options: Any) -> None:
        ask = self.gate

        class GatedQueue(BellQueue):
            gate = staticmethod(ask)
            homed = None if node is None else keys.homed(queue, node)

        self.queue_class = GatedQueue
        self._spoke_at = self._looked_at = float("-inf")
        self.stop_signals = 0
        """How many stop signals have come. Written in a signal handler, so a plain number."""
        self.cancel_event = threading.Event()
        """Set when somebody asks, through rq, that the running job be stopped."""
        options.setdefault("worker_ttl", WORKER_TTL_S)
        options.setdefault("serializer", SERIALIZER)
        super().__init__([queue], name, connection=connection, **options)

    def ring(self, k: str) -> str:
        """The batch job: returns OK, DONE, BUSY, FENCED or GONE, and raises nothing."""
        raise NotImplementedError

    def gate(self) -> Gate:
        """What to do at the safe point; called before every pop, in the main thread."""
        return Gate.STOP if self.stop_signals else Gate.GO

    def execute_job(self, job: Job, queue: Queue) -> None:
        self.cancel_event.clear()
        if isinstance(job, BellJob):
            job.ring = self.ring
        super().execute_job(job, queue)

    # A signal handler runs between any two bytecodes of the main thread: it must not raise (the job would die half
    # way), and must not take a lock (the main thread may hold it). rq's own do both.

    def request_stop(self, signum: Any, frame: Any) -> None:
        self._shutdown()

    def request_force_stop(self, signum: int, frame: Any) -> None:
        self._shutdown()

    def _shutdown(self) -> None:
        self.stop_signals += 1
        self._stop_requested = True

    # Between a bell and its batch stands what rq keeps for people. Each step of it is a round trip, or several: what
    # says nothing new is not sent, and what comes before the job goes in one.

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """As rq's, but not where it has just been said; and a stop ends an idle worker without a server, too: rq tries
        for ever, and asks no gate then.
        """
        if pipeline is None:
            t = time.monotonic()
            if t - self._spoke_at < SPEAK_EVERY_S:
                return
            self._spoke_at = t
        try:
            super().heartbeat(timeout, pipeline)
        except (ConnectionError, TimeoutError):
            if self.stop_signals and not self.executions:
                raise StopRequested from None
            raise

    def teardown(self) -> None:
        try:
            super().teardown()  # type: ignore[no-untyped-call]
        except (ConnectionError, TimeoutError):
            if not self.stop_signals:
                raise
            # Its registration expires; where there is a supervisor, that one clears it.

    def kill_horse(self, sig: Any = None) -> None:
        self.cancel_event.set()

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        return HEARTBEAT_TTL_S

    def set_state(self, state: str, pipeline: Pipeline | None = None) -> None:
        if pipeline is not None or state != self._state:
            super().set_state(state, pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        t = time.monotonic()
        if burst or t - self._looked_at >= SUSPENDED_EVERY_S:
            super().check_for_suspension(burst)
            self._looked_at = time.monotonic()

    def prepare_execution(self, job: Job) -> Execution:
        """As rq's, together with what rq does in `prepare_job_execution`; but the hash gets an expiry where rq takes it
        away: a bell that is never finished must go.
        """
        with self.connection.pipeline() as pipe:
            execution = Execution.create(job, HEARTBEAT_TTL_S, pipeline=pipe, worker_name=self.name)
            self.executions[execution.id] = execution
            self.set_state(WorkerStatus.BUSY, pipeline=pipe)
            self.heartbeat(HEARTBEAT_TTL_S, pipeline=pipe)
            job.prepare_for_execution(self.name, pipeline=pipe)
            pipe.expire(job.key, BELL_TTL_S)
            pipe.lrem(keys.rq_intermediate(job.origin), 1, job.id)
            pipe.execute()
        faults.reach("execution_entered")
        self.procline(f"Grading {job.id} from {job.origin}")  # type: ignore[no-untyped-call]
        return execution

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        pass

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        job.ended_at = job.last_heartbeat = now()  # goes out with the rest of what rq writes at a job's end


def clear_worker(connection: Redis, queue: str, name: str) -> list[str]:
    """Clears what rq keeps of a worker whose process is gone: its executions, and its registration.

    Returns the ids of the jobs that it was at. rq's own `job.delete()` is no way: after a crash it raises, since an
    execution's hash expires before its entry. To be called after `BatchQueue.bury`.
    """
    executions_key = f"rq:worker:{name}:executions"
    found: list[str] = []
    with connection.pipeline() as pipe:
        for entry in connection.smembers(executions_key):
            named = text(entry)
            if named.count(":") != 1:  # no entry of rq's; it goes with the rest
                continue
            execution = Execution.from_composite_key(named, connection)
            execution.worker_name = name
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
    """Batches with a bell on the queue's list. One LRANGE: rq's own counts and registries run clean-ups."""
    listed = (raw(entry) for entry in connection.lrange(keys.rq_queue(queue), 0, -1))
    found = (keys.k_of_job(entry.decode("utf-8", "replace")) for entry in listed)
    return {k for k in found if k is not None}
