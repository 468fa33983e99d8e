"""What a supervisor tells the queue, round after round: its workers live, the node lives, the dead are buried."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from redis import Redis

from collimate_rl import __version__
from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.protocol import keys
from collimate_rl.queue import faults
from collimate_rl.queue._raw import text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.replies import Buried
from collimate_rl.queue.rq_edge import clear_worker
from worker import logs
from worker.backend import BackendState
from worker.names import is_supervised
from worker.outage import Outage
from worker.process import ProcessId
from worker.settings import WorkerSettings

ALIVE_EVERY_S = 3.0
BURYING_S = 5.0
"""How long one thread waits for another's burials: a server that hangs must hold no stop up."""


class Pulse:
    """One supervisor's voice on the queue. `round` is called by a thread of its own, every beat.

    `rq_client` is for what rq keeps of a dead worker; `living` gives the names of the worker processes that are alive
    and which process each is; `backend` what is known of the sandbox daemon; `home`: no other node reaches it.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        queue: BatchQueue,
        rq_client: Redis,
        *,
        living: Callable[[], Mapping[str, str]],
        backend: Callable[[], BackendState | None],
        home: bool = False,
        on_buried: Callable[[Buried], None] = lambda _reply: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._rq = rq_client
        self._living = living
        self._backend = backend
        self._home = home
        self._clock = clock
        self._dead: list[tuple[str, bool]] = []
        self._burying = threading.Lock()
        self._said_alive_at = float("-inf")
        self._on_buried = on_buried
        self._wall = wall
        self._outage = Outage(clock=clock)
        self.down: str | None = None
        """Why the last round could not say what was due; None when it could, or before the first."""
        self.said_at: float | None = None
        """When a round said all that was due last, Unix seconds."""

    def died(self, worker: str, *, counts: bool = True) -> None:
        """The process of this worker is gone: the next round buries it. `counts`: perhaps by a candidate's doing."""
        self._dead.append((worker, counts))

    def round(self) -> None:
        """Say what is due. A server that is away is reported now and then; the next round says it all again."""
        try:
            self._bury_dead()
            living = dict(self._living())
            if self._clock() - self._said_alive_at >= min(ALIVE_EVERY_S, self._queue.timing.alive_ms / 3000):
                self._queue.alive(living)
                self._said_alive_at = self._clock()
            self._queue.beat(self._settings.node, heartbeat(self._settings, self._backend(), len(living)))
        except RedisUnavailable as error:
            self.down = error.message
            self._outage.report(logs.REDIS_DOWN, error=error.message)
            return
        self.down, self.said_at = None, self._wall()
        away_s = self._outage.over()
        if away_s is not None:
            logs.emit(logs.REDIS_BACK, away=round(away_s, 1))

    def speak_now(self) -> None:
        """A process was started: the next round says that it lives."""
        self._said_alive_at = float("-inf")

    def fall_silent(self, client: Redis, *, patience_s: float = BURYING_S) -> None:
        """At the end: bury what is left, and take the node's heartbeat back, over `client`, which waits shortly.

        `patience_s` bounds the wait for a burial under way. Raises `RedisUnavailable`.
        """
        self._queue = BatchQueue(client, self._queue.queue, timing=self._queue.timing)
        self._rq = client
        self._bury_dead(patience_s)
        with translate_errors("take back the node's heartbeat"), client.pipeline() as pipe:
            pipe.delete(keys.node(self._settings.node))
            pipe.zrem(keys.nodes(self._queue.queue), self._settings.node)
            pipe.execute()

    def _bury_dead(self, patience_s: float = BURYING_S) -> None:
        if not self._burying.acquire(timeout=patience_s):
            raise RedisUnavailable("the server has not answered yet to the burial before this one")
        try:
            while self._dead:
                faults.reach("death_seen")
                worker, counts = self._dead[0]
                reply = bury(self._queue, self._rq, self._settings.node, worker, counts=counts, home=self._home)
                self._dead.pop(0)
                self._on_buried(reply)
        finally:
            self._burying.release()


