"""Runs the queue's janitor: in every supervisor, or alone beside plain rq workers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from collimate_rl.errors import CollimateError, QueueError, RedisUnavailable
from collimate_rl.protocol import BatchStatus, keys
from collimate_rl.queue._raw import server_ms, text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.janitor import QueueJanitor
from collimate_rl.queue.rq_edge import listed_batches
from collimate_rl.queue.tally import AnswerCounter
from worker import logs, metrics
from worker.outage import Outage
from worker.periodic import Periodic
from worker.session_janitor import SessionJanitor
from worker.tally import Tally

QUIET = frozenset({"LIVE", "WAITING", "LISTED", "LOOK", "SETTLING", "FORGOT"})
"""What a mend finds in a healthy queue, or hasn't decided yet: not worth a line each."""


class JanitorRounds:
    """Rounds of one janitor, with their log. `round` never raises for a server that is away: the next one goes on."""

    def __init__(self, queue: BatchQueue, token: str, *, tally: Tally | None = None) -> None:
        self._janitor = QueueJanitor(queue, token)
        self._answers = AnswerCounter(queue, token)
        self._led = False
        self._tally = tally or Tally()
        self._outage = Outage()
        self._uncounted = Outage()

    @property
    def leads(self) -> bool:
        """It led at its last round that the server answered."""
        return self._led

    def round(self) -> Counter[str]:
        """One pass; what was done, by name. Empty when another janitor leads."""
        try:
            done = self._janitor.run_once()
        except RedisUnavailable as error:
            logs.emit(logs.JANITOR_FAILED, logging.DEBUG, error=error.message)
            return Counter()
        except QueueError as error:
            self._outage.report(logs.JANITOR_FAILED, logging.ERROR, error=error.message)
            return Counter()
        self._outage.over()
        if done.led and not self._led:
            logs.emit(logs.JANITOR_LEADS)
        self._led = done.led
        if done.led:
            self._count_answers()
        counts: Counter[str] = Counter({word.value: count for word, count in done.mended.items()})
        counts["BUMPED"] += done.bumped
        counts["SWEPT"] += len(done.swept)
        counts["BROKEN"] += done.broken
        for word, count in counts.items():
            self._tally.add(metrics.JANITOR_ACTIONS, word.lower(), count)
        acted: dict[str, Any] = {
            word: count for word, count in counts.items() if count and word not in QUIET and word != "BUMPED"
        }
        if acted:
            logs.emit(logs.JANITOR_ACTED, **acted)
        return +counts

    def _count_answers(self) -> None:
        """For the numbers that people look at: it comes last, and its failure is nothing that batches wait for."""
        try:
            self._answers.round()
        except RedisUnavailable as error:
            logs.emit(logs.JANITOR_FAILED, logging.DEBUG, error=error.message)
        except (QueueError, ValueError) as error:
            told = f"answers cannot be counted: {error}"
            self._uncounted.report(logs.JANITOR_FAILED, logging.ERROR, error=told)
        else:
            self._uncounted.over()

    def resign(self, queue: BatchQueue | None = None) -> None:
        """Let another janitor lead at once; `queue` is the same one over another connection."""
        if self._led:
            self._janitor.resign(queue)


def forecast(queue: BatchQueue, *, limit: int = 500) -> list[str]:
    """What a round would look at now, a line per batch or entry, for people. Writes nothing; raises `QueueError`."""
    client = queue.client
    with translate_errors("look at the queue"):
        now = server_ms(client.time())
        due = [text(raw) for raw in client.zrangebyscore(keys.pending(queue.queue), "-inf", now, 0, limit)]
        listed = listed_batches(client, queue.queue)
        with client.pipeline(transaction=False) as pipe:
            for k in due:
                pipe.hmget(
                    keys.BatchKeys(k).state, "run", "id", "status", "lease_until", "deadline_at", "cancel", "ring_at"
                )
            states = pipe.execute()
        stranded = [text(raw) for raw in client.lrange(keys.rq_intermediate(queue.queue), 0, -1)]
        idle = [job for job in stranded if not client.zcard(f"rq:executions:{job}")]
    lines = [
        f"{k}  {_intention([None if raw is None else text(raw) for raw in state], k in listed, now)}"
        for k, state in zip(due, states, strict=True)
    ]
    return lines + [f"{job}  on the intermediate list without an execution: would be swept if it stays" for job in idle]


def _intention(state: list[str | None], listed: bool, now: int) -> str:
    run, identity, status, lease_until, deadline_at, cancel, ring_at = state
    if status is None or status == BatchStatus.DONE.value:
        return "answered or unknown: would be forgotten"
    name = f"{run}/{identity}: "
    if status == BatchStatus.RUNNING.value and int(lease_until or 0) > now:
        return name + "owned, with a living lease: would be left"
    if cancel == "1" or int(deadline_at or 0) < now:
        return name + "cancelled or past its deadline: would be answered"
    if status == BatchStatus.RUNNING.value:
        return name + "its owner is lost: would be rung again, once the queue's clock is settled"
    if listed:
        return name + "waiting with its bell on the list: would be left"
    if int(ring_at or 0) > now:
        return name + "waiting for its back-off: would be left"
    return name + "unowned and on no list: would be rung again if it stays so"


def session_forecast(sessions: SessionJanitor) -> list[str]:
    """What a round of the session janitor would delete now, a line per session. Raises `QueueError`."""
    try:
        plan = sessions.forecast()
    except QueueError:
        raise
    except CollimateError as error:
        return [f"the sandbox daemon cannot be asked for its sessions: {error.message}"]
    return [f"session {found.session}  {found.reason}: would be deleted" for found in plan]


def run_alone(
    queue: BatchQueue,
    token: str,
    pause: Callable[[float], bool],
    bury_dead: Callable[[], object],
    sessions: SessionJanitor,
) -> None:
    """Rounds until `pause(seconds)` says to stop; beats for the queue and buries the dead, as a supervisor would."""
    rounds = JanitorRounds(queue, token)
    every_s = queue.timing.beat_every_ms / 1000
    outage = Outage()
    reaping = Periodic("sessions", sessions.every_s, sessions.round)
    reaping.start()
    try:
        while True:
            started = time.monotonic()
            try:
                queue.beat()
                bury_dead()
            except RedisUnavailable as error:
                outage.report(logs.REDIS_DOWN, error=error.message)
            else:
                away_s = outage.over()
                if away_s is not None:
                    logs.emit(logs.REDIS_BACK, away=round(away_s, 1))
                rounds.round()
            if pause(max(0.1, every_s - (time.monotonic() - started))):
                return
    finally:
        reaping.stop(5.0)
        try:
            rounds.resign()
            sessions.resign()
        except RedisUnavailable:
            pass  # the lease runs out by itself
