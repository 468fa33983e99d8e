"""Candidates that cost their workers their lives: what there is, what is known of one, and how to try it again.

A quarantined candidate's batch is answered, and stays so. To release it is to submit it anew, as a batch of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from collimate_rl.errors import BatchConflict, BatchGone
from collimate_rl.protocol import BatchResult, GradeBatch, batch_key, content_hash, keys, resubmission_id
from collimate_rl.queue import codec
from collimate_rl.queue._raw import raw, text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.replies import Submitted

UNBOUNDED = 2**31
"""An operator's submission waits for no room."""


@dataclass(frozen=True, kw_only=True)
class Quarantined:
    """One candidate in quarantine."""

    entry: str
    """Its id in the stream."""
    at: float
    """Unix seconds, by the server's clock."""
    k: str
    index: int
    run: str
    id: str
    queue: str
    node: str
    worker: str
    """Where it cost the last life."""
    kept: bool
    """Its batch's payload is still there: it can be shown, and released."""

    def as_json_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of a batch with quarantined candidates."""

    candidates: tuple[Quarantined, ...]
    batch: GradeBatch
    state: Mapping[str, str]
    """`col:state:k`, where it is still kept: losses, blame, the last owner."""
    result: BatchResult | None


@dataclass(frozen=True, kw_only=True)
class Again:
    """What a release submitted."""

    k: str
    run: str
    id: str
    word: Submitted
    """NEW; SAME or DONE when somebody had submitted these candidates again already."""


def listed(queue: BatchQueue) -> list[Quarantined]:
    """Every candidate in quarantine, of all queues, oldest first."""
    client = queue.client
    with translate_errors("read the quarantine"):
        entries: Any = client.xrange(keys.QUARANTINE)
        told = [(text(entry), {text(n): text(v) for n, v in fields.items()}) for entry, fields in entries]
        with client.pipeline(transaction=False) as pipe:
            for _, fields in told:
                pipe.exists(keys.BatchKeys(fields["k"]).payload)
            kept = pipe.execute()
    return [
        Quarantined(
            entry=entry,
            at=int(entry.partition("-")[0]) / 1000,
            index=int(fields["index"]),
            kept=bool(there),
            **{name: fields.get(name, "") for name in ("k", "run", "id", "queue", "node", "worker")},
        )
        for (entry, fields), there in zip(told, kept, strict=True)
    ]


def find(queue: BatchQueue, which: str) -> tuple[Quarantined, ...]:
    """The quarantined candidates of one batch, named by the beginning of its k or as run/id. `ValueError` when that
    names none, or more than one batch."""
    found = [one for one in listed(queue) if one.k.startswith(which) or f"{one.run}/{one.id}" == which]
    ks = sorted({one.k for one in found})
    if len(ks) != 1:
        told = f"{len(ks)} batches begin with it: {', '.join(ks)}" if ks else "list shows what there is"
        raise ValueError(f"{which!r} names no single batch in quarantine; {told}")
    return tuple(found)


def evidence(queue: BatchQueue, which: str) -> Evidence:
    """What is known of a batch. `ValueError` as `find`; `BatchGone` when its payload has expired; `BadMessage`."""
    found = find(queue, which)
    at = keys.BatchKeys(found[0].k)
    with translate_errors("read a quarantined batch"):
        payload, state = queue.client.get(at.payload), queue.client.hgetall(at.state)
    if payload is None:
        raise BatchGone(f"the payload of {found[0].run}/{found[0].id} is no longer kept")
    told = {text(name): text(value) for name, value in state.items() if raw(name) != b"bell"}
    return Evidence(
        candidates=found, batch=codec.unpack_batch(raw(payload)), state=told, result=queue.result(found[0].k)
    )


def release(queue: BatchQueue, which: str, *, clock: Any = time.time) -> Again:
    """Submits a batch's quarantined candidates anew and takes them out of quarantine.

    They go to the queue and the run that they were of, under the id that the producer's own `resubmit` would give, so
    that a trainer who resubmits them gets this batch's answer. Raises as `evidence`, and `BatchConflict`.
    """
    known = evidence(queue, which)
    old, indices = known.batch, sorted({one.index for one in known.candidates})
    seeds = tuple(old.seeds[i] for i in indices)
    again = replace(
        old,
        id=resubmission_id(old.id, old.epoch, indices),
        candidates=tuple(old.candidates[i] for i in indices),
        seeds=seeds,
        submitted_at=clock(),
    )
    k = batch_key(again.run, again.epoch, again.id)
    home = BatchQueue(queue.client, known.candidates[0].queue, timing=queue.timing)
    reply = home.submit(k, again, content_hash(again, seeds), window=UNBOUNDED, depth=UNBOUNDED)
    if reply.word is Submitted.CONFLICT:
        raise BatchConflict(f"batch {again.id!r} of run {again.run!r} was submitted before with other content")
    with translate_errors("take candidates out of quarantine"), queue.client.pipeline() as pipe:
        pipe.xdel(keys.QUARANTINE, *(one.entry for one in known.candidates))
        pipe.pexpire(keys.BatchKeys(known.candidates[0].k).payload, queue.timing.keep_ms)
        pipe.execute()
    return Again(k=k, run=again.run, id=again.id, word=reply.word)
