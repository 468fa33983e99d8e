"""What supervisors, janitors and operators call; `transitions` has the rest, and says what these functions are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from collimate_rl.protocol.model import Step, Store, drop, look, put
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
    ring,
    settled,
    without_bells,
)
from collimate_rl.protocol.timing import Timing


def bury(store: Store, timing: Timing, *, node: str, worker: str, counts: bool, home: bool) -> Step:
    """The worker's process is gone: what it owned goes back at once; `home`: to its node first, if it has sessions."""
    batch, k = store.batch, look(store.owned, (node, worker))
    store = replace(store, alive=store.alive - {worker}, owned=drop(store.owned, (node, worker)))
    if batch is None or k != batch.k or batch.status is not BatchStatus.RUNNING:
        return store, ("NONE",)
    if (batch.node, batch.worker) != (node, worker):
        return store, ("NONE",)
    due = due_answer(store, timing, word="buried")
    if due is not None:
        return due, ("ANSWERED", k)
    store, nothing_left = loss(store, timing, counts=counts)
    if nothing_left:
        return answer(store, timing), ("ANSWERED", k)
    store = ring(disown(store, "buried"), timing, back=False)
    return keep_home(store, timing) if home and has_sessions(store) else store, ("RELEASED", k)


def mend(store: Store, timing: Timing, *, k: str, queue: str, listed: bool) -> Step:
    """Looks at one batch whose check is due, and puts right what is wrong with it. `queue` is the store's own."""
    batch, now = store.batch, store.now
    if batch is None or batch.k != k or batch.status is BatchStatus.DONE or batch.queue != queue:
        return replace(store, pending=drop(store.pending, k)), ("FORGOT",)
    if live(store):
        return check_at(store, batch.lease_until), ("LIVE",)
    due = due_answer(store, timing)
    if due is not None:
        return due, ("ANSWERED",)
    if batch.status is BatchStatus.RUNNING:
        if not settled(store, timing):
            return check_at(store, now + timing.look_ms), ("SETTLING",)
        store, nothing_left = loss(store, timing)
        if nothing_left:
            return answer(store, timing), ("ANSWERED",)
        return ring(disown(store, "lost"), timing, back=False), ("RELEASED",)
    if listed:
        return check_at(change(store, unlisted=0, unlisted_at=0), now + timing.recheck_ms), ("LISTED",)
    if batch.ring_at:
        if now < batch.ring_at:
            return check_at(store, batch.ring_at), ("WAITING",)
        return ring(store, timing, back=batch.ring_back), ("RUNG",)
    if batch.unlisted != batch.rings:
        store = change(store, unlisted=batch.rings, unlisted_at=now)
        return check_at(store, now + timing.look_ms), ("LOOK",)
    if now - batch.unlisted_at < timing.look_ms:
        return check_at(store, batch.unlisted_at + timing.look_ms), ("LOOK",)
    return ring(store, timing, back=False), ("RUNG",)


def bump(store: Store, timing: Timing, ks: Iterable[str]) -> Step:
    """These have a bell on the list: look again after `recheck_ms`."""
    moved, pending = 0, store.pending
    for k in ks:
        if look(pending, k) is not None:
            pending = put(pending, k, store.now + timing.recheck_ms)
            moved += 1
    return replace(store, pending=pending), (moved,)


def beat(store: Store, timing: Timing, *, node: str, heartbeat: str, obstacle: str = "") -> Step:
    """A supervisor or janitor lives; with a node's name, that node's heartbeat, and what keeps it from work."""
    now = store.now
    last, since = store.clock if store.clock is not None else (None, now)
    if last is None or now - last > timing.gap_ms or now < last:
        since = now
    store = replace(store, clock=(now, since))
    if node:
        store = replace(
            store,
            nodes=put(tuple(item for item in store.nodes if item[1] > now), node, now + timing.alive_ms),
            heartbeats=put(store.heartbeats, node, heartbeat),
            obstacle=(now, node, obstacle) if obstacle else store.obstacle,
        )
    return store, (int(settled(store, timing)), now - since)


def lease(store: Store, *, name: str, token: str, ms: int) -> Step:
    """Takes, renews or (`ms` 0) gives back a named lease."""
    held = look(store.leases, name)
    if ms == 0:
        if held is not None and held[0] == token:
            store = replace(store, leases=drop(store.leases, name))
        return store, (1, 0)
    if held is not None and held[0] != token:
        return store, (0, max(0, held[1] - store.now))
    return replace(store, leases=put(store.leases, name, (token, store.now + ms))), (1, ms)


def seat(store: Store, *, gate: str, token: str, ms: int, cap: int, held: bool) -> Step:
    """Takes, renews or (`ms` 0) gives back a place under a cap; `held`: the sandbox runs, so it has its place."""
    taken = tuple(item for item in store.seats if item[0][0] != gate or item[1] > store.now)
    untils = [until for (name, _), until in taken if name == gate]
    sits = look(taken, (gate, token)) is not None
    if ms == 0:
        return replace(store, seats=drop(taken, (gate, token))), (1, len(untils) - sits)
    if not (sits or held or len(untils) < cap):
        return replace(store, seats=taken), (0, min(untils) - store.now if untils else 0)
    return replace(store, seats=put(taken, (gate, token), store.now + ms)), (1, len(untils) + (not sits))


def purge(store: Store, *, k: str, run: str) -> Step:
    """Removes a batch of the run and all that is kept of it, whatever its state."""
    batch = store.batch
    if batch is None or batch.k != k:
        return store, ("GONE",)
    if batch.run != run:
        return store, ("OTHER",)
    place, rung = (batch.node, batch.worker), {f"{k}-{n}" for n in range(1, batch.rings + 1)}
    of_round = {bell.job: bell.round for bell in store.bells if bell.job in rung and bell.round}
    store = replace(
        store,
        rounds=tuple(
            (number, ends) for number, ends in store.rounds if not any(of_round.get(job) == number for job in ends)
        ),
        batch=None,
        payload=None,
        verdicts=(),
        ledger=(),
        flight=(),
        cases=None,
        askers=frozenset(),
        done=None,
        pending=drop(store.pending, k),
        inflight=drop(store.inflight, k),
        bells=known_as(tuple(bell for bell in store.bells if bell.job not in rung), k, ""),
        homed=without_bells(store.homed, {batch.node, batch.home}, rung),
        owned=drop(store.owned, place) if look(store.owned, place) == k else store.owned,
        quarantine=tuple(entry for entry in store.quarantine if entry[0] != k or not batch.cautious),
    )
    return store, ("PURGED", batch.status.value)


def tally(
    store: Store,
    *,
    queue: str,
    token: str,
    start: str,
    end: str,
    groups: Iterable[tuple[str, tuple[tuple[str, str], ...]]],
) -> Step:
    """The leading janitor adds what it counted of answers, and moves the cursor on."""
    held = look(store.leases, f"janitor:{queue}")
    if held is None or held[0] != token:
        return store, ("NOT_LEADING",)
    if (store.tallied or "0-0") != start:
        return store, ("STALE", store.tallied or "0-0")
    counted, recents = store.counted, store.recents
    for part, given in groups:
        if part == "recent":
            recents = (*recents, tuple(word for pair in given for word in pair))
            continue
        for name, count in given:
            counted = add(counted, part, name, int(count))
    return replace(store, counted=counted, recents=recents, tallied=end), ("OK", end)
