"""What the queue itself takes as it grows: batches that wait, runs that share it, candidates of a batch. No sandboxes:
the scripts on a real server, called as producers and workers call them, one at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.measure import median
from benchmarks.sweeps import Point, Sweep
from collimate_rl.protocol import GradeBatch, Verdict, batch_key, content_hash, keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.janitor import QueueJanitor
from collimate_rl.queue.replies import Claimed
from collimate_rl.queue.server import LocalRedis

WAITING = (10, 100, 1_000, 10_000, 100_000)
RUNS = (1, 10, 100, 1_000)
WIDTHS = (1, 8, 64, 512)
SHARED = 2_000
"""Batches that wait while the number of runs grows."""
CALLS = 40
LOT = 500
NO_BOUND = 10_000_000
_SOURCE = "def solve(a, b):\n    return a * b\n"

_COPIES = """
local LATER = redis.call('TIME')[1] * 1000 + 3600000
local queue, turn, models, at = ARGV[1], tonumber(ARGV[2]), {}, 3
local rounds = 'col:turn:' .. queue
while ARGV[at] ~= '' do models[#models + 1] = ARGV[at]; at = at + 1 end
for i = at + 1, #ARGV do
  local from, to, round = models[turn % #models + 1], ARGV[i], math.floor(turn / #models) + 1
  turn = turn + 1
  for _, kind in ipairs({ 'batch', 'state', 'askers' }) do
    redis.call('COPY', 'col:' .. kind .. ':' .. from, 'col:' .. kind .. ':' .. to)
  end
  local run = redis.call('HGET', 'col:state:' .. to, 'run')
  redis.call('HSET', 'col:state:' .. to, 'id', to)
  redis.call('COPY', 'rq:job:' .. from .. '-1', 'rq:job:' .. to .. '-1')
  redis.call('RPUSH', 'rq:queue:' .. queue, to .. '-1')
  redis.call('HSET', 'rq:job:' .. to .. '-1', 'round', round)
  redis.call('SET', rounds .. ':' .. run, round)
  local first = string.match(redis.call('HGET', rounds, round) or '', '^%S+') or to .. '-1'
  redis.call('HSET', rounds, 'top', round, round, first .. ' ' .. to .. '-1')
  redis.call('ZADD', 'col:inflight:' .. run, redis.call('ZSCORE', 'col:inflight:' .. run, from), to)
  redis.call('ZADD', 'col:pending:' .. queue, LATER, to)
end
"""


class Waiting:
    """A queue on a server of its own, and what waits on it."""

    def __init__(self, url: str) -> None:
        self._client = connect_commands(url)
        self._url = url
        self.queue = BatchQueue(self._client)
        self._numbers = itertools.count()
        self.length = 0
        self.models: list[str] = []
        self._copy = self._client.register_script(_COPIES)

    def close(self) -> None:
        self._client.close()

    def submit(self, run: str, width: int = 1) -> str:
        number = next(self._numbers)
        batch = GradeBatch(
            run=run,
            id=str(number),
            producer="bench",
            template="py",
            candidates=(_SOURCE,) * width,
            spec='{"type": "unit_test"}',
            seeds=(None,) * width,
        )
        k = batch_key(run, 0, batch.id)
        self.queue.submit(k, batch, content_hash(batch), window=NO_BOUND, depth=NO_BOUND)
        self.length += 1
        return k

    def fill(self, count: int, runs: int) -> None:
        """Until so many wait, by turns of so many runs: the first of each by a submit, the rest as its copies, since
        100,000 submits would take longer than all that is measured."""
        while self.length < min(count, runs):
            self.models.append(self.submit(f"run-{self.length % runs}"))
        while self.length < count:
            lot = min(LOT, count - self.length)
            fresh = [f"{next(self._numbers):032x}" for _ in range(lot)]
            self._copy(args=[self.queue.queue, f"{self.length}", *self.models, "", *fresh])
            self.length += lot

    def pop(self) -> str:
        """The batch whose bell is first, as an rq worker takes it off."""
        bell: Any = self._client.lpop(keys.rq_queue(self.queue.queue))
        self.length -= 1
        return str(bell.decode()[:32])

    def taken(self, count: int) -> Iterator[str]:
        """So many runs, each of which has submitted one batch, whose bell is not on the list any more."""
        for run in [f"taken-{next(self._numbers)}" for _ in range(count)]:
            self._client.lrem(keys.rq_queue(self.queue.queue), 1, f"{self.submit(run)}-1")
            self.length -= 1
            yield run

    def grade(self, k: str, width: int = 1) -> None:
        """Claim, a verdict each, publish."""
        reply = self.queue.claim(k, f"o{next(self._numbers)}", "w", "n")
        if reply.word is not Claimed.OK or reply.grant is None:
            raise RuntimeError(f"a batch that waits could not be claimed: {reply}")
        for index in range(width):
            self.queue.verdict(reply.grant.hold, Verdict(index=index, reward=1.0, outcome="passed"))
        self.queue.publish(reply.grant.hold)

    def look(self) -> None:
        """One round of the queue's janitor, one lot of batches being due."""
        pending = keys.pending(self.queue.queue)
        last: Any = self._client.zrevrange(pending, 0, LOT - 1)
        self._client.zadd(pending, dict.fromkeys(last, 1))
        QueueJanitor(self.queue, "bench").run_once()

    def cpu_s(self) -> float:
        """CPU time of the server so far: steadier than wall time where other work runs beside it."""
        told = self._client.info("cpu")
        return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])

    def cost(self, call: Callable[[], object], count: int, calls: int = 1) -> float:
        """Milliseconds of the server's CPU for each of `calls` in a call; the median of four lots."""
        lots = []
        for _ in range(4):
            began = self.cpu_s()
            for _ in range(max(1, count // 4)):
                call()
            lots.append((self.cpu_s() - began) / max(1, count // 4) / calls * 1000)
        return median(lots)


@contextmanager
def waiting() -> Iterator[Waiting]:
    """A server that holds nothing."""
    with LocalRedis() as server:
        made = Waiting(server.url)
        try:
            yield made
        finally:
            made.close()


def costs(site: Waiting) -> dict[str, float]:
    """A submit of a run that has some waiting, that has none, that had some; a batch's way; a janitor's round."""
    lone = itertools.count()
    taken = iter(list(site.taken(CALLS)))
    return {
        "submit, its run waits": site.cost(lambda: site.submit("run-0"), CALLS),
        "submit, a run without": site.cost(lambda: site.submit(f"lone-{next(lone)}"), CALLS),
        "submit, a run whose bells are taken": site.cost(lambda: site.submit(next(taken)), CALLS),
        "claim, verdict, publish": site.cost(lambda: site.grade(site.pop()), CALLS),
        f"janitor's round, {LOT} due": site.cost(site.look, 4),
    }


def queue_length(lengths: tuple[int, ...] = WAITING) -> Sweep:
    """Batches of eight runs that wait."""
    points = []
    for length in lengths:
        with waiting() as site:
            site.fill(length, 8)
            points.append(Point(x=length, ms=costs(site)))
    return Sweep(
        key="queue-length",
        what="batches waiting",
        unit="call (CPU of the server)",
        points=tuple(points),
        expected=f"where fewer than {LOT} wait, fewer are due",
    )


def runs(lengths: tuple[int, ...] = RUNS, shared: int = SHARED) -> Sweep:
    """The same number of batches waits, of ever more runs."""
    points = []
    for count in lengths:
        with waiting() as site:
            site.fill(shared, count)
            points.append(Point(x=count, ms=costs(site)))
    return Sweep(
        key="runs",
        what="runs",
        unit="call (CPU of the server)",
        points=tuple(points),
        expected=f"{shared:,} batches wait, shared by the runs",
    )


def widths(sizes: tuple[int, ...] = WIDTHS) -> Sweep:
    """One batch at a time through an empty queue, of ever more candidates; costs are per candidate."""
    points = []
    with waiting() as site:
        for width in sizes:
            count = max(3, CALLS // width)
            submit = site.cost(lambda width=width: site.submit("run", width), count, width)  # type: ignore[misc]
            grade = site.cost(lambda width=width: site.grade(site.pop(), width), count, width)  # type: ignore[misc]
            points.append(Point(x=width, ms={"submit": submit, "claim, verdicts, publish": grade}))
    return Sweep(
        key="queue-width", what="candidates of a batch", unit="candidate (CPU of the server)", points=tuple(points)
    )
