"""The protocol's functions in every order of events, at small size.

Checked at every step: answered at most once, to everybody who asked; no verdict and no answer changes; no session is
deleted that a live owner uses or a later one would attach to; on the attach path nothing that ran is run again on the
same daemon; of a purged batch nothing is left, and its old owners touch nothing of its next life; and from every world,
once faults stop, every batch is answered and nothing of it is left.

EXPLORE=long in the environment walks larger worlds, for minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from collimate_rl.protocol import transitions as t
from collimate_rl.protocol.model import Step, Store, look
from tests.fixtures import explorer_moves, explorer_world
from tests.fixtures.explorer import KINDS, Broken, Explorer
from tests.fixtures.explorer_moves import Moves
from tests.fixtures.explorer_world import TIMING, World

SMALL: dict[str, dict[str, Any]] = {
    "attach": {"faults": 1},
    "attach, two batches": {"faults": 0, "batches": 2},
    "attach, two nodes with a daemon each": {"faults": 1, "nodes": 2, "kinds": {"crash", "daemon"}},
    "one-shot, two candidates": {"faults": 1, "n": 2, "attach": False},
    "one-shot, two batches": {"faults": 1, "batches": 2, "attach": False, "kinds": {"crash", "purge"}},
    "one-shot, two faults": {"faults": 2, "attach": False, "kinds": {"crash", "pause", "bells"}},
    "one-shot, short deadline": {"faults": 1, "attach": False, "deadline_ms": 4},
}
LARGE: dict[str, dict[str, Any]] = {
    "attach, two faults": {"faults": 2},
    "attach, two candidates": {"faults": 1, "n": 2},
    "attach, two batches, a kill": {"faults": 1, "batches": 2, "kinds": {"crash"}},
    "attach, two purges": {"faults": 2, "kinds": {"purge", "crash"}},
    "attach, two nodes, two faults": {"faults": 2, "nodes": 2, "kinds": {"crash", "pause", "daemon"}},
    "one-shot, two batches, two faults": {"faults": 2, "batches": 2, "attach": False, "kinds": {"crash", "bells"}},
    "attach, two candidates, two kills or pauses": {"faults": 2, "n": 2, "kinds": {"crash", "pause"}},
    "attach, three kills": {"faults": 3, "kinds": {"crash"}},
    "attach, short deadline": {"faults": 1, "deadline_ms": 4},
    "attach, three workers": {"faults": 1, "workers": 3},
    "one-shot, three faults": {"faults": 3, "attach": False},
    "one-shot, two candidates, three kills": {"faults": 3, "n": 2, "attach": False, "kinds": {"crash"}},
    "one-shot, two candidates, two faults, short deadline": {"faults": 2, "n": 2, "attach": False, "deadline_ms": 4},
}
LONG = os.environ.get("EXPLORE") == "long"
SIZES = {**SMALL, **(LARGE if LONG else {})}


@pytest.mark.parametrize("size", SIZES)
def test_no_order_of_events_breaks_a_rule(size: str) -> None:
    walk = Explorer(**SIZES[size]).walk()
    assert walk.statuses["graded"] > 0
    assert (walk.statuses["purged"] > 0) == ("purge" in SIZES[size].get("kinds", KINDS) and SIZES[size]["faults"] > 0)
    assert (walk.statuses["expired"] > 0) == ("deadline" in size)
    if "crash" in SIZES[size].get("kinds", KINDS) and SIZES[size]["faults"] >= TIMING.max_blame:
        assert walk.statuses["quarantined"] > 0


# The explorer is worth something only if it finds what is wrong: each of these breaks one rule of the protocol, or of
# what a worker and a janitor may do.


def _verdict_of_anybody(store: Store, _k: str, owner: str, fence: int, index: int) -> Step:
    batch = store.batch
    if batch is None or batch.status.value != "running":
        return store, ("FENCED",)
    verdicts = ((index, b"%d under %d" % (index, fence)),)
    return t.verdict(store, owner=batch.owner, fence=batch.fence, verdicts=verdicts)


def _verdict_overwritten(store: Store, k: str, owner: str, fence: int, index: int) -> Step:
    emptied = replace(store, verdicts=tuple(item for item in store.verdicts if item[0] != index))
    return explorer_world.CALLS["verdict"](emptied, k, owner, fence, index)


def _published_by_anybody(store: Store, k: str, owner: str, fence: int, fill: str) -> Step:
    batch = store.batch
    if batch is None or not batch.owner:
        return explorer_world.CALLS["publish"](store, k, owner, fence, fill)
    after, reply = t.publish(store, TIMING, owner=batch.owner, fence=batch.fence, fill=fill, detail="", infra={})
    return after, ("OK",) if reply[0] == "MISSING" else reply


def _claimed_without_ledger(store: Store, _k: str, owner: str, worker: str, node: str) -> Step:
    return t.claim(replace(store, ledger=()), TIMING, owner=owner, worker=worker, node=node)


def _claimed_under_a_living_lease(store: Store, _k: str, owner: str, worker: str, node: str) -> Step:
    taken = store if store.batch is None else replace(store, batch=replace(store.batch, lease_until=0))
    calm = replace(taken, clock=(store.now, 1))
    return t.claim(calm, TIMING, owner=owner, worker=worker, node=node)


def _purged_but_for_the_verdicts(store: Store, k: str) -> Step:
    after, reply = explorer_world.CALLS["purge"](store, k)
    return replace(after, verdicts=store.verdicts), reply


def _purged_but_pending(store: Store, k: str) -> Step:
    after, reply = explorer_world.CALLS["purge"](store, k)
    return replace(after, owned=store.owned), reply


def _buried_with_every_batch(store: Store, k: str, node: str, worker: str) -> Step:
    batch = store.batch
    if batch is None or not batch.owner:
        return explorer_world.CALLS["bury"](store, k, node, worker)
    after, reply = explorer_world.CALLS["bury"](store, k, batch.node, batch.worker)
    return replace(after, alive=store.alive - {worker}), reply


def _never_rung_again(store: Store, k: str) -> Step:
    after, reply = explorer_world.CALLS["mend"](store, k)
    return (store, ()) if reply and reply[0] in ("LOOK", "RUNG") else (after, reply)


def _note_without_owner(store: Store, k: str, owner: str, fence: int, index: int, session: int, node: str) -> Step:
    batch = store.batch
    if batch is None or batch.status.value != "running":
        return explorer_world.CALLS["note"](store, k, owner, fence, index, session, node)
    return explorer_world.CALLS["note"](store, k, batch.owner, batch.fence, index, session, node)


def _released_by_anybody(store: Store, k: str, owner: str, fence: int, mode: str, drop: bool) -> Step:
    batch = store.batch
    who = (owner, fence) if batch is None or not batch.owner else (batch.owner, batch.fence)
    return explorer_world.CALLS["release"](store, k, *who, mode, drop)


@pytest.mark.parametrize(
    ("call", "wrong", "size", "told"),
    [
        ("verdict", _verdict_overwritten, {"faults": 1, "attach": False}, "the verdict of 0 changed|not the owner"),
        ("claim", _claimed_without_ledger, {"faults": 1, "kinds": {"crash"}}, "although it did in|which w. uses"),
        ("verdict", _verdict_of_anybody, {"faults": 1, "kinds": {"pause"}}, "although it is not the owner"),
        ("publish", _published_by_anybody, {"faults": 1, "kinds": {"pause"}}, "although it is not the owner"),
        ("claim", _claimed_under_a_living_lease, {"faults": 1, "kinds": {"bells"}}, "w. is robbed of its batch"),
        ("mend", _never_rung_again, {"faults": 1, "kinds": {"bells"}}, "never answered"),
        ("purge", _purged_but_for_the_verdicts, {"faults": 1, "kinds": {"purge"}}, "is left of a"),
        ("purge", _purged_but_pending, {"faults": 1, "kinds": {"purge"}}, "never cleaned up"),
        (
            "bury",
            _buried_with_every_batch,
            {"faults": 1, "batches": 2, "attach": False, "kinds": {"crash"}},
            "lives|robbed",
        ),
        ("note", _note_without_owner, {"faults": 1, "kinds": {"pause"}}, "deletes session|although"),
    ]
    + LONG * [("release", _released_by_anybody, {"faults": 2, "kinds": {"pause", "give back"}}, "although|is robbed")],
)
def test_a_wrong_script_is_found(
    monkeypatch: pytest.MonkeyPatch, call: str, wrong: Callable[..., Step], size: dict[str, Any], told: str
) -> None:
    right = explorer_world.CALLS[call]
    monkeypatch.setitem(explorer_world.CALLS, call, lambda *args: _instead(monkeypatch, call, wrong, right, args))
    with pytest.raises(Broken, match=told):
        Explorer(**size).walk()


def _instead(
    monkeypatch: pytest.MonkeyPatch, call: str, wrong: Callable[..., Step], right: Callable[..., Step], args: Any
) -> Step:
    """`wrong`, which may use the right function under its own name."""
    with monkeypatch.context() as inner:
        inner.setitem(explorer_world.CALLS, call, right)
        return wrong(*args)


def _deletes_when_refused(
    moves: Moves, world: World, place: int, worker: Any, word: object, reply: tuple[object, ...]
) -> World:
    if word == "FENCED" and worker.session:
        return world.with_worker(place, worker._replace(at="delete", rights=(worker.session,), then="rest"))
    return RIGHT_VERDICT(moves, world, place, worker, word, reply)


def _deletes_what_was_noted(
    moves: Moves, world: World, place: int, worker: Any, word: object, reply: tuple[object, ...]
) -> World:
    return RIGHT_NOTE(moves, world, place, worker, word, (word, 0) if word == "FENCED" else reply)


def _reaps_whatever_is_in_no_ledger(moves: Moves, world: World, session: Any) -> bool:
    return look(moves.store(world, session.batch).ledger, session.index) != b"%d" % session.id


def _reaps_what_another_daemon_has(moves: Moves, world: World, session: Any) -> bool:
    """Goes by the node that the batch is on now."""
    return (
        RIGHT_REAPABLE(moves, world, session) or moves.store(world, session.batch).known.node != f"n{session.node + 1}"
    )


def _never_reaps(moves: Moves, world: World, session: Any) -> bool:
    return False


RIGHT_VERDICT = Moves._heard_verdict
RIGHT_NOTE = Moves._heard_note
RIGHT_REAPABLE = Moves.reapable


@pytest.mark.parametrize(
    ("what", "wrong", "size", "told"),
    [
        ("_heard_verdict", _deletes_when_refused, {"faults": 2, "kinds": {"pause"}}, "deletes session|although"),
        ("reapable", _reaps_whatever_is_in_no_ledger, {"faults": 0}, "the janitor deletes session 1, which"),
        (
            "reapable",
            _reaps_what_another_daemon_has,
            {"faults": 1, "nodes": 2, "kinds": {"crash"}},
            "the janitor deletes session 1, which",
        ),
        ("reapable", _never_reaps, {"faults": 1, "kinds": {"crash"}}, "never cleaned up"),
    ]
    + LONG * [("_heard_note", _deletes_what_was_noted, {"faults": 2, "kinds": {"pause", "resend"}}, "deletes session")],
)
def test_a_wrong_worker_or_janitor_is_found(
    monkeypatch: pytest.MonkeyPatch, what: str, wrong: Callable[..., Any], size: dict[str, Any], told: str
) -> None:
    monkeypatch.setattr(explorer_moves.Moves, what, wrong)
    with pytest.raises(Broken, match=told):
        Explorer(**size).walk()
