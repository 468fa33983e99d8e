"""What a queue holds now: per node, per run, in numbers. Reads only, and nothing that makes rq clean up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collimate_rl.protocol import BatchStatus, keys
from collimate_rl.queue._raw import integer, natural, server_ms, text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors

CHUNK = 1000
_FIELDS = ("run", "id", "status", "n", "node", "worker", "fence", "lease_until", "deadline_at", "created_at", "losses")


@dataclass(frozen=True, kw_only=True)
class OwnedBatch:
    """A batch that somebody works on."""

    k: str
    run: str
    id: str
    node: str
    worker: str
    fence: int
    candidates: int
    judged: int
    losses: int
    lease_s: float
    """Until the lease ends; negative when its owner has fallen silent."""
    deadline_s: float


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node with a heartbeat, or one that owns a batch without (`heartbeat` None)."""

    name: str
    heartbeat: Mapping[str, Any] | None
    batches: tuple[OwnedBatch, ...]


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run's unanswered batches on this queue."""

    name: str
    open: int
    running: int
    lossy: int
    """Of these, those that lost an owner."""
    oldest_s: float
    """Since the oldest was submitted."""
    next_deadline_s: float
    suspects: Mapping[str, int]
    """About how many of its candidates came to each suspect outcome, in answered batches, too."""


@dataclass(frozen=True, kw_only=True)
class Overview:
    """One look at one queue; times are seconds by the server's clock."""

    queue: str
    unanswered: int
    bells: int
    """On rq's list."""
    popped: int
    """On rq's intermediate list."""
    settled: bool
    """Beats have come long enough without a gap, so that lost owners are replaced."""
    last_beat_s: float | None
    """Since the last beat; None when nobody ever beat."""
    janitor: str
    """Token of the leading janitor; '' when none leads."""
    quarantined: int
    """Candidates in quarantine, of all queues."""
    nodes: tuple[NodeView, ...]
    runs: tuple[RunView, ...]

    def as_json_data(self) -> dict[str, Any]:
        return asdict(self)


def look_at(queue: BatchQueue) -> Overview:
    """Raises `RedisUnavailable`, `QueueError`. The parts are read one after the other, so sums may differ a little."""
    client, timing = queue.client, queue.timing
    with translate_errors("look at the queue"):
        with client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zrange(keys.pending(queue.queue), 0, -1)
            pipe.llen(keys.rq_queue(queue.queue))
            pipe.llen(keys.rq_intermediate(queue.queue))
            pipe.hmget(keys.clock(queue.queue), "last", "since")
            pipe.get(keys.lease(f"janitor:{queue.queue}"))
            pipe.xlen(keys.QUARANTINE)
            told_at, members, bells, popped, (last, since), janitor, quarantined = pipe.execute()
        now = server_ms(told_at)
        states = _states(queue, [text(raw) for raw in members])
    heartbeats = queue.nodes()
    owned = _owned(states, now)
    names = sorted({*heartbeats, *(batch.node for batch in owned)})
    beat_ms = None if integer(last) is None else now - natural(last)
    calm = beat_ms is not None and beat_ms <= timing.gap_ms and now - (natural(since) or now) >= timing.settle_ms
    return Overview(
        queue=queue.queue,
        unanswered=len(members),
        bells=bells,
        popped=popped,
        settled=calm,
        last_beat_s=None if beat_ms is None else beat_ms / 1000,
        janitor="" if janitor is None else text(janitor),
        quarantined=quarantined,
        nodes=tuple(
            NodeView(
                name=name, heartbeat=heartbeats.get(name), batches=tuple(batch for batch in owned if batch.node == name)
            )
            for name in names
        ),
        runs=_runs(states, now, queue.suspects({state["run"] for state in states.values()})),
    )


def _states(queue: BatchQueue, ks: list[str]) -> dict[str, dict[str, str]]:
    """What the states of these batches say, and how many of their candidates are judged."""
    found: dict[str, dict[str, str]] = {}
    for at in range(0, len(ks), CHUNK):
        some = ks[at : at + CHUNK]
        with queue.client.pipeline(transaction=False) as pipe:
            for k in some:
                pipe.hmget(keys.BatchKeys(k).state, *_FIELDS)
                pipe.hlen(keys.BatchKeys(k).verdicts)
            told = pipe.execute()
        for k, raw, judged in zip(some, told[::2], told[1::2], strict=True):
            state = {name: "" if value is None else text(value) for name, value in zip(_FIELDS, raw, strict=True)}
            if state["status"] in (BatchStatus.OPEN.value, BatchStatus.RUNNING.value):  # else answered meanwhile
                found[k] = {**state, "judged": str(judged)}
    return found


def _owned(states: Mapping[str, Mapping[str, str]], now: int) -> list[OwnedBatch]:
    return [
        OwnedBatch(
            k=k,
            run=state["run"],
            id=state["id"],
            node=state["node"],
            worker=state["worker"],
            fence=natural(state["fence"]),
            candidates=natural(state["n"]),
            judged=int(state["judged"]),
            losses=natural(state["losses"]),
            lease_s=(natural(state["lease_until"]) - now) / 1000,
            deadline_s=(natural(state["deadline_at"]) - now) / 1000,
        )
        for k, state in sorted(states.items(), key=lambda item: (item[1]["node"], item[1]["worker"], item[0]))
        if state["status"] == BatchStatus.RUNNING.value
    ]


def _runs(
    states: Mapping[str, Mapping[str, str]], now: int, suspects: Mapping[str, Mapping[str, int]]
) -> tuple[RunView, ...]:
    by_run: dict[str, list[Mapping[str, str]]] = {}
    for state in states.values():
        by_run.setdefault(state["run"], []).append(state)
    return tuple(
        RunView(
            name=run,
            open=sum(state["status"] == BatchStatus.OPEN.value for state in held),
            running=sum(state["status"] == BatchStatus.RUNNING.value for state in held),
            lossy=sum(natural(state["losses"]) > 0 for state in held),
            oldest_s=max((now - (natural(state["created_at"]) or now)) / 1000 for state in held),
            next_deadline_s=min((natural(state["deadline_at"]) - now) / 1000 for state in held),
            suspects=suspects[run],
        )
        for run, held in sorted(by_run.items())
    )
