"""rq's worker as our queues need it (rq >= 3.0, < 4): what it asks before a pop, and what it tells of a job."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import uuid4

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError, TimeoutError
from rq.exceptions import StopRequested
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.registry import StartedJobRegistry
from rq.timeouts import BaseDeathPenalty
from rq.utils import now
from rq.worker import SimpleWorker, WorkerStatus

from collimate_rl.protocol import keys
from collimate_rl.queue import faults
from collimate_rl.queue.rq_edge import BELL_TTL_S, SERIALIZER, BellJob, BellQueue, Gate

HEARTBEAT_TTL_S = 120
"""rq's own idea of a lost job must come after our lease has spoken."""
WORKER_TTL_S = 20
"""rq blocks on the queue for this minus 15 s."""
SPEAK_EVERY_S = 5.0
"""rq beats a worker's heart five times per job, for a registration that lives for more than a minute."""
SUSPENDED_EVERY_S = 1.0
"""How often a busy worker looks whether `rq suspend` holds the workers back."""


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
    starts_quietly = False
    """Whether `ring` sees to `tell_started`, while the batch runs; of a job that ends before, only its end is told."""

    def __init__(self, queue: str, name: str, connection: Redis, *, node: str | None = None, **options: Any) -> None:
        ask = self.gate

        class GatedQueue(BellQueue):
            gate = staticmethod(ask)
            homed = None if node is None else keys.homed(queue, node)

        class ListedJob(BellJob):
            listed_on = queue

        self.queue_class, self.job_class = GatedQueue, ListedJob
        self._telling = threading.Lock()
        self._told: set[str] = set()
        """Executions that the server has perhaps been told of."""
        self._unended: dict[str, tuple[Job, Execution]] = {}
        """Those of whose end it has perhaps not been told."""
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

    # Between a bell and its batch stands what rq keeps for people, step by step a round trip, or several. What says
    # nothing new is not sent; and that a job was started is sent in one, by `tell_started`.

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """As rq's, but not where it has just been said; and a stop ends an idle worker without a server, too: rq tries
        for ever, and asks no gate then.
        """
        if pipeline is None:
            try:
                self._tell_ended()
            except (ConnectionError, TimeoutError):
                pass  # with the next heartbeat, then, or when this worker parts
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
            self._tell_ended()  # before rq strikes out the list by which a supervisor would
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
        execution = Execution(uuid4().hex, job.id, self.connection, worker_name=self.name)
        self.executions[execution.id] = execution
        self._unended[execution.id] = job, execution
        job.started_at, job.worker_name = now(), self.name
        if not self.starts_quietly:
            self.tell_started(job, execution)
        return execution

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        pass

    def tell_started(self, job: Job, execution: Execution) -> None:
        """Tell the server who is at this bell. Once; not when the execution is over. May come from another thread.

        As rq's steps before a job, but the hash gets an expiry where rq takes it away: a bell that is never finished
        must go.
        """
        with self._telling:
            if execution.id not in self.executions or execution.id in self._told:
                return
            self._told.add(execution.id)
            with self.connection.pipeline() as pipe:
                self._enter(job, execution, pipe)
                self.set_state(WorkerStatus.BUSY, pipeline=pipe)
                self.heartbeat(HEARTBEAT_TTL_S, pipeline=pipe)
                job.last_heartbeat = now()
                job.set_status(JobStatus.STARTED, pipeline=pipe)
                job.save(pipeline=pipe)
                pipe.expire(job.key, BELL_TTL_S)
                pipe.lrem(keys.rq_intermediate(job.origin), 1, job.id)
                pipe.execute()
        faults.reach("execution_entered")
        self.procline(f"Grading {job.id} from {job.origin}")  # type: ignore[no-untyped-call]

    @staticmethod
    def _enter(job: Job, execution: Execution, pipe: Pipeline) -> None:
        """As rq's `Execution.create`."""
        execution.save(ttl=HEARTBEAT_TTL_S, pipeline=pipe)
        ExecutionRegistry(job_id=job.id, connection=pipe).add(execution=execution, ttl=HEARTBEAT_TTL_S, pipeline=pipe)
        job.started_job_registry.add_execution(execution, pipeline=pipe, ttl=HEARTBEAT_TTL_S, xx=False)
        pipe.sadd(execution.worker_executions_key, execution.composite_key)
        pipe.expire(execution.worker_executions_key, HEARTBEAT_TTL_S + 60)

    def cleanup_execution(self, job: Job, pipeline: Pipeline, execution: Execution | None = None) -> None:
        with self._telling:
            told = execution is None or execution.id in self._told
            if execution is not None:
                self.executions.pop(execution.id, None)
        if told:
            super().cleanup_execution(job, pipeline, execution)
        else:
            pipeline.lrem(keys.rq_intermediate(job.origin), 1, job.id)

    def handle_job_success(
        self, job: Job, queue: Queue, started_job_registry: StartedJobRegistry, execution: Execution
    ) -> None:
        """As rq's, but it does not watch for what no bell has: jobs that depend on it, repeats, a rate limit."""
        assert job.started_at is not None
        assert job.ended_at is not None
        assert job.result_ttl is not None
        with self.connection.pipeline() as pipe:
            self.increment_successful_job_count(pipeline=pipe)
            self.increment_total_working_time(job.ended_at - job.started_at, pipe)
            job._handle_success(
                job.result_ttl,
                pipeline=pipe,
                worker_name=self.name,
                execution_id=execution.id,
                execution_started_at=execution.created_at,
                execution_ended_at=job.ended_at,
            )
            pipe.expire(job.key, job.result_ttl)
            self.cleanup_execution(job, pipeline=pipe, execution=execution)
            pipe.execute()
        self._has_ended(execution)
        self.log.info("Successfully completed job %s on worker %s", job.id, self.name)

    def _has_ended(self, execution: Execution) -> None:
        self._unended.pop(execution.id, None)
        self._told.discard(execution.id)

    def _tell_ended(self) -> None:
        """Of jobs whose end the server has perhaps not heard of, as connections broke then: rq tells it twice at most,
        and goes on. To be called between jobs."""
        for job, execution in list(self._unended.values()):
            with self.connection.pipeline() as pipe:
                self.cleanup_execution(job, pipeline=pipe, execution=execution)
                pipe.execute()
            self._has_ended(execution)

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        job.ended_at = job.last_heartbeat = now()  # goes out with the rest of what rq writes at a job's end
