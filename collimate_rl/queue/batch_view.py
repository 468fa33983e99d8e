"""One batch to look at. Reads only; nothing is unpickled, everything is bounded.

What a batch holds is hostile text and bytes: whoever shows it escapes it. What is gone (purged, expired) or cannot be
read is None or left out, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from collimate_rl.errors import BadMessage, UnknownVersion
from collimate_rl.protocol import BatchStatus, GradeBatch, Verdict, batch_key, keys
from collimate_rl.protocol.bounds import MAX_CANDIDATES, is_k, is_name
from collimate_rl.protocol.results import BatchResult
from collimate_rl.protocol.story import parse_story
from collimate_rl.protocol.timeline import Timeline, make_timeline
from collimate_rl.queue import codec
from collimate_rl.queue._raw import integer, natural, text
from collimate_rl.queue._raw import raw as _bytes
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors

SPEC_CLIP = 4_000


@dataclass(frozen=True, kw_only=True)
class CandidateView:
    """One candidate of a batch."""

    index: int
    code: str | None
    """As it was submitted; None when the payload is gone."""
    seed: str | None
    """As drawn at submit."""
    verdict: Verdict | None
    """None while there is none."""
    marked_at: float | None
    """When its start was marked, in a cautious batch whose owner is at it; Unix seconds."""
    blame: int
    """Counted losses that are blamed on it."""


@dataclass(frozen=True, kw_only=True)
class BatchView:
    """All that is known of one batch. Times are Unix seconds by the server's clock, if not said otherwise."""

    k: str
    run: str
    id: str
    epoch: int
    queue: str
    status: str
    """`open`, `running`, or how it was answered: `graded`, `partial`, `expired`, …"""
    n: int
    candidates: tuple[CandidateView, ...]
    template: str | None
    spec_type: str | None
    spec: str | None
    """The start of its JSON. It holds the answers: not for the eyes of who writes candidates."""
    spec_bytes: int
    seed_mode: str | None
    base_seed: str | None
    timeout_seconds: int | None
    case_timeout_s: float | None
    recovery: str | None
    egress: Mapping[str, Any] | None
    tags: Mapping[str, str]
    producer: str
    submitted_at: float | None
    """The producer's clock."""
    queued_at: float | None
    claimed_at: float | None
    """The first claim."""
    finished_at: float | None
    deadline_at: float | None
    attempts: int
    losses: int
    errors: int
    passes: int
    cautious: bool
    obstacle: str
    """How its last owner's turn ended, where it did without an answer."""
    node: str
    worker: str
    """The owner's, or the last owner's."""
    now: float
    """When this was read."""
    timeline: Timeline
    notes: tuple[str, ...] = field(default=())
    """What could not be read, for people."""

    def as_json_data(self) -> dict[str, Any]:
        data = asdict(self)
        for shown, held in zip(data["candidates"], self.candidates, strict=True):
            shown["verdict"] = None if held.verdict is None else held.verdict.as_json_data()
        return data


def find_k(queue: BatchQueue, name: str, *, epoch: int = 0) -> str | None:
    """The key id of `run/id`, or of a `k` as it is; None when nothing is known of it. `ValueError`: it is neither."""
    run, slash, identity = name.partition("/")
    if slash and is_name(run) and is_name(identity):
        k = batch_key(run, epoch, identity)
    elif is_k(name):
        k = name
    else:
        raise ValueError(f"{name!r} names no batch: write run/id, or its key of 32 hex digits")
    with translate_errors("look for a batch"):
        known = queue.client.exists(keys.BatchKeys(k).state, keys.BatchKeys(k).done)
    return k if known else None


def read_batch(queue: BatchQueue, k: str, *, receipt: bool = False) -> BatchView | None:
    """None when nothing is known of batch `k`. Raises `RedisUnavailable`, `QueueError`.

    receipt -- look at the producer's cursor, too, for whether it took the answer. A user who may not read cursors is
               told nothing of that.
    """
    at = keys.BatchKeys(k)
    with translate_errors("read a batch"), queue.client.pipeline(transaction=False) as pipe:
        pipe.hgetall(at.state)
        pipe.get(at.payload)
        pipe.get(at.done)
        pipe.hgetall(at.verdicts)
        pipe.hgetall(at.flight)
        pipe.time()
        told = pipe.execute(raise_on_error=False)
    notes: list[str] = []
    for what, one in zip(("state", "payload", "answer", "verdicts", "marks", "time"), told, strict=True):
        if isinstance(one, Exception):
            notes.append(f"the batch's {what} cannot be read: {one}")
    raw_state, payload, done, verdicts, flight, time = (None if isinstance(one, Exception) else one for one in told)
    state = {text(name): value for name, value in (raw_state or {}).items()}
    batch = _unpacked(payload, codec.unpack_batch, "payload", notes)
    result = _unpacked(done, codec.unpack_result, "answer", notes)
    if not state and result is None and batch is None:
        refused = next((one for one in told[:3] if isinstance(one, Exception)), None)
        if refused is not None:  # a right that is missing, say: that is not the same as nothing
            with translate_errors("read a batch"):
                raise refused
        return None
    judged = dict(_verdicts(verdicts or {}, notes))
    if result is not None:
        judged = {verdict.index: verdict for verdict in result.results}
    received = _received(queue, state) if receipt else None
    marked = ((integer(index), integer(when)) for index, when in (flight or {}).items())
    marks = {index: at / 1000 for index, at in marked if index is not None and at is not None}
    seconds, micros = time or (0, 0)
    return _view(k, state, batch, result, judged, marks, int(seconds) + int(micros) / 1e6, tuple(notes), received)


