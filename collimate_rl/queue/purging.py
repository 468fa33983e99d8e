"""Removes a whole run from the server: for runs that were a mistake, and whose answers nobody wants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from collimate_rl.errors import QueueError
from collimate_rl.protocol import check_name, keys
from collimate_rl.queue._raw import text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.replies import Purged

LOOK_S = 0.1
SCAN_COUNT = 1000


@dataclass(frozen=True, kw_only=True)
class PurgedRun:
    """What was removed."""

    batches: int
    streams: int
    """Result streams and cursors of the run's producers."""
    cut_short: int
    """Batches of these that an owner was still at: it is fenced now, and its node's janitor reaps its sandboxes."""


def purge_run(
    queue: BatchQueue,
    run: str,
    *,
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> PurgedRun:
    """Cancels every unanswered batch of `run`, gives their owners `wait_s` to stop, and removes all that is kept of it.

    Every epoch, every queue, whoever submitted. Producers of the run should have stopped: what they submit meanwhile
    may stay, and a handle without an answer raises `BatchGone` at its deadline. Raises `RedisUnavailable` (call it
    again), `QueueError`.
    """
    check_name("run", run)
    for k in queue.inflight(run):
        queue.cancel(k)
    until = clock() + wait_s
    while queue.inflight(run) and clock() < until:
        sleep(LOOK_S)
    cut_short = len(queue.inflight(run))
    batches, broken = 0, None
    for k in _batches_of(queue, run):
        try:
            batches += queue.purge(k, run) is Purged.PURGED
        except QueueError as error:
            if error.__class__ is not QueueError:  # an outage
                raise
            broken = error
    names = [keys.inflight(run)]
    for pattern in (keys.results(run, "*"), keys.cursor(run, "*")):
        names += _scan(queue, pattern)
    streams = len(names) - 1
    names += _scan(queue, keys.turn("*", run))
    names += _scan(queue, keys.suspects(run, "*"))
    names += _scan(queue, keys.run("*", run))
    names += _scan(queue, keys.series("*", run, "*", "*"))
    _forget_counts(queue, run)
    # No epoch of another run: a run's name holds no colon.
    names += [keys.cache(run), *_scan(queue, f"col:grader:{run}:*")]
    with translate_errors("remove a run's streams"):
        queue.client.delete(*names)
    if broken is not None:
        raise broken
    return PurgedRun(batches=batches, streams=streams, cut_short=cut_short)


def _forget_counts(queue: BatchQueue, run: str) -> None:
    """Takes the run's entries out of the streams of answers, and the run out of the lists of runs, of every queue."""
    for make in (keys.answers, keys.recent):
        for name in _scan(queue, make("*")):
            before = "+"
            while True:
                with translate_errors("look for a run's answers"):
                    entries: Any = queue.client.xrevrange(name, before, "-", count=SCAN_COUNT)
                    found = [entry for entry, fields in entries if text(fields.get(b"run", b"")) == run]
                    if found:
                        queue.client.xdel(name, *found)
                if len(entries) < SCAN_COUNT:
                    break
                before = f"({text(entries[-1][0])}"
    for name in _scan(queue, keys.runs("*")):
        with translate_errors("take a run off the list"):
            queue.client.zrem(name, run)


def _batches_of(queue: BatchQueue, run: str) -> list[str]:
    prefix = keys.BatchKeys("").state
    found: list[str] = []
    names = list(_scan(queue, f"{prefix}*"))
    for at in range(0, len(names), SCAN_COUNT):
        some = names[at : at + SCAN_COUNT]
        with translate_errors("read whose batches these are"), queue.client.pipeline(transaction=False) as pipe:
            for name in some:
                pipe.hget(name, "run")
            told = pipe.execute(raise_on_error=False)
        # What is no hash is no batch of ours.
        runs = ["" if raw is None or isinstance(raw, Exception) else text(raw) for raw in told]
        found += [name.removeprefix(prefix) for name, of in zip(some, runs, strict=True) if of == run]
    return found


def _scan(queue: BatchQueue, pattern: str) -> Iterator[str]:
    """Keys that match; a run's name holds no character that a pattern takes for its own."""
    with translate_errors(f"look for {pattern}"):
        yield from sorted({text(raw) for raw in queue.client.scan_iter(match=pattern, count=SCAN_COUNT)})