def heartbeat(settings: WorkerSettings, state: BackendState | None, processes: int) -> dict[str, Any]:
    """What a node tells of itself: JSON data; `templates` where the daemon has said which it has, and
    `failed_templates`, name to reason, where some could not be brought up."""
    return {
        "queue": settings.queue,
        "processes": processes,
        "slots": settings.slots,
        "backend": settings.backend,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": __version__,
        **({} if state is None else {"up": state.up, "reason": state.reason, "isolation": state.isolation}),
        **({} if state is None else {"draining": state.draining, "daemon_version": state.version}),
        **({} if state is None or state.templates is None else {"templates": list(state.templates)}),
        **({} if state is None or not state.failed else {"failed_templates": dict(state.failed)}),
    }


def bury(queue: BatchQueue, rq_client: Redis, node: str, worker: str, *, home: bool, counts: bool = True) -> Buried:
    """Give back what a dead worker owned, then clear what rq keeps of it. Raises `RedisUnavailable`.

    NONE when it owned nothing, or when that cannot be told.

    home -- no other node reaches this one's daemon, so that a batch with sessions there is tried here first.
    """
    try:
        reply = queue.bury(node, worker, counts=counts, home=home)
        faults.reach("buried")
        with translate_errors(f"clear what rq keeps of worker {worker}"):
            bells = clear_worker(rq_client, queue.queue, worker, k=reply.k)
    except RedisUnavailable:
        raise
    except QueueError as error:
        # Keys that are not ours to mend: the batch is left to its lease, and the other dead are buried.
        logs.emit(logs.BURIED, logging.ERROR, buried=worker, reply="failed", error=error.message)
        return Buried.NONE
    if reply.word is not Buried.NONE or bells:
        level = logging.INFO if reply.word is Buried.NONE else logging.WARNING
        logs.emit(logs.BURIED, level, buried=worker, reply=reply.word.value, k=reply.k or "", bells=bells)
    return reply.word


def bury_earlier_life(queue: BatchQueue, rq_client: Redis, node: str, *, home: bool) -> None:
    """At start-up: what this node's workers of an earlier supervisor left behind. Raises `RedisUnavailable`.

    A worker of an earlier supervisor that is still alive on this machine is an orphan (the kernel's signal at its
    supervisor's death did not come through) and is killed first. One that cannot be seen from here (another machine or
    container under this node's name) is left to its lease, and so is a living plain rq worker.
    """
    workers = set(queue.owned(node)) | _registered(queue, rq_client, node)
    for worker, process in queue.who_is_alive(workers).items():
        identity = ProcessId.parse(process)
        alive = None if identity is None else identity.alive()
        if identity is not None and alive and is_supervised(node, worker):
            _kill(worker, identity)
        elif alive is not False:
            workers.discard(worker)
    for worker in sorted(workers):
        faults.reach("earlier_life")
        bury(queue, rq_client, node, worker, home=home)


def _registered(queue: BatchQueue, rq_client: Redis, node: str) -> set[str]:
    """Workers of this node's supervisors that rq has on its list."""
    with translate_errors("read rq's list of workers"):
        members = rq_client.smembers(f"rq:workers:{queue.queue}")
    names = {text(member).removeprefix("rq:worker:") for member in members}
    return {name for name in names if is_supervised(node, name)}


def _kill(worker: str, identity: ProcessId) -> None:
    logs.emit(logs.ORPHAN_KILLED, logging.WARNING, orphan=worker, pid=identity.pid)
    until = time.monotonic() + 5.0
    try:
        os.kill(identity.pid, signal.SIGKILL)
        while identity.alive() and time.monotonic() < until:
            time.sleep(0.01)
    except ProcessLookupError:
        pass  # it went by itself meanwhile
