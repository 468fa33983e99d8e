"""One node's supervisor: keeps its worker processes running, speaks for them on the queue, stops them in order.

The main thread owns the processes (their life is tied to it) and the signals; everything that talks to Redis or to the
daemon runs in threads beside it, so that neither being away delays a restart or a stop.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from redis import Redis

from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.protocol.bounds import mask_secrets
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands, connect_rq
from collimate_rl.queue.replies import Buried
from collimate_rl.queue.server_check import check_server
from worker import logs, metrics
from worker.backend import Backend, BackendState, is_this_nodes, remembering
from worker.child import EXIT_CUT_OFF, EXIT_REFUSED
from worker.children import Children, Ended
from worker.intake import UNISOLATED
from worker.janitor import JanitorRounds
from worker.keeper import EXIT_STUCK
from worker.monitor import Facts, Monitor
from worker.names import worker_name
from worker.node_lease import NodeLease, NodeTaken
from worker.outage import Outage
from worker.parting import Parting
from worker.pause import NodePause, pause_file
from worker.periodic import Periodic
from worker.process import ProcessId
from worker.pulse import Pulse, bury_earlier_life
from worker.session_janitor import SessionJanitor
from worker.settings import WorkerSettings, as_environment, parse_timing
from worker.signals import Signals
from worker.slots import Slots, slots_directory
from worker.tally import Board
from worker.turns import Turns

LOOK_EVERY_S = 5.0
KILL_WAIT_S = 5.0
"""How long killed processes are waited for: only one that the kernel holds takes any."""
HOW_ENDED = {0: "stopped", EXIT_REFUSED: "refused", EXIT_STUCK: "stuck", EXIT_CUT_OFF: "cut_off"}
"""By exit code; a signal is `killed`, any other code an `error`."""
MONITOR_WAIT_S = 1.0
"""How long the very end waits for the pages' server, and for looks that were told to end with those loops."""


class Refused(Exception):
    """This worker must not start, or must not go on; the message says why and what to do."""


