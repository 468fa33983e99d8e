"""`NodeWorker`: the rq worker that answers bells by grading batches.

`python -m worker` runs one per process under a supervisor. Plain rq can run it too, with the settings from the
environment: `rq worker grade --worker-class worker.NodeWorker --serializer
collimate_rl.queue.codec.MsgpackSerializer`; it then speaks for itself (`worker.plain`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq.job import Job
from rq.queue import Queue

from collimate_rl.errors import BACKPRESSURE, CollimateError
from collimate_rl.gateway import GatewayClient
from collimate_rl.grading.execute import Executor, OneShotExecutor
from collimate_rl.protocol import GradeBatch
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands, connect_rq
from collimate_rl.queue.replies import Hold
from collimate_rl.queue.rq_edge import Gate
from collimate_rl.queue.rq_worker import BellWorker
from worker import logs, metrics
from worker.backend import LOOK_TIMEOUT_S, Backend, BackendState, client_for, endpoint_of
from worker.batch_job import run_batch
from worker.batch_sessions import Daemon
from worker.bench import Bench
from worker.executor import RetryPolicy
from worker.gateway_slots import Seats, seated
from worker.intake import Intake
from worker.ledger import SessionLabel
from worker.pause import NodePause, pause_file
from worker.plain import PlainLife, plain_name
from worker.settings import WorkerSettings, load, parse_timing
from worker.slots import Slots, slots_directory
from worker.tally import Tally
from worker.turns import Turns, gate_of

BLOCK_TTL_S = 16
"""rq blocks for this minus 15 s: one second, so that an idle worker stops, or sees the daemon come back, soon."""
RQ_HEARTBEAT_S = 30.0


def stop_margin(grace_s: float) -> float:
    """How much of the grace is kept for releasing what could not be finished, before the supervisor kills."""
    return min(5.0, grace_s / 2)


class NodeWorker(BellWorker):
    """Grades the batches of one queue, one at a time.

    queues -- the one queue, by name or as rq's object.
    name -- unique per start; without a supervisor it is only a part of the name.
    connection -- ignored: rq's defaults lose jobs. The connections are made here, from the settings' `redis_url`.
    settings -- from the environment and the file when not given.
    supervised -- a supervisor says that this process is alive, and buries it.
    tally -- where to count what this process does; a supervisor shows it.
    """

    starts_quietly = True

    def __init__(
        self,
        queues: str | Queue | Sequence[str | Queue],
        name: str | None = None,
        connection: Redis | None = None,  # noqa: ARG002 - part of rq's signature
        *,
        settings: WorkerSettings | None = None,
        supervised: bool = False,
        tally: Tally | None = None,
        **options: Any,
    ) -> None:
        queue = _only_queue(queues)
        self.settings = replace(settings or load({}).settings, queue=queue)
        commands = connect_commands(self.settings.redis_url)
        self.batches = BatchQueue(commands, queue, timing=parse_timing(self.settings.timing))
        self._backend = Backend(self.settings.backend)
        self._seen = BackendState(up=False)
        self._template: str | None = None
        self._pause = NodePause(pause_file(self.settings.state_dir, self.settings.node))
        self._intake = Intake(
            self._look,
            self._pause,
            allow_unisolated=self.settings.allow_unisolated,
        )
        found = client_for(self.settings.backend)
        tidy = client_for(self.settings.backend, timeout=LOOK_TIMEOUT_S, retries=1)
        self._on_gateway = isinstance(found, GatewayClient)
        seats = Seats.for_client(self.batches, found, self.settings.gateway_cap)
        self._sandboxes = seated(found, seats)
        self._stopping_since: float | None = None
        self._job: Job | None = None
        self._rq_told = False
        self._rq_beat_at = 0.0
        # What plain rq passes of its own classes and timing would undo what BellWorker is for.
        for dropped in ("queue_class", "job_class", "serializer", "default_worker_ttl", "worker_ttl"):
            options.pop(dropped, None)
        super().__init__(
            queue,
            name if supervised and name else plain_name(self.settings.node, name),
            connect_rq(self.settings.redis_url),
            node=self.settings.node,
            worker_ttl=BLOCK_TTL_S,
            **options,
        )
        tally = tally or Tally()
        directory = slots_directory(self.settings.state_dir, self.settings.node)
        self._slots = Slots(
            directory,
            self.settings.slots,
            on_held=lambda count: tally.set(metrics.SLOTS_IN_USE, count),
        )
        # A worker without a supervisor keeps no others from taking batches: how many there are is for who starts them.
        shared = supervised and self.settings.processes == 0
        self._turns = Turns(directory, self.settings.first_processes) if shared else None
        self.bench = Bench(
            queue=self.batches,
            worker=self.name,
            node=self.settings.node,
            executor_for=self._executor_for,
            daemon=Daemon(
                client=self._sandboxes,
                tidy=seated(tidy, seats),
                node=self.settings.node,
                endpoint=endpoint_of(self._sandboxes),
                labels=self._takes_labels,
                one_shot=not self._on_gateway,
                left=(lambda _session: None) if seats is None else seats.leave,
            ),
            slots=self._slots,
            retry=RetryPolicy(
                retries=self.settings.retries,
                backoff_s=self.settings.retry_backoff,
                waits_out=BACKPRESSURE if self._on_gateway else frozenset(),
            ),
            hops=self.settings.hops,
            concurrency=self.settings.batch_concurrency,
            grace_s=self.settings.grace - stop_margin(self.settings.grace),
            drains=self._pause.drains,
            tally=tally,
            drop_on_stop=self.settings.on_stop == "delete",
            all_begun=self._pass_turn,
        )
        self._plain = None if supervised else PlainLife(self.settings, self.batches, self.connection, self.name)

    @property
    def refused(self) -> str | None:
        """Why this worker must not take jobs at all; None when it may."""
        return self._intake.refused

    def work(self, *args: Any, **options: Any) -> bool:
        if self._plain is None:
            return super().work(*args, **options)
        self._plain.begin()
        try:
            worked = super().work(*args, **options)
        finally:
            self._plain.end()
        if self.refused is not None:
            self._plain.refuse(self.refused)
        if not self.stop_signals and not any(options.get(name) for name in ("burst", "max_jobs", "max_idle_time")):
            self._plain.broken_off()
        return worked

    def ring(self, k: str) -> str:
        return run_batch(self.bench, self, k)

    def gate(self) -> Gate:
        return self._open() if self._turns is None else gate_of(self._turns, self._open)

    def _open(self) -> Gate:
        if self.stop_signals:
            return Gate.STOP
        if self._intake.may_take():
            return Gate.GO
        return Gate.STOP if self._intake.refused is not None else Gate.WAIT

    def _pass_turn(self) -> None:
        if self._turns is not None:
            self._turns.give_back()

    def execute_job(self, job: Job, queue: Queue) -> None:
        self._job, self._rq_told = job, False
        super().execute_job(job, queue)

    # What the batch job asks its host.

    def stopping_for(self) -> float | None:
        if not self.stop_signals:
            return None
        if self._stopping_since is None:  # not set in the signal handler, which only counts
            self._stopping_since = time.monotonic()
        return time.monotonic() - self._stopping_since

    def cancel_asked(self) -> bool:
        return self.cancel_event.is_set()

    def tick(self) -> None:
        """A SimpleWorker's main thread is in the job, so what rq keeps of it comes from the keeper's thread: that it
        was started, at the first look at a batch that isn't over by then, and heartbeats.
        """
        if self._rq_told and time.monotonic() - self._rq_beat_at < RQ_HEARTBEAT_S:
            return
        first, self._rq_told = not self._rq_told, True
        self._rq_beat_at = time.monotonic()
        job, execution = self._job, self.execution
        if execution is None or job is None:
            return
        try:
            if first:
                self.tell_started(job, execution)
            else:
                self.maintain_heartbeats(job, execution)
        except RedisError:
            pass  # rq's view is for people; our lease is renewed elsewhere

    def backend_failed(self, error: CollimateError) -> None:
        self._intake.failed(error, self._template)

    def leave(self) -> None:
        """End at once; a supervisor clears what rq keeps of this process."""
        if self._plain is not None:
            self._plain.leave()
        logs.emit(logs.WORKER_STOPPED, stopped_by="signal")
        os._exit(0)

    def _look(self, template: str | None) -> BackendState:
        self._seen = self._backend.ready(template)
        return self._seen

    def _takes_labels(self) -> bool:
        return self._on_gateway or "label" in self._seen.capabilities

    def _executor_for(self, batch: GradeBatch, hold: Hold) -> Executor:
        self._template = batch.template
        label = str(SessionLabel(k=hold.k, index=None, fence=hold.fence)) if self._takes_labels() else None
        return OneShotExecutor(
            self._sandboxes, batch.template, egress=batch.egress, label=label, label_execs=self._on_gateway
        )


def _only_queue(queues: str | Queue | Sequence[str | Queue]) -> str:
    listed = [queues] if isinstance(queues, str | Queue) else list(queues)
    if len(listed) != 1:
        raise ValueError(f"a worker serves one queue, not {len(listed)}: with several, rq can lose jobs")
    return listed[0] if isinstance(listed[0], str) else listed[0].name
