"""What a supervisor tells the outside: its pages, and the looks that it takes only so that they can say something.

Gathering is cheap and waits for nothing: what has to be asked of the daemon or of the queue is asked by loops of its
own, which run only where the pages are served.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.numbers import Numbers, read_numbers
from worker import logs, metrics
from worker.backend import Backend, BackendState
from worker.health import Check, check, healthz, readyz
from worker.metrics_server import MetricsServer, Page
from worker.outage import Outage
from worker.pause import Pause
from worker.periodic import Periodic
from worker.settings import WorkerSettings
from worker.tally import Board

BEATS_PER_LOOK = 5
STALE_S = 60.0
"""A probe that is older says nothing: the daemon hangs."""
SILENT_S = 15.0
"""A server that took no heartbeat for so long is away, even if none was refused: it hangs."""
READ_SHARE = 0.02
"""At most this share of the time goes into reading the queue, however long it is."""
KEEP_S = 0.25
"""A page is made once in that time, however often it is asked for."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the supervisor knows at an instant."""

    redis_down: str | None
    """Why the server did not take the last heartbeat; None when it did, or when none was tried yet."""
    heartbeat_at: float | None
    """When the server took a heartbeat last, Unix seconds."""
    living: int
    """Worker processes."""
    pause: Pause | None
    leads: bool
    """Its janitor leads the queue."""
    stopping: bool


