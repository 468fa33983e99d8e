"""The parts that transitions share, as `scripts/prelude.lua` and `scripts/answer.lua` are shared by the scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from collimate_rl.protocol.model import Answer, Batch, Bell, Flag, Pairs, Store, drop, look, pairs, put
from collimate_rl.protocol.states import BatchStatus
from collimate_rl.protocol.story import MAX_STORY
from collimate_rl.protocol.timing import Timing

STATUS_OF = {"expired": "expired", "cancelled": "cancelled", "quarantined": "quarantined"}
LOOK_AHEAD = 512
"""So many bells are searched for a bell's turn where its round's last bell is gone; where they don't decide, it goes to
the back."""
MAX_SHORT = 500
"""Bytes of what an owner says of the end of its turn, as it is kept."""


def change(store: Store, **fields: Any) -> Store:
    """The store with these fields of its batch's state changed."""
    return replace(store, batch=replace(store.known, **fields))


def owns(store: Store, owner: str, fence: int) -> bool:
    batch = store.batch
    return batch is not None and (batch.status, batch.owner, batch.fence) == (BatchStatus.RUNNING, owner, fence)


def live(store: Store) -> bool:
    return store.known.status is BatchStatus.RUNNING and store.known.lease_until > store.now


def settled(store: Store, timing: Timing) -> bool:
    """Beats have come for `settle_ms` without a gap, so that whoever lives has had time to renew."""
    if store.clock is None:
        return False
    last, since = store.clock
    return store.now - last <= timing.gap_ms and store.now - since >= timing.settle_ms


def add(counted: Pairs[tuple[str, str], int], part: str, name: str, count: int) -> Pairs[tuple[str, str], int]:
    """With `count` more under (part, name)."""
    return put(counted, (part, name), (look(counted, (part, name)) or 0) + count)


def check_at(store: Store, at: int) -> Store:
    return replace(store, pending=put(store.pending, store.known.k, at))


def turn(bells: tuple[Bell, ...], run: str) -> int:
    """Where a bell of `run` goes by the list alone: behind its own last, leaving each other run one before it."""
    jobs = [bell.job for bell in bells]
    seen: set[str] = set()
    for bell in bells[:LOOK_AHEAD]:
        if bell.run == run:
            seen.clear()
        elif bell.run in seen:
            return jobs.index(bell.job)
        elif bell.run:
            seen.add(bell.run)
    return len(bells)


def in_turn(store: Store, job: str) -> Store:
    """With a bell of the batch's run, `job`, behind all of its round: the one after the run's last, and not one that
    the list has begun with already."""
    run = store.known.run
    at, top = store.round_top + 1, store.round_top
    least = at
    if store.bells:
        head = store.bells[0]
        at = max(store.round_now, head.round)
        top = max(top, at)
        least = at if (look(store.rounds, at) or ("", ""))[0] == head.job else at + 1
    number = min(max(least, store.round_last + 1), top + 1)
    first, last = look(store.rounds, number) or (job, "")
    jobs = [bell.job for bell in store.bells]
    if number >= top and (store.round_top > 0 or not store.bells):
        place = len(jobs)
    elif last in jobs:
        place = jobs.index(last) + 1
    else:
        place = turn(store.bells, run)
    bells = (*store.bells[:place], Bell(job=job, run=run), *store.bells[place:])
    return replace(
        store,
        bells=tuple(replace(bell, round=number) if bell.job == job else bell for bell in bells),
        rounds=put(tuple(pair for pair in store.rounds if pair[0] >= at), number, (first, job)),
        round_now=at,
        round_top=max(top, number),
        round_last=number,
    )


def known_as(bells: tuple[Bell, ...], k: str, run: str) -> tuple[Bell, ...]:
    """The bells of batch `k` are `run`'s from now on."""
    return tuple(replace(bell, run=run) if bell.job.startswith(f"{k}-") else bell for bell in bells)


