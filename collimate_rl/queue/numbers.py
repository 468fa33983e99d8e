"""A queue in numbers: how much waits, how fast it is answered, how it came out, by run and by node.

`read_numbers` is what the dashboard, `collimate top` and others show. It only reads, with commands that a read-only
user may run, and a bounded number of them. What is counted of answers comes from hashes that the leading janitor adds
to (`tally`): each answer once, a few seconds after it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from collimate_rl.protocol import BatchStatus, keys
from collimate_rl.protocol.bounds import is_name
from collimate_rl.protocol.codes import SUSPECT_OUTCOMES
from collimate_rl.queue._raw import answers_of, integer, server_ms, text, whole_ms
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.counts import SLOT_S, Counts, added, mean_of
from collimate_rl.queue.node_numbers import NodeNumbers, read_nodes

MAX_LOOKED_AT = 2_000
"""Of so many unanswered batches the states are read; where there are more, some numbers are of these alone."""
MAX_RUNS = 50
WINDOW_S = 60
RECENT_S = 600
CHUNK = 500


@dataclass(frozen=True, kw_only=True)
class Series:
    """Steps of time that a run's rewards are kept in."""

    step_s: int
    block: int
    """So many steps are kept in one hash."""
    span_s: int
    """So far back is looked."""

    @property
    def keep_ms(self) -> int:
        return (self.span_s + self.step_s * self.block) * 1000

    def blocks(self, now_s: float) -> range:
        size = self.step_s * self.block
        return range(int(now_s - self.span_s) // size, int(now_s) // size + 1)


HOUR = Series(step_s=60, block=60, span_s=3600)
DAY = Series(step_s=600, block=72, span_s=86_400)


@dataclass(frozen=True, kw_only=True)
class RewardPoint:
    """A run's rewards in one step of time."""

    at: float
    """When the step begins, Unix seconds by the server's clock."""
    graded: int
    infra: int
    mean_reward: float | None
    """Over graded candidates whose verdict was read; None when there was none."""
    unread: int = 0
    """Of the graded, how many could not be read when they were counted."""


@dataclass(frozen=True, kw_only=True)
class RunNumbers:
    """One run on this queue, since its first batch (or since a day without any)."""

    name: str
    submitted: int
    """Batches; one that is submitted again counts once."""
    unanswered: int
    """Of the run, on all queues."""
    counts: Counts
    rewards: tuple[RewardPoint, ...]
    """Oldest first; steps without any answer are left out."""
    suspects: Mapping[str, int]
    """About how many of its candidates came to each suspect outcome, on all queues."""
    last_submit_s: float
    """Since the last batch was submitted."""
    oldest_s: float | None
    """Since the oldest of its unanswered batches was submitted; None when there is none, or it is not known."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """One look at one queue. Times are the server's."""

    queue: str
    at: float
    """Unix seconds."""
    unanswered: int
    queued: int
    """Unanswered, and nobody's."""
    in_flight: int
    """Unanswered, and owned by a worker."""
    looked_at: int
    """How many unanswered batches were looked at; where that is fewer than there are, `queued` and `in_flight` come
    from what the nodes hold, and `oldest_s` from each run's next deadline."""
    oldest_s: float | None
    """Since the oldest unanswered batch was submitted; None when there is none."""
    lossy: int
    """Of those looked at, how many lost an owner."""
    answered_per_s: float
    """Candidates, over the last minute."""
    graded_per_s: float
    """Candidates that got a verdict, over the last minute."""
    batches_per_s: float
    minute: Counts
    recent: Counts
    """Over the last ten minutes: errors by code and node, recoveries, statuses, time in queue."""
    total: Counts
    """Since the queue's answers began to be counted (or since eight days without any)."""
    uncounted: int
    """Answers that are not counted yet, up to 1,000; more than a few for more than some seconds: no janitor leads."""
    quarantined: int
    """Candidates in quarantine, of all queues."""
    settled: bool
    janitor: str
    """Token of the leading janitor; '' when none leads."""
    runs: tuple[RunNumbers, ...]
    """Those that submitted last come first; at most 50."""
    nodes: tuple[NodeNumbers, ...]
    series: Series = field(default=HOUR)
    """Which steps the runs' rewards are in."""

    def as_json_data(self) -> dict[str, Any]:
        return asdict(self)


def read_numbers(queue: BatchQueue, *, series: Series = HOUR, max_runs: int = MAX_RUNS) -> Numbers:
    """Raises `RedisUnavailable`, `QueueError`. The parts are read one after the other, so sums may differ a little.

    series -- over how long the runs' rewards are read: `HOUR` or `DAY`.
    max_runs -- only so many runs, those that submitted last.
    """
    client, name, timing = queue.client, queue.queue, queue.timing
    with translate_errors("read the queue's numbers"):
        with client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zcard(keys.pending(name))
            pipe.zrange(keys.pending(name), 0, MAX_LOOKED_AT - 1)
            pipe.hmget(keys.clock(name), "last", "since")
            pipe.get(keys.lease(f"janitor:{name}"))
            pipe.xlen(keys.QUARANTINE)
            pipe.hgetall(keys.tally(name))
            pipe.zrange(keys.runs(name), -max_runs, -1, withscores=True)
            told_at, unanswered, members, (last, since), janitor, quarantined, tally, active = pipe.execute()
        now_ms = server_ms(told_at)
        ks = [text(raw) for raw in members]
        states = _states(queue, ks)
        slots = _slots(queue, now_ms)
        uncounted: Any = client.xrange(keys.answers(name), f"({text(tally.get(b'cursor', b'0-0'))}", "+", count=1000)
    minute_from = _slot(now_ms - WINDOW_S * 1000)
    minute = {slot: counts for slot, counts in slots.items() if slot >= minute_from}
    nodes = read_nodes(queue, now_ms, Counts.of(added(slots.values())))
    runs = _runs(queue, now_ms, _named(reversed(active)), series)
    whole = len(ks) == unanswered
    owned = sum(node.in_flight for node in nodes)
    running = sum(state.running for state in states) if whole else min(unanswered, owned)
    ages = [now_ms - state.created_at for state in states] if whole else []
    heads = [run.oldest_s for run in runs if run.oldest_s is not None]
    oldest = max(ages) / 1000 if ages else (max(heads) if heads and unanswered and not whole else None)
    elapsed = now_ms / 1000 - minute_from * SLOT_S
    last_minute = Counts.of(added(minute.values()))
    beat_at = integer(last)
    return Numbers(
        queue=name,
        at=now_ms / 1000,
        unanswered=unanswered,
        queued=max(0, (len(states) if whole else unanswered) - running),
        in_flight=running,
        looked_at=len(ks),
        oldest_s=oldest,
        lossy=sum(state.losses > 0 for state in states),
        answered_per_s=last_minute.candidates / elapsed,
        graded_per_s=last_minute.graded / elapsed,
        batches_per_s=last_minute.batches / elapsed,
        minute=last_minute,
        recent=Counts.of(added(slots.values())),
        total=Counts.of(_integers(tally)),
        uncounted=len(uncounted),
        quarantined=quarantined,
        settled=beat_at is not None
        and now_ms - beat_at <= timing.gap_ms
        and now_ms - (integer(since) or now_ms) >= timing.settle_ms,
        janitor="" if janitor is None else text(janitor),
        runs=runs,
        nodes=nodes,
        series=series,
    )


def _named(scored: Iterable[tuple[Any, float]]) -> list[tuple[str, int]]:
    """Those that can be a run's name, each with its time in ms: no other ever submitted."""
    return [(name, whole_ms(at)) for name, at in ((text(run), at) for run, at in scored) if is_name(name)]


def _slot(ms: int) -> int:
    return ms // (SLOT_S * 1000)


def _integers(raw: Mapping[bytes, bytes] | None) -> dict[str, int]:
    """The fields that are integers: whatever else stands there (a cursor, half a thing) is nothing to count."""
    found = {text(name): integer(value) for name, value in (raw or {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def _slots(queue: BatchQueue, now_ms: int) -> dict[int, dict[str, int]]:
    """The slots of the last ten minutes that hold anything."""
    wanted = range(_slot(now_ms - RECENT_S * 1000), _slot(now_ms) + 1)
    with queue.client.pipeline(transaction=False) as pipe:
        for slot in wanted:
            pipe.hgetall(keys.tally_slot(queue.queue, slot))
        told = answers_of(pipe)
    return {slot: _integers(raw) for slot, raw in zip(wanted, told, strict=True) if raw}


@dataclass(frozen=True)
class _State:
    running: bool
    created_at: int
    losses: int


def _states(queue: BatchQueue, ks: list[str]) -> list[_State]:
    """Of those that are unanswered still."""
    found: list[_State] = []
    for at in range(0, len(ks), CHUNK):
        with queue.client.pipeline(transaction=False) as pipe:
            for k in ks[at : at + CHUNK]:
                pipe.hmget(keys.BatchKeys(k).state, "status", "created_at", "losses")
            told = answers_of(pipe)
        for status, created_at, losses in (each or (None, None, None) for each in told):
            created = integer(created_at)
            if status is not None and text(status) != BatchStatus.DONE.value and created is not None:
                running = text(status) == BatchStatus.RUNNING.value
                found.append(_State(running, created, integer(losses) or 0))
    return found


def _runs(queue: BatchQueue, now_ms: int, active: list[tuple[str, int]], series: Series) -> tuple[RunNumbers, ...]:
    blocks = series.blocks(now_ms / 1000)
    with translate_errors("read the runs' numbers"), queue.client.pipeline(transaction=False) as pipe:
        for run, _ in active:
            pipe.hgetall(keys.run(queue.queue, run))
            pipe.zcount(keys.inflight(run), now_ms, "+inf")
            pipe.zrangebyscore(keys.inflight(run), now_ms, "+inf", 0, 1)
            for outcome in SUSPECT_OUTCOMES:
                pipe.pfcount(keys.suspects(run, outcome))
            for block in blocks:
                pipe.hgetall(keys.series(queue.queue, run, series.step_s, block))
        told = answers_of(pipe)
    width = 3 + len(SUSPECT_OUTCOMES) + len(blocks)
    parts = [told[at : at + width] for at in range(0, len(told), width)]
    heads = [text(part[2][0]) for part in parts if part[2]]
    ages = {k: (now_ms - created) / 1000 for k, created in _created(queue, heads).items()}
    found = []
    for (run, submitted_at), part in zip(active, parts, strict=True):
        counted = _integers(part[0])
        found.append(
            RunNumbers(
                name=run,
                submitted=counted.get("submitted", 0),
                unanswered=part[1] or 0,
                counts=Counts.of(counted),
                rewards=_points(part[3 + len(SUSPECT_OUTCOMES) :], series, now_ms / 1000),
                suspects={
                    outcome: count or 0
                    for outcome, count in zip(SUSPECT_OUTCOMES, part[3 : 3 + len(SUSPECT_OUTCOMES)], strict=True)
                },
                last_submit_s=max(0.0, (now_ms - submitted_at) / 1000),
                oldest_s=ages.get(text(part[2][0])) if part[2] else None,
            )
        )
    return tuple(found)


def _created(queue: BatchQueue, ks: Iterable[str]) -> dict[str, int]:
    some = list(ks)
    with translate_errors("read the oldest batches"), queue.client.pipeline(transaction=False) as pipe:
        for k in some:
            pipe.hget(keys.BatchKeys(k).state, "created_at")
        told = [integer(raw) for raw in answers_of(pipe)]
    return {k: created for k, created in zip(some, told, strict=True) if created is not None}


def _points(blocks: Iterable[Mapping[bytes, bytes]], series: Series, now_s: float) -> tuple[RewardPoint, ...]:
    """From fields `step:what`, the step counted from 1970."""
    steps: dict[int, dict[str, int]] = {}
    for block in blocks:
        for name, count in _integers(block).items():
            told, _, what = name.partition(":")
            step = integer(told)
            if step is not None and now_s - series.span_s < (step + 1) * series.step_s <= now_s + 2 * series.step_s:
                steps.setdefault(step, {})[what] = count
    return tuple(
        RewardPoint(
            at=float(step * series.step_s),
            graded=held.get("graded", 0),
            infra=held.get("infra", 0),
            mean_reward=mean_of(held),
            unread=held.get("unread_graded", 0),
        )
        for step, held in sorted(steps.items())
    )