def _received(queue: BatchQueue, state: Mapping[str, Any]) -> bool | None:
    """Whether its producer has read past the batch's answer; None where that cannot be told."""
    finished = integer(state.get("finished_at"))
    if finished is None or "producer" not in state or "run" not in state:
        return None
    with translate_errors("look whether the answer was taken"), queue.client.pipeline(transaction=False) as pipe:
        pipe.get(keys.cursor(text(state["run"]), text(state["producer"])))
        [told] = pipe.execute(raise_on_error=False)
    if told is None or isinstance(told, Exception):
        return None
    ms = integer(text(told).partition("-")[0])
    return None if ms is None else ms >= finished


def _unpacked(blob: Any, unpack: Any, what: str, notes: list[str]) -> Any:
    if blob is None:
        return None
    try:
        return unpack(_bytes(blob))
    except (BadMessage, UnknownVersion) as error:
        notes.append(f"the batch's {what} cannot be read: {error.message}")
        return None


def _verdicts(raw: Mapping[bytes, bytes], notes: list[str]) -> list[tuple[int, Verdict]]:
    found = [
        (number, _unpacked(blob, codec.unpack_verdict, f"verdict {number}", notes))
        for number, blob in ((integer(index), blob) for index, blob in raw.items())
        if number is not None
    ]
    return [(index, verdict) for index, verdict in found if verdict is not None]


def _view(
    k: str,
    state: Mapping[str, Any],
    batch: GradeBatch | None,
    result: BatchResult | None,
    judged: Mapping[int, Verdict],
    marks: Mapping[int, float],
    now: float,
    notes: tuple[str, ...],
    received: bool | None,
) -> BatchView:
    def words(name: str) -> str:
        return text(state.get(name, b""))

    def number(name: str) -> int:
        return natural(state.get(name))

    def instant(name: str) -> float | None:
        return number(name) / 1000 or None

    n = min(number("n"), MAX_CANDIDATES) or len(judged) or (len(batch.candidates) if batch is not None else 0)
    if result is not None:
        n = len(result.results)
    status = words("status") if result is None else result.status.value
    if status == BatchStatus.DONE.value:
        status = words("answered") or status
    given = result or batch
    submitted_at = given.submitted_at if given is not None and given.submitted_at else None
    queued_at = instant("created_at") or (None if result is None else result.queued_at)
    claimed_at = instant("claimed_at") or (None if result is None else result.claimed_at)
    finished_at = instant("finished_at") or (None if result is None else result.finished_at)
    return BatchView(
        k=k,
        run=words("run") or (given.run if given is not None else ""),
        id=words("id") or (given.id if given is not None else ""),
        epoch=number("epoch") or (given.epoch if given is not None else 0),
        queue=words("queue"),
        status=status,
        n=n,
        candidates=tuple(
            CandidateView(
                index=i,
                code=batch.candidates[i] if batch is not None and i < len(batch.candidates) else None,
                seed=batch.seeds[i] if batch is not None and i < len(batch.seeds) else None,
                verdict=judged.get(i),
                marked_at=marks.get(i),
                blame=number(f"blame:{i}"),
            )
            for i in range(n)
        ),
        template=None if batch is None else batch.template,
        spec_type=None if batch is None else str(json.loads(batch.spec)["type"]),
        spec=None if batch is None else batch.spec[:SPEC_CLIP],
        spec_bytes=0 if batch is None else len(batch.spec.encode("utf-8", "surrogatepass")),
        seed_mode=None if batch is None else batch.seed_mode,
        base_seed=None if batch is None else batch.base_seed,
        timeout_seconds=None if batch is None else batch.timeout_seconds,
        case_timeout_s=None if batch is None else batch.case_timeout_s,
        recovery=None if batch is None else batch.recovery,
        egress=None if batch is None else batch.egress,
        tags={} if batch is None else batch.tags,
        producer=words("producer") or ("" if batch is None else batch.producer),
        submitted_at=submitted_at,
        queued_at=queued_at,
        claimed_at=claimed_at,
        finished_at=finished_at,
        deadline_at=instant("deadline_at"),
        attempts=number("fence") if result is None else result.attempts,
        losses=number("losses"),
        errors=number("errors"),
        passes=number("passes"),
        cautious=words("cautious") == "1",
        obstacle=words("obstacle"),
        node=words("node"),
        worker=words("worker") or ("" if result is None else result.worker),
        now=now,
        timeline=make_timeline(
            submitted_at=submitted_at,
            queued_at=queued_at,
            claimed_at=claimed_at,
            finished_at=finished_at,
            received_at=None,
            received=received if finished_at is not None else None,
            status=status,
            story=parse_story(words("story")) or (() if result is None else result.story),
            verdicts=judged,
        ),
        notes=notes,
    )