class Supervisor:
    """Runs one node until it is told to stop. `run` returns the exit code: 0, or 2 when the set-up is refused."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._queue = BatchQueue(
            connect_commands(settings.redis_url), settings.queue, timing=parse_timing(settings.timing)
        )
        self._rq: Redis = connect_rq(settings.redis_url)
        self._backend = Backend(settings.backend)
        self._state: BackendState | None = None
        self._board = Board(settings.most_processes)
        self._pause: NodePause | None = None
        self._identity = ProcessId.own()
        self._lease = NodeLease(self._queue, settings.node, self._identity)
        self._children = Children(
            settings.first_processes, self._spawn, name_for=lambda place: worker_name(settings.node, str(place))
        )
        self._home = is_this_nodes(settings.backend)
        self._pulse = Pulse(
            settings,
            self._queue,
            self._rq,
            living=self._living,
            backend=lambda: self._state,
            home=self._home,
            on_buried=self._buried,
        )
        self._janitor = JanitorRounds(self._queue, str(self._identity), tally=self._board.own)
        self._sessions = SessionJanitor.for_node(settings, self._queue, str(self._identity))
        self._turns: Turns | None = None
        self._unisolated = False
        self._leads_node = True
        beat_s = self._queue.timing.beat_every_ms / 1000
        self._loops = [
            Periodic("pulse", beat_s, self._pulse_round),
            Periodic("janitor", beat_s, self._janitor_round),
            Periodic("sessions", self._sessions.every_s, self._sessions_round),
            Periodic("backend", LOOK_EVERY_S, self._look),
        ]
        self._monitor = Monitor(settings, self._queue, self._board, self._facts)
        self._stopping = False

    def run(self) -> int:
        with Signals() as signals:
            try:
                self._serve_metrics()
                return self._run(signals)
            except Refused as error:
                logs.emit(logs.REFUSED, logging.ERROR, reason=str(error))
                return EXIT_REFUSED
            finally:
                self._monitor.stop(MONITOR_WAIT_S)
                self._board.close()
                if self._turns is not None:
                    self._turns.close()

    def _run(self, signals: Signals) -> int:
        try:
            if not self._prepare(signals):
                return 0
        except (Refused, QueueError, NodeTaken) as error:
            logs.emit(logs.REFUSED, logging.ERROR, reason=str(error))
            return EXIT_REFUSED
        for loop in self._loops:
            loop.start()
        refused = False
        try:
            refused = self._supervise(signals)
        finally:
            self._stop(signals)
        return EXIT_REFUSED if refused else 0

    # Before the first worker

    def _serve_metrics(self) -> None:
        try:
            self._monitor.start()
        except ModuleNotFoundError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            where = f"{self._settings.metrics_host}:{self._settings.metrics_port}"
            raise Refused(
                f"the metrics cannot be served on {where} ({error.strerror or error}): "
                "name another --metrics-port or --metrics-host"
            ) from error

    def _prepare(self, signals: Signals) -> bool:
        """Everything that has to be right first. False when a stop came meanwhile; raises what refuses this node."""
        self._check_slots()
        title = self._when_server_is_there(signals, lambda: check_server(self._queue.client))
        if title is None:
            return False
        if self._when_server_is_there(signals, lambda: self._take_node(signals)) is None:
            return False
        self._look()
        if self._unisolated:
            raise Refused(UNISOLATED)
        if self._state is not None and not self._state.up and not self._state.draining:
            logs.emit(logs.BACKEND_DOWN, logging.WARNING, reason=self._state.reason)
        settings = self._settings
        logs.emit(
            logs.SUPERVISOR_READY,
            pid=os.getpid(),
            server=title,
            redis=mask_secrets(settings.redis_url),
            queue=settings.queue,
            processes=settings.first_processes,
            slots=settings.slots,
        )
        return True

    def _check_slots(self) -> None:
        directory = slots_directory(self._settings.state_dir, self._settings.node)
        try:
            Slots(directory, self._settings.slots).close()
            self._turns = Turns(directory, self._settings.first_processes)
            self._pause = NodePause(pause_file(self._settings.state_dir, self._settings.node))
        except OSError as error:
            raise Refused(
                f"the slots' lock files cannot be kept in {directory} ({error.strerror}): "
                "name a directory of this user's with --state-dir"
            ) from error

    def _when_server_is_there(self, signals: Signals, step: Callable[[], str | None]) -> str | None:
        """What `step` returns, once the server can be reached; None when a stop came meanwhile."""
        wait_s, outage = 0.2, Outage()
        while True:
            self._monitor.turn()
            try:
                done = step()
            except RedisUnavailable as error:
                outage.report(logs.REDIS_DOWN, error=error.message)
            else:
                away_s = outage.over()
                if away_s is not None:
                    logs.emit(logs.REDIS_BACK, away=round(away_s, 1))
                return done
            if signals.wait(wait_s):
                return None
            wait_s = min(wait_s * 2, 5.0)

    def _take_node(self, signals: Signals) -> str | None:
        reported = False

        def pause() -> bool:
            nonlocal reported
            if not reported:
                logs.emit(logs.NODE_TAKEN, logging.WARNING)
            reported = True
            self._monitor.turn()
            return signals.wait(0.5)

        if not self._lease.take(pause):
            return None
        bury_earlier_life(self._queue, self._rq, self._settings.node, home=self._home)
        return self._settings.node

    # The processes

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        # A session of their own: a terminal's Ctrl-C goes to the supervisor alone, which stops them in order.
        environment = {**os.environ, **as_environment(self._settings), "COLLIMATE_CONFIG": os.devnull}
        board = self._board.descriptor
        command = [sys.executable, "-m", "worker.child", name, str(os.getpid()), str(board)]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True, pass_fds=(board,)
        )

    def _living(self) -> dict[str, str]:
        return {child.name: str(child.identity or "") for child in self._children.living}

    def _supervise(self, signals: Signals) -> bool:
        """Until a stop is asked for. True when a worker refused to work here."""
        while not signals.stops:
            self._monitor.turn()
            self._grow()
            for child in self._children.start_due():
                self._board.own.add(metrics.PROCESSES_STARTED)
                logs.emit(logs.PROCESS_STARTED, started=child.name, pid=child.process.pid)
                self._pulse.speak_now()
                self._loops[0].wake()
            wait_s = self._children.next_start_in()
            signals.wait(1.0 if wait_s is None else min(wait_s, 1.0))
            for end in self._children.reap():
                self._ended(end)
                if end.code == EXIT_REFUSED:
                    return True
            if self._unisolated:
                logs.emit(logs.REFUSED, logging.ERROR, reason=UNISOLATED)
                return True
        return False

    def _grow(self) -> None:
        """More places where every process is at a batch, and one of them only waits for its last candidates."""
        count = self._children.count
        if count >= self._settings.most_processes or self._board.total(metrics.BATCHES_RUNNING) < count:
            return
        if self._turns is not None and self._turns.take():
            self._turns.give_back()
            wanted = self._settings.more_processes(count)
            self._children.widen(wanted)
            self._board.own.set(metrics.PROCESSES_WANTED, wanted)

    def _ended(self, end: Ended) -> None:
        logs.emit(
            logs.PROCESS_ENDED,
            logging.WARNING,
            ended=end.child.name,
            pid=end.child.process.pid,
            code=end.code,
            lived=round(end.lived_s, 1),
            restart_in=round(end.restart_in_s, 1),
        )
        self._count_end(end)
        self._pulse.died(end.child.name, counts=end.code != EXIT_CUT_OFF)
        self._loops[0].wake()

    def _stop(self, signals: Signals) -> None:
        self._stopping = True
        logs.emit(logs.SUPERVISOR_STOPPING, grace=self._settings.grace)
        self._children.signal(signal.SIGTERM)
        until = time.monotonic() + self._settings.grace
        asked = signals.stops
        while self._children.living and time.monotonic() < until and signals.stops <= asked:
            signals.wait(min(0.5, until - time.monotonic()))
            self._collect()
        killed = bool(self._children.living)
        for child in self._children.living:
            logs.emit(logs.PROCESS_KILLED, logging.WARNING, killed=child.name, reason="did not stop within the grace")
        self._children.signal(signal.SIGKILL)
        until = time.monotonic() + KILL_WAIT_S
        while self._children.living and time.monotonic() < until:
            signals.wait(0.1)
            self._collect()
        self._monitor.end()
        Parting(
            self._settings,
            self._queue,
            self._identity,
            pulse=self._pulse,
            janitor=self._janitor,
            lease=self._lease,
            loops=self._loops,
        ).end(killed=killed)
        logs.emit(logs.SUPERVISOR_STOPPED)

    def _collect(self) -> None:
        self._monitor.turn()
        for end in self._children.reap():
            self._count_end(end)
            self._pulse.died(end.child.name, counts=end.code != EXIT_CUT_OFF)

    def _count_end(self, end: Ended) -> None:
        """Before its place is filled again: what that process counted stays, what it held is gone."""
        place = self._board.place(end.child.place)
        place.clear_gauges()
        how = "killed" if end.code < 0 else HOW_ENDED.get(end.code, "error")
        self._board.own.add(metrics.PROCESSES_ENDED, how)

    # What the threads do

    def _facts(self) -> Facts:
        return Facts(
            redis_down=self._pulse.down,
            heartbeat_at=self._pulse.said_at,
            living=len(self._children.living),
            pause=None if self._pause is None else self._pause.current(),
            leads=self._janitor.leads,
            stopping=self._stopping,
        )

    def _buried(self, reply: Buried) -> None:
        if reply is not Buried.NONE:
            self._board.own.add(metrics.BATCHES_BURIED, reply.value.lower())

    def _sessions_round(self) -> None:
        self._board.own.add(metrics.SESSIONS_REAPED, amount=self._sessions.round())

    def _pulse_round(self) -> None:
        self._pulse.round()
        try:
            leads = self._lease.renew()
        except RedisUnavailable:
            return  # the pulse has said so
        if self._leads_node and not leads:
            # It went while the server was away from here. Both may work: workers have names of their own.
            logs.emit(logs.NODE_TAKEN, logging.ERROR)
        self._leads_node = leads

    def _janitor_round(self) -> None:
        self._janitor.round()

    def _look(self) -> None:
        self._state = state = remembering(self._backend.look(), self._state)
        if state.draining and self._pause is not None:
            # Nobody may be told of it where every process waits for a running exec: after that the daemon is gone.
            template = state.templates[0] if state.templates else None
            if self._pause.begin(state.reason, template=template, draining=True, anyway_in_s=None):
                logs.emit(logs.BACKEND_DOWN, logging.WARNING, reason=state.reason)
        self._unisolated = state.unisolated and not self._settings.allow_unisolated
