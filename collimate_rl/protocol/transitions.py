"""The queue's protocol as pure functions: each mirrors one script of `collimate_rl.queue.scripts`.

A function takes the store, the call's arguments and the timing, and returns the next store and the reply. Arguments and
replies are those in the script's header. tests/integration/test_scripts_against_model.py holds every script against its
function; tests/unit/test_protocol_explorer.py walks the functions through every order of events at small size. What
supervisors and janitors call is in `upkeep`, and reachable from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collimate_rl.protocol.model import Batch, Pairs, Reply, Step, Store, drop, look, put
from collimate_rl.protocol.states import BatchStatus
from collimate_rl.protocol.steps import (
    add,
    answer,
    change,
    check_at,
    disown,
    due_answer,
    has_sessions,
    keep_home,
    known_as,
    live,
    loss,
    owns,
    quarantined,
    ring,
    ring_after,
    settled,
    tell,
)
from collimate_rl.protocol.timing import Timing
from collimate_rl.protocol.upkeep import beat, bump, bury, lease, mend, purge, seat, tally

__all__ = [
    "Submission",
    "beat",
    "bump",
    "bury",
    "cancel",
    "cases",
    "claim",
    "lease",
    "mark",
    "mend",
    "note",
    "publish",
    "purge",
    "release",
    "remember",
    "renew",
    "seat",
    "submit",
    "tally",
    "verdict",
]


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The arguments of `submit`."""

    k: str
    queue: str
    run: str
    id: str
    epoch: int
    producer: str
    hash: str
    n: int
    deadline_ms: int
    submitted_at: float
    depth: int
    window: int
    payload: bytes


def submit(store: Store, timing: Timing, asked: Submission) -> Step:
    """Payload, state, pending entry and first bell in one step."""
    batch, now = store.batch, store.now
    if batch is not None:
        if batch.hash != asked.hash:
            return store, ("CONFLICT", 0)
        if batch.status is BatchStatus.DONE:
            return store, ("DONE", 0)
        store = replace(store, askers=store.askers | {asked.producer})
        return store, ("SAME", max(0, batch.deadline_at - now))
    if len(store.pending) >= asked.depth:
        return store, ("FULL", len(store.pending))
    running = tuple(item for item in store.inflight if item[1] >= now)
    if len(running) >= asked.window:
        return store, ("WINDOW", len(running))
    deadline_at = now + asked.deadline_ms
    made = Batch(
        k=asked.k,
        run=asked.run,
        id=asked.id,
        epoch=asked.epoch,
        producer=asked.producer,
        queue=asked.queue,
        hash=asked.hash,
        n=asked.n,
        submitted_at=asked.submitted_at,
        created_at=now,
        deadline_at=deadline_at,
        blame=(0,) * asked.n,
    )
    store = replace(
        store,
        batch=made,
        payload=asked.payload,
        askers=store.askers | {asked.producer},
        bells=known_as(store.bells, asked.k, asked.run),
        inflight=put(running, asked.k, deadline_at + timing.keep_ms),
        runs=put(store.runs, asked.run, now),
        counted=add(store.counted, f"run:{asked.run}", "submitted", 1),
    )
    return ring(store, timing, back=True), ("NEW", asked.deadline_ms)


def claim(store: Store, timing: Timing, *, owner: str, worker: str, node: str) -> Step:
    """Makes `owner` the owner, under a higher fence."""
    batch = store.batch
    if batch is None:
        return store, ("GONE",)
    if batch.status is BatchStatus.DONE:
        return store, ("DONE",)
    if live(store):
        if batch.owner == owner:
            return store, _grant(store)
        return store, ("BUSY", batch.lease_until - store.now)
    due = due_answer(store, timing)
    if due is not None:
        return due, ("DONE",)
    if batch.status is BatchStatus.OPEN and batch.home_until > store.now and batch.home != node:
        return store, ("BUSY", batch.home_until - store.now)
    if batch.status is BatchStatus.RUNNING:
        if not settled(store, timing):
            return store, ("BUSY", timing.look_ms)
        store, nothing_left = loss(store, timing)
        if nothing_left:
            return answer(store, timing), ("DONE",)
    store = disown(store, "lost")
    store = change(
        store,
        status=BatchStatus.RUNNING,
        owner=owner,
        worker=worker,
        node=node,
        fence=store.known.fence + 1,
        lease_until=store.now + timing.lease_ms,
        claimed_at=store.known.claimed_at or store.now,
        unlisted=0,
        unlisted_at=0,
        ring_at=0,
        home_until=0,
        released_by=None,
        released_out=(),
    )
    store = tell(store, "claimed")
    store = replace(store, owned=put(store.owned, (node, worker), store.known.k))
    store = check_at(store, store.known.lease_until)
    return store, _grant(store)


def _grant(store: Store) -> Reply:
    batch = store.known
    return (
        "OK",
        batch.fence,
        batch.lease_until - store.now,
        batch.deadline_at - store.now,
        batch.claimed_at - batch.created_at,
        int(batch.cautious),
        batch.losses,
        batch.errors,
        batch.passes,
        store.payload or b"",
        store.verdicts,
        store.ledger,
        batch.blame if batch.cautious else (),
    )


def renew(store: Store, timing: Timing, *, owner: str, fence: int) -> Step:
    """The owner is alive. Valid while it owns, even late."""
    if not owns(store, owner, fence):
        return store, ("FENCED",)
    batch = store.known
    if store.now > batch.deadline_at + timing.overdue_ms:
        return store, ("OVERDUE",)
    store = change(store, lease_until=store.now + timing.lease_ms)
    return store, ("OK", timing.lease_ms, int(batch.cancel), batch.deadline_at - store.now)


