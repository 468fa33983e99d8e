"""A supervisor's end, once no worker process is left: rounds under way are waited for, and the queue is told.

All of it takes a few seconds at most, also where the server or the daemon hang. What could not be said by then mends by
itself: leases and heartbeats run out, and the next supervisor of the node buries what is left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from redis import Redis

from collimate_rl.errors import QueueError
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from worker import logs
from worker.janitor import JanitorRounds
from worker.node_lease import NodeLease
from worker.periodic import Periodic
from worker.persist import persist
from worker.process import ProcessId
from worker.pulse import Pulse
from worker.session_janitor import SessionJanitor
from worker.settings import WorkerSettings

ALL_S = 4.0
"""Nothing is begun later than that. What was begun then ends with its answer, or `ANSWER_S` later."""
ROUNDS_S = 2.0
"""How much of it rounds under way may take: of the janitors, and of looks at the daemon."""
ANSWER_S = 2.0
"""How long the server, or the daemon, may take for one answer: one that hangs is as good as away."""
CALM_S = 1.0
"""How long a server that is away is tried where every worker process ended by itself: nothing is to be buried."""


def connect_shortly(url: str) -> Redis:
    """A client that waits for no answer for longer than `ANSWER_S`, and sends nothing again."""
    return connect_commands(url, timeout_s=ANSWER_S, retries=0)


class Parting:
    """The end of the supervisor `identity`; `end` is called once, when all its worker processes are gone.

    loops -- what it does round after round.
    connect -- makes a client for a URL that waits shortly.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        queue: BatchQueue,
        identity: ProcessId,
        *,
        pulse: Pulse,
        janitor: JanitorRounds,
        lease: NodeLease,
        loops: Sequence[Periodic],
        connect: Callable[[str], Redis] = connect_shortly,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._token = str(identity)
        self._pulse = pulse
        self._janitor = janitor
        self._lease = lease
        self._loops = loops
        self._connect = connect
        self._clock = clock
        self._sleep = sleep

    def end(self, *, killed: bool) -> None:
        """`killed`: some processes had to be, so that what they owned is to be given back."""
        started = self._clock()
        for loop in self._loops:
            loop.end()
        for loop in self._loops:
            loop.stop(max(0.0, started + ROUNDS_S - self._clock()))
        until = started + ALL_S if killed else min(started + ALL_S, self._clock() + CALM_S)
        client = self._connect(self._settings.redis_url)
        try:
            self._say(client, until)
        except QueueError as error:
            logs.emit(logs.REDIS_DOWN, logging.WARNING, error=error.message)
        finally:
            client.close()

    def _say(self, client: Redis, until: float) -> None:
        persist(
            lambda: self._pulse.fall_silent(client, patience_s=ANSWER_S),
            for_s=until - self._clock(),
            clock=self._clock,
            sleep=self._sleep,
        )
        queue = BatchQueue(client, self._queue.queue, timing=self._queue.timing)
        self._janitor.resign(queue)
        self._lease.release(queue)
        # Sessions of what was just released; by a client of its own, as a daemon that hangs must not hold the stop up.
        sessions = SessionJanitor.for_node(self._settings, queue, self._token, timeout_s=ANSWER_S, retries=0)
        sessions.round()
        sessions.resign()