def ring(store: Store, timing: Timing, *, back: bool) -> Store:
    """One more bell, of its own job id: at the front, or in the run's turn."""
    batch = store.known
    rings = batch.rings + 1
    job = f"{batch.k}-{rings}"
    store = in_turn(store, job) if back else replace(store, bells=(Bell(job=job, run=batch.run), *store.bells))
    store = change(store, rings=rings, unlisted=0, unlisted_at=0, ring_at=0)
    return check_at(store, store.now + timing.recheck_ms)


def has_sessions(store: Store) -> bool:
    """The ledger names a session of a candidate without a verdict."""
    return any(look(store.verdicts, index) is None for index, _ in store.ledger)


def keep_home(store: Store, timing: Timing) -> Store:
    """Rung, and nobody's: for a while it is kept for its last owner's node, with a bell on that node's own list."""
    batch, until = store.known, store.now + timing.home_ms
    rings = batch.rings + 1
    waiting = (*(look(store.homed, batch.node) or ()), f"{batch.k}-{rings}")
    store = replace(store, homed=put(store.homed, batch.node, waiting))
    store = change(store, rings=rings, home=batch.node, home_until=until, ring_at=until, ring_back=False)
    return check_at(store, until)


def without_bells(homed: Pairs[str, tuple[str, ...]], nodes: set[str], jobs: set[str]) -> Pairs[str, tuple[str, ...]]:
    """Nodes' own lists without these jobs on the lists of these nodes."""
    left = {node: tuple(job for job in waiting if node not in nodes or job not in jobs) for node, waiting in homed}
    return pairs({node: waiting for node, waiting in left.items() if waiting})


def ring_after(store: Store, ms: int, *, back: bool) -> Store:
    """No bell yet: `mend` rings when the time has come."""
    at = store.now + ms
    return check_at(change(store, ring_at=at, ring_back=back), at)


def tell(store: Store, word: str) -> Store:
    """The batch's story with one turn more."""
    batch = store.known
    turns = [*batch.story.splitlines(), f"{store.now} {word} {batch.fence} {batch.node} {batch.worker}"]
    return change(store, story="".join(f"{turn}\n" for turn in turns[-MAX_STORY:]))


def short(text: str) -> str:
    """`text` in at most `MAX_SHORT` bytes, cut between two characters."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_SHORT:
        return text
    return re.sub(rb"[\xc0-\xff][\x80-\xbf]*\Z", b"", raw[:MAX_SHORT]).decode("utf-8", "surrogatepass") + "..."


def ended(batch: Batch, word: str, detail: str) -> str:
    """For people, how the turn of the batch's owner ended; `detail` is what the owner said."""
    if word == "lost":
        return f"its worker on node {batch.node} fell silent"
    if word == "buried":
        return f"its worker on node {batch.node} died"
    return f"node {batch.node} gave it back" + (f": {short(detail)}" if detail else "")


def disown(store: Store, word: str, detail: str = "") -> Store:
    """Nobody's again; `word` and `detail` say how its owner's turn ended. Marked starts were the last owner's."""
    if store.known.status is BatchStatus.RUNNING:
        store = tell(store, word)
        if word != "answered":
            store = change(store, obstacle=ended(store.known, word, detail))
    batch = store.known
    place = (batch.node, batch.worker)
    owned = drop(store.owned, place) if batch.node and look(store.owned, place) == batch.k else store.owned
    return change(replace(store, owned=owned, flight=()), status=BatchStatus.OPEN, owner="", lease_until=0)


def loss(store: Store, timing: Timing, *, counts: bool = True) -> tuple[Store, bool]:
    """Its owner is gone; the second value is True when no candidate is left that may still run.

    It counts only when the worker's alive key is gone too, and where `counts` says so. The first loss blames every
    unjudged candidate and makes the batch cautious; later ones blame what was marked as started, or every unjudged one
    if nothing was.
    """
    batch = store.known
    if len(store.verdicts) == batch.n:
        return store, True
    if not counts or (batch.worker and batch.worker in store.alive):
        return store, False
    unjudged = [i for i in range(batch.n) if look(store.verdicts, i) is None]
    marked = {i for i, _ in store.flight if i in unjudged} if batch.cautious else set()
    blame = list(batch.blame)
    poisoned = []
    for i in unjudged:
        if i in marked or not marked:
            blame[i] += 1
            if blame[i] == timing.max_blame:
                poisoned.append((batch.k, i))
    store = replace(store, quarantine=(*store.quarantine, *poisoned))
    store = change(store, losses=batch.losses + 1, blame=tuple(blame), cautious=True)
    return store, all(blame[i] >= timing.max_blame for i in unjudged)