def note(
    store: Store,
    timing: Timing,
    *,
    owner: str,
    fence: int,
    index: int,
    entry: bytes,
    session: str = "",
    node: str = "",
) -> Step:
    """Where a candidate's session lives, to be acknowledged before the first exec in it."""
    if not owns(store, owner, fence):
        return store, ("FENCED", int(look(store.noted, (node, session)) is not None)) if session else ("FENCED",)
    old = look(store.ledger, index)
    replaced = old if old is not None and old != entry else b""
    store = replace(store, ledger=put(store.ledger, index, entry))
    if session:
        kept = tuple(item for item in store.noted if item[0][0] != node or item[1] > store.now - timing.keep_ms)
        store = replace(store, noted=put(kept, (node, session), store.now))
    return store, ("OK", replaced)


def mark(store: Store, *, owner: str, fence: int, index: int) -> Step:
    """In a cautious batch: this candidate starts now."""
    if not owns(store, owner, fence):
        return store, ("FENCED",)
    if store.known.cautious and look(store.verdicts, index) is None:
        store = replace(store, flight=put(store.flight, index, store.now))
    return store, ("OK",)


def cases(store: Store, *, owner: str, fence: int, blob: bytes) -> Step:
    """Stores made cases once; answers what stands."""
    if not owns(store, owner, fence):
        return store, ("FENCED",)
    if store.cases is not None:
        return store, ("OK", store.cases)
    return replace(store, cases=blob), ("OK", blob)


def verdict(store: Store, *, owner: str, fence: int, verdicts: Sequence[tuple[int, bytes]]) -> Step:
    """Writes verdicts, each once and for all."""
    mine, words = owns(store, owner, fence), []
    for index, blob in verdicts:
        old = None if store.batch is None else look(store.verdicts, index)
        if old is not None:
            words.append("ACCEPTED" if old == blob else "STANDS")
        elif not mine:
            words.append("FENCED")
        else:
            store = replace(store, verdicts=put(store.verdicts, index, blob), flight=drop(store.flight, index))
            store = change(store, errors=0)
            words.append("ACCEPTED")
    return store, tuple(words)


def remember(store: Store, *, owner: str, fence: int, digest: str, blob: bytes, room: int) -> Step:
    """Keeps a verdict in the run's cache, once, while there is room."""
    if not owns(store, owner, fence):
        return store, ("FENCED",)
    old = look(store.cache, digest)
    if old is not None:
        return store, ("KEPT" if old == blob else "STANDS",)
    if sum(len(kept) for _, kept in store.cache) + len(blob) > room:
        return store, ("NO_ROOM",)
    return replace(store, cache=put(store.cache, digest, blob)), ("KEPT",)


def publish(
    store: Store, timing: Timing, *, owner: str, fence: int, fill: str, detail: str, infra: Mapping[int, bytes]
) -> Step:
    """Answers the batch, once."""
    batch = store.batch
    if batch is not None and batch.status is BatchStatus.DONE:
        return store, ("ALREADY",)
    if batch is None or not owns(store, owner, fence):
        return store, ("FENCED",)
    if not fill:
        given = {i for i, _ in store.verdicts} | set(infra) | quarantined(batch, timing)
        missing = tuple(i for i in range(batch.n) if i not in given)
        if missing:
            return store, ("MISSING", *missing)
    return answer(store, timing, fill=fill, detail=detail, infra=infra), ("OK",)


def release(
    store: Store, timing: Timing, *, owner: str, fence: int, mode: str, drop: bool, home: bool, detail: str
) -> Step:
    """The owner gives the batch back: `mode` is clean, pass, later or error; `home` goes with clean."""
    batch = store.batch
    if batch is None:
        return store, ("FENCED",)
    if not owns(store, owner, fence):
        if batch.released_by != (owner, fence):
            return store, ("FENCED",)
        word = "ANSWERED" if batch.status is BatchStatus.DONE else "RELEASED"
        return store, (word, batch.released_out)
    out: Pairs[int, bytes] = ()
    if drop:
        out = tuple(item for item in store.ledger if look(store.verdicts, item[0]) is None)
    store = replace(store, ledger=tuple(item for item in store.ledger if item not in out))
    store = change(store, released_by=(owner, fence), released_out=out)
    due = due_answer(store, timing, word=mode, detail=detail)
    if due is not None:
        return due, ("ANSWERED", out)
    if mode == "error":
        errors = batch.errors + 1
        store = change(store, errors=errors)
        if errors >= timing.max_errors:
            return answer(store, timing, fill="internal", detail=detail), ("ANSWERED", out)
        store = ring_after(disown(store, mode, detail), errors * timing.backoff_ms, back=False)
    elif mode == "pass":
        store = change(store, passes=batch.passes + 1)
        store = ring_after(disown(store, mode, detail), store.known.passes * timing.backoff_ms, back=True)
    elif mode == "later":
        store = ring_after(disown(store, mode, detail), timing.later_ms, back=True)
    else:
        store = ring(disown(store, mode, detail), timing, back=False)
        if home and has_sessions(store):
            store = keep_home(store, timing)
    return store, ("RELEASED", out)


def cancel(store: Store, timing: Timing) -> Step:
    """Asks the owner to stop, or answers at once where nobody owns the batch."""
    if store.batch is None:
        return store, ("GONE",)
    if store.batch.status is BatchStatus.DONE:
        return store, ("DONE",)
    store = change(store, cancel=True)
    if live(store):
        return store, ("ASKED",)
    return answer(store, timing, fill="cancelled"), ("ANSWERED",)