class Monitor:
    """Serves `/metrics`, `/healthz` and `/readyz` where the settings name a port; else it does nothing."""

    def __init__(
        self,
        settings: WorkerSettings,
        queue: BatchQueue,
        board: Board,
        facts: Callable[[], Facts],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._board = board
        self._facts = facts
        self._clock = clock
        self._wall = wall
        self._every_s = BEATS_PER_LOOK * queue.timing.beat_every_ms / 1000
        self._turned_at = clock()
        self._made: tuple[float, Page] | None = None
        self._probed: tuple[float, BackendState] | None = None
        self._read_next = clock()
        self._outage = Outage(clock=clock)
        self._server: MetricsServer | None = None
        self._loops: list[Periodic] = []
        own = board.own
        own.set(metrics.SLOTS, settings.slots)
        own.set(metrics.PROCESSES_WANTED, settings.first_processes)
        own.set(metrics.STARTED_AT, wall())
        self._forget_the_queue()

    def start(self) -> None:
        """Begin to serve, where the settings name a port.

        `OSError` when the address cannot be had, `ModuleNotFoundError` without the library that writes the page.
        """
        settings = self._settings
        if settings.metrics_port < 0:
            return
        try:
            from worker.metrics_page import MetricsPage
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "metrics need prometheus-client. Install the extra: pip install 'collimate-rl[worker]'", name=error.name
            ) from error
        self._page = MetricsPage(self._board, node=settings.node, queue=settings.queue)
        pages = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        self._server = MetricsServer(settings.metrics_host, settings.metrics_port, pages)
        self._backend = Backend(settings.backend)
        self._loops = [
            Periodic("probe", self._every_s, self._probe),
            Periodic("numbers", self._every_s, self._read_the_queue),
        ]
        self._server.start()
        logs.emit(logs.METRICS_SERVED, host=self._settings.metrics_host, port=self._server.port)
        for loop in self._loops:
            loop.start()

    def turn(self) -> None:
        """The supervisor's main loop goes round."""
        self._turned_at = self._clock()

    def end(self) -> None:
        """No further looks; the pages are served on."""
        for loop in self._loops:
            loop.end()

    def stop(self, timeout_s: float) -> None:
        """Serve nothing any more."""
        until = self._clock() + timeout_s
        for loop in self._loops:
            loop.stop(max(0.0, until - self._clock()))
        if self._server is not None:
            self._server.stop(timeout_s)

    # The pages

    def _metrics(self) -> Page:
        if self._made is None or self._clock() - self._made[0] >= KEEP_S:
            self._gather(self._facts())
            page = Page(status=200, content_type=self._page.content_type, body=self._page.text())
            self._made = (self._clock(), page)
        return self._made[1]

    def _healthz(self) -> Page:
        return healthz(self._clock() - self._turned_at)

    def _readyz(self) -> Page:
        return readyz(self._checks(self._facts()))

    def _checks(self, facts: Facts) -> list[Check]:
        ready = sum(cells[0] for cells in self._board.sums()[metrics.PROCESSES_READY.name].values())
        pause = facts.pause
        return [
            check("running", "it is stopping" if facts.stopping else None),
            check("redis", self._redis_away(facts)),
            check("backend", self._backend_away()),
            check("intake", None if pause is None else f"{'draining' if pause.draining else 'paused'}: {pause.reason}"),
            check("workers", None if ready else f"none of {facts.living} worker processes takes jobs yet"),
        ]

    def _redis_away(self, facts: Facts) -> str | None:
        if facts.redis_down is not None:
            return facts.redis_down
        if facts.heartbeat_at is None:
            return "the server has not taken a heartbeat yet"
        silent_s = self._wall() - facts.heartbeat_at
        longest_s = max(SILENT_S, 5 * self._queue.timing.beat_every_ms / 1000)
        return f"the server took the last heartbeat {silent_s:.0f} s ago" if silent_s > longest_s else None

    def _backend_away(self) -> str | None:
        if self._probed is None:
            return "the sandbox daemon has not been looked at yet"
        at, state = self._probed
        if self._clock() - at > STALE_S:
            return f"the last look at the sandbox daemon ended {self._clock() - at:.0f} s ago: it hangs"
        return None if state.up or state.busy else state.reason or "the sandbox daemon takes no work"

    # What they say

    def _gather(self, facts: Facts) -> None:
        own = self._board.own
        own.set(metrics.PROCESSES, facts.living)
        own.set(metrics.REDIS_UP, float(self._redis_away(facts) is None))
        own.set(metrics.HEARTBEAT_AT, metrics.ABSENT if facts.heartbeat_at is None else facts.heartbeat_at)
        own.set(metrics.JANITOR_LEADING, float(facts.leads and facts.redis_down is None))
        own.set(metrics.STOPPING, float(facts.stopping))
        own.set(metrics.BACKEND_UP, float(self._backend_away() is None))
        pause = facts.pause
        own.set(metrics.PAUSED, float(pause is not None and pause.draining), "draining")
        own.set(metrics.PAUSED, float(pause is not None and not pause.draining), "away")
        since = metrics.ABSENT if pause is None else self._wall() - max(0.0, self._clock() - pause.since)
        own.set(metrics.PAUSED_SINCE, since)

    def _probe(self) -> None:
        state = self._backend.ready()
        self._probed = (self._clock(), state)

    def _read_the_queue(self) -> None:
        if not self._facts().leads:
            self._forget_the_queue()
            return
        started = self._clock()
        if started < self._read_next:
            return
        try:
            numbers = read_numbers(self._queue, max_runs=1)
        except RedisUnavailable:
            self._forget_the_queue()  # the pulse says that the server is away
            return
        except QueueError as error:
            self._forget_the_queue()
            self._outage.report(logs.NUMBERS_FAILED, error=error.message)
            return
        self._outage.over()
        took = self._clock() - started
        self._read_next = self._clock() + took / READ_SHARE - self._every_s
        self._show_the_queue(numbers, took)

    def _show_the_queue(self, numbers: Numbers, took_s: float) -> None:
        alive = [node for node in numbers.nodes if node.heartbeat_s is not None]
        for family, number in (
            (metrics.QUEUE_UNANSWERED, numbers.unanswered),
            (metrics.QUEUE_WAITING, numbers.queued),
            (metrics.QUEUE_RUNNING, numbers.in_flight),
            (metrics.QUEUE_LOSSY, numbers.lossy),
            (metrics.QUEUE_OLDEST, numbers.oldest_s or 0.0),
            (metrics.QUEUE_SETTLED, numbers.settled),
            (metrics.QUEUE_NODES, len(alive)),
            (metrics.QUEUE_NODES_UP, sum(node.up is True for node in alive)),
            (metrics.QUARANTINED, numbers.quarantined),
            (metrics.READ_SECONDS, took_s),
        ):
            self._board.own.set(family, float(number))

    def _forget_the_queue(self) -> None:
        for family in metrics.OF_THE_QUEUE:
            self._board.own.set(family, metrics.ABSENT)