def quarantined(batch: Batch, timing: Timing) -> frozenset[int]:
    """Candidates that must not run any more."""
    if not batch.cautious:
        return frozenset()
    return frozenset(i for i, count in enumerate(batch.blame) if count >= timing.max_blame)


def answer(
    store: Store, timing: Timing, *, fill: str = "", detail: str = "", infra: Mapping[int, bytes] | None = None
) -> Store:
    """The batch becomes done: verdicts stand, `infra` and `fill` answer the rest, every asker is told."""
    batch = store.known
    given, poison = infra or {}, quarantined(batch, timing)
    results: list[bytes | Flag] = []
    poisoned = flagged = 0
    for i in range(batch.n):
        verdict = look(store.verdicts, i)
        if verdict is not None:
            results.append(verdict)
            continue
        flagged += 1
        if i in poison:
            poisoned += 1
            told = f"it cost its workers their lives {batch.blame[i]} times"
            results.append(Flag(index=i, code="quarantined", detail=told, node=batch.node, attempt=batch.fence))
        elif i in given:
            results.append(given[i])
        else:
            code = fill or "internal"
            results.append(Flag(index=i, code=code, detail=detail, node=batch.node, attempt=batch.fence))
    status = "partial"
    if fill and flagged > poisoned:
        status = STATUS_OF.get(fill, "failed")
    elif not flagged:
        status = "graded"
    elif poisoned == flagged:
        status = "quarantined"
    done = Answer(
        status=status,
        results=tuple(results),
        claimed_at=batch.claimed_at,
        finished_at=store.now,
        attempts=batch.fence,
        worker=batch.worker,
    )
    streams = {**dict(store.streams), **{who: (*(look(store.streams, who) or ()), status) for who in store.askers}}
    store = replace(
        disown(store, "answered"),
        done=done,
        pending=drop(store.pending, batch.k),
        inflight=drop(store.inflight, batch.k),
        streams=pairs(streams),
        answers=(*store.answers, (batch.k, status, batch.n, flagged)),
    )
    return change(store, status=BatchStatus.DONE, fence=batch.fence + 1, answered=status, finished_at=store.now)


def why_expired(store: Store, word: str, detail: str) -> str:
    """For people, what kept the batch until its deadline: how its owner's turn ends, or its last owner's did, whether
    nodes serve the queue, and the last obstacle that one of them named while the batch waited."""
    batch = store.known
    told = f"the deadline of {(batch.deadline_at - batch.created_at) / 1000:g} s passed"
    if batch.status is BatchStatus.RUNNING:
        return f"{told}: {ended(batch, word, detail)}"
    nodes = sum(until >= store.now for _, until in store.nodes)
    if batch.obstacle:
        told += f" while it waited to be taken again: {batch.obstacle}"
    elif nodes == 0:
        told += f" while it waited in the queue: no node serves queue {batch.queue}"
    elif nodes == 1:
        told += " while it waited in the queue: the node that served it did not take it"
    else:
        told += f" while it waited in the queue: none of the {nodes} nodes that served it took it"
    at, node, said = store.obstacle or (0, "", "")
    if store.obstacle is None or at < batch.created_at or said in told:
        return told
    return f"{told}; node {node} said {(at - batch.created_at) // 1000} s after the submit: {said}"


def due_answer(store: Store, timing: Timing, *, word: str = "lost", detail: str = "") -> Store | None:
    """The store after the answer of a batch that is cancelled or past its deadline; None when it is neither.

    `word` and `detail` say how its owner's turn ends, where it has one.
    """
    if store.known.cancel:
        return answer(store, timing, fill="cancelled")
    if store.now > store.known.deadline_at:
        return answer(store, timing, fill="expired", detail=why_expired(store, word, detail))
    return None
