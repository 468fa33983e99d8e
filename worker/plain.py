"""A worker under plain `rq worker`: what a supervisor does for its processes, such a worker does for itself.

It says that it lives and what its node has, checks the server, and when it stops it leaves nothing behind. Only its
death is beyond it: `python -m worker janitor` beside it buries the node's dead (`bury_dead`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from collimate_rl._variables import warn_once
from collimate_rl.errors import CollimateError, QueueError, RedisUnavailable
from collimate_rl.protocol.bounds import mask_secrets
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import normal_url
from collimate_rl.queue.rq_edge import clear_worker
from collimate_rl.queue.server_check import check_server
from worker import logs
from worker.backend import Backend, BackendState, remembering
from worker.names import worker_name
from worker.periodic import Periodic
from worker.process import ProcessId
from worker.pulse import ALIVE_EVERY_S, bury, heartbeat
from worker.settings import WorkerSettings, load

EXIT_BROKEN_OFF = 1
"""As rq's own command ends when the server is away at the start."""
EXIT_REFUSED = 2
LOOK_EVERY_S = 5.0
PLACE = "rq"
"""Begins the place in a plain worker's name; a supervisor's places are numbers."""


def plain_name(node: str, given: str | None) -> str:
    """A name for this start. What was given on rq's command line is a part of it: no name may be used twice."""
    return worker_name(node, PLACE + re.sub(r"[^A-Za-z0-9._-]", "-", given or str(os.getpid()))[:16])


def lend_url() -> None:
    """Have rq's command ask the server that our settings name, where it has been told of none.

    It asks, over a connection of its own, whether work is suspended, before it builds the worker. It takes the URL from
    its option, from RQ_REDIS_URL, or from REDIS_URL, which it reads after it has imported the worker's class.
    """
    if Path(sys.argv[0]).name == "rq" and not {"RQ_REDIS_URL", "REDIS_URL"} & set(os.environ):
        try:
            os.environ["REDIS_URL"] = normal_url(load({}).settings.redis_url)
        except ValueError:
            pass  # the worker, built next from the same settings, says what is wrong with them


class PlainLife:
    """One plain worker's life on the queue, beside its work. `rq_client` is for what rq keeps of it."""

    def __init__(self, settings: WorkerSettings, queue: BatchQueue, rq_client: Redis, worker: str) -> None:
        self._settings = settings
        self._queue = queue
        self._rq = rq_client
        self._worker = worker
        self._identity = str(ProcessId.own())
        self._backend = Backend(settings.backend)
        self._state: BackendState | None = None
        alive_s = min(ALIVE_EVERY_S, queue.timing.alive_ms / 3000)
        self._loops = [
            Periodic("alive", alive_s, self._quietly(self._say_alive)),
            Periodic("pulse", queue.timing.beat_every_ms / 1000, self._quietly(self._beat)),
            Periodic("backend", LOOK_EVERY_S, self._look),
        ]

    def begin(self) -> None:
        """Before the first job. Ends the process where the server is away (1) or would lose batches (2)."""
        settings = self._settings
        logs.configure(settings.log_format, settings.log_level, rq=False, node=settings.node, worker=self._worker)
        warn_once()
        try:
            title = check_server(self._queue.client)
        except RedisUnavailable as error:
            logs.emit(logs.REDIS_DOWN, logging.ERROR, error=error.message)
            raise SystemExit(EXIT_BROKEN_OFF) from error
        except QueueError as error:
            self.refuse(error.message)
        self._say_alive()
        for loop in self._loops:
            loop.start()
        logs.emit(logs.WORKER_READY, queue=self._queue.queue, server=title, redis=mask_secrets(settings.redis_url))

    def refuse(self, reason: str) -> None:
        """End the process: it must not work here."""
        logs.emit(logs.REFUSED, logging.ERROR, reason=reason)
        raise SystemExit(EXIT_REFUSED)

    def end(self) -> None:
        """After the last job."""
        for loop in self._loops:
            loop.stop(5.0)
        logs.emit(logs.WORKER_STOPPED, stopped_by="loop")

    def broken_off(self) -> None:
        """Nobody asked rq's loop to end: the process must not end as if somebody had, or it isn't started again."""
        raise SystemExit(EXIT_BROKEN_OFF)

    def leave(self) -> None:
        """End the process now, while execs whose answers nobody wants are still under way; called by any thread."""
        try:
            clear_worker(self._rq, self._queue.queue, self._worker)
        except RedisError:
            pass  # rq forgets a silent worker by itself
        logs.emit(logs.WORKER_STOPPED, stopped_by="signal")
        os._exit(0)

    def _quietly(self, say: Callable[[], None]) -> Callable[[], None]:
        def round_() -> None:
            try:
                say()
            except RedisUnavailable as error:
                logs.emit(logs.REDIS_DOWN, logging.DEBUG, error=error.message)

        return round_

    def _say_alive(self) -> None:
        self._queue.alive({self._worker: self._identity})

    def _beat(self) -> None:
        self._queue.beat(self._settings.node, heartbeat(self._settings, self._state, 1))

    def _look(self) -> None:
        try:
            state = self._backend.look()
        except CollimateError as error:
            state = BackendState(up=False, reason=error.message)
        self._state = remembering(state, self._state)


def bury_dead(queue: BatchQueue, rq_client: Redis, node: str, *, home: bool) -> list[str]:
    """Give back what plain workers of this node owned whose processes are seen to be gone; returns their names.

    A worker whose alive key has run out is left to its lease: after an outage of the server everybody's has.
    Raises `RedisUnavailable`.
    """
    dead = []
    for worker, process in queue.who_is_alive(queue.owned(node)).items():
        identity = ProcessId.parse(process)
        if identity is not None and identity.alive() is False:
            bury(queue, rq_client, node, worker, home=home)
            dead.append(worker)
    return dead
