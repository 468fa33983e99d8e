"""A batch's sessions: attached to, made and noted, and deleted by right alone, however owners come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fakeredis
import pytest

from collimate_rl.errors import AmbiguousError, CollimateError, RedisUnavailable, TransferError, UnreachableError
from collimate_rl.grading.execute import ExecRequest, OneShotExecutor
from collimate_rl.protocol import keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Grant, Mode, Written
from tests.fixtures.queue_batches import lapse, make_batch, passed, put, settle, take
from tests.fixtures.table_daemon import TableDaemon, ran, silent
from worker.backend import PROBE_LABEL
from worker.batch_sessions import BatchSessions, Daemon
from worker.keeper import Fenced
from worker.ledger import LedgerEntry, SessionLabel
from worker.session_executor import AGAIN, AGAIN_TRIES, SessionExecutor
from worker.session_janitor import SessionJanitor

REQUEST = ExecRequest(code="pass", exec_id="k-0-0-ff", timeout_seconds=5)
GONE = CollimateError("destroyed while in use", 410, "session_gone")


class World:
    """A queue without a server, a table for a daemon, and owners of one batch that follow each other."""

    def __init__(self, client: Any) -> None:
        self.queue = BatchQueue(client, "grade")
        self.table = TableDaemon()
        self.k = put(self.queue, make_batch(k=3))
        self.owners = 0
        self.stop = threading.Event()

    def daemon(self, node: str = "n1", table: TableDaemon | None = None, labels: bool = True) -> Daemon:
        client = table or self.table
        return Daemon(client=client, tidy=client, node=node, endpoint="unix:/s.sock", labels=lambda: labels)

    def own(self, node: str = "n1", **daemon: Any) -> tuple[Grant, BatchSessions]:
        """The next owner of the batch; whoever owned it before is lost."""
        if self.owners:
            lapse(self.queue, self.k)
            settle(self.queue)
        self.owners += 1
        grant = take(self.queue, self.k, f"o{self.owners}", f"w{self.owners}", node)
        return grant, BatchSessions(self.daemon(node, **daemon), self.queue, grant.hold, grant.ledger, template="py")

    def executor(self, sessions: BatchSessions) -> SessionExecutor:
        one_shot = OneShotExecutor(self.table, "py")
        return SessionExecutor(sessions, one_shot, stop=self.stop, uniform=lambda low, _high: low)

    def named(self) -> dict[int, str]:
        """Per candidate the session that the ledger names."""
        raw: Any = self.queue.client.hgetall(keys.BatchKeys(self.k).ledger)
        entries = {int(index): LedgerEntry.unpack(blob) for index, blob in raw.items()}
        return {index: entry.session for index, entry in entries.items() if entry is not None}


@pytest.fixture
def world() -> Iterator[World]:
    client = fakeredis.FakeRedis()
    yield World(client)
    client.close()


def test_a_session_is_noted_before_anything_runs_in_it(world: World) -> None:
    grant, sessions = world.own()
    execute = world.executor(sessions)
    seen: list[dict[int, str]] = []

    def on_exec(_session: str) -> dict[str, Any]:
        seen.append(world.named())
        return ran()

    world.table.on_exec = on_exec
    answer = execute.run(REQUEST, role="runner", index=1)
    assert seen == [{1: "s1"}]
    assert answer.fork_time_ms == 2.5
    assert world.table.sessions["s1"]["label"] == str(SessionLabel(k=world.k, index=1, fence=grant.hold.fence))
    assert (sessions.session_id(1), execute.recovered(1)) == ("s1", "none")
    assert execute.recovered(0) is None


def test_the_same_session_serves_all_execs_of_a_candidate(world: World) -> None:
    _, sessions = world.own()
    execute = world.executor(sessions)
    for exec_id in ("a", "b", "b"):
        execute.run(replace(REQUEST, exec_id=exec_id), role="runner", index=0)
    assert world.table.execs == ["s1"] * 3


def test_an_exec_that_is_sent_again_runs_under_the_same_seed(world: World) -> None:
    _, first = world.own()
    world.executor(first).run(REQUEST, role="runner", index=0)
    _, second = world.own()
    world.executor(second).run(REQUEST, role="runner", index=0)
    world.executor(second).run(replace(REQUEST, seed="ab" * 32), role="runner", index=0)
    world.executor(second).run(REQUEST, role="runner", index=1)
    seeds = [request["seed"] for request in world.table.requests]
    assert seeds[0] == seeds[1] != seeds[3]
    assert seeds[2] == "ab" * 32


def test_judges_and_programs_that_are_no_runner_have_no_session(world: World) -> None:
    _, sessions = world.own()
    execute = world.executor(sessions)
    execute.run(REQUEST, role="judge", index=None)
    execute.run(replace(REQUEST, exec_id=None), role="runner", index=0)
    assert world.table.execs == ["py", "py"]
    assert world.named() == {}


def test_a_session_for_what_is_too_large_belongs_to_its_owner_alone(world: World) -> None:
    grant, _ = world.own()
    label = SessionLabel(k=world.k, index=None, fence=grant.hold.fence)
    large = replace(REQUEST, exec_id=None, files=(("large.json", "x" * 200_000),))
    seen: list[Any] = []
    world.table.on_exec = lambda session: seen.append(world.table.sessions[session].get("label")) or ran()
    OneShotExecutor(world.table, "py", label=str(label)).run(large, role="judge", index=None)
    assert set(seen) == {str(label)}
    assert world.table.sessions == {}
    left = world.table.create_session("py", label=str(label))["session_id"]  # its worker died in the middle of it
    janitor = SessionJanitor(world.queue, world.table, "n1", "token")
    assert janitor.forecast() == []
    world.own()
    assert [found.session for found in janitor.forecast()] == [left]


@pytest.mark.parametrize("age", [1.0, 61.0])
def test_a_probe_that_was_broken_off_is_reaped(world: World, age: float) -> None:
    probe = world.table.create_session("py", label=PROBE_LABEL)["session_id"]
    world.table.sessions[probe]["age_secs"] = age
    assert SessionJanitor(world.queue, world.table, "n1", "token").round() == (1 if age > 60 else 0)


@pytest.mark.parametrize(
    ("said", "recovered"), [("read", "read"), ("waited", "waited"), ("rerun", "rerun"), ("ran", "none")]
)
def test_the_next_owner_attaches_and_says_how_it_got_the_result(world: World, said: str, recovered: str) -> None:
    _, first = world.own()
    first.enter(0, "e")
    _, second = world.own()
    execute = world.executor(second)
    world.table.on_exec = lambda _session: ran(said)
    execute.run(REQUEST, role="runner", index=0)
    assert world.table.execs == ["s1"]
    assert execute.recovered(0) == recovered
    assert world.table.deleted == []


def test_a_session_that_is_gone_is_replaced_and_the_candidate_runs_again(world: World) -> None:
    _, first = world.own()
    first.enter(0, "e")
    del world.table.sessions["s1"]
    _, second = world.own()
    execute = world.executor(second)
    execute.run(REQUEST, role="runner", index=0)
    assert (world.table.execs, execute.recovered(0), world.named()) == (["s2"], "rerun", {0: "s2"})


def test_a_session_on_another_nodes_daemon_is_left_to_that_node(world: World) -> None:
    _, first = world.own()
    first.enter(0, "e")
    elsewhere = TableDaemon(prefix="t")
    _, second = world.own("n2", table=elsewhere)
    assert second.enter(0, "e").id == "t1"
    assert world.named() == {0: "t1"}
    assert world.table.deleted == elsewhere.deleted == []
    janitor = SessionJanitor(world.queue, world.table, "n1", "token")
    assert [found.session for found in janitor.forecast()] == ["s1"]
    assert janitor.round() == 1
    assert world.table.deleted == ["s1"]


@pytest.mark.parametrize(("labels", "session"), [(True, "s1"), (False, "s2")])
def test_nodes_that_share_a_daemon_know_a_session_by_its_label(world: World, labels: bool, session: str) -> None:
    _, first = world.own()
    first.enter(0, "e")
    grant, second = world.own("n2", labels=labels)
    assert second.enter(0, "e").id == session
    assert world.table.deleted == []
    reply = world.queue.release(grant.hold, Mode.CLEAN, drop=True)
    second.dropped(reply.dropped)
    assert world.table.deleted == [session]


def test_without_labels_the_ledger_says_where_it_is(world: World) -> None:
    _, first = world.own(labels=False)
    first.enter(0, "e")
    assert "label" not in world.table.sessions["s1"]
    _, second = world.own(labels=False)
    assert second.enter(0, "e").id == "s1"


def test_a_session_whose_label_is_anothers_is_not_touched(world: World) -> None:
    _, first = world.own()
    first.enter(0, "e")
    world.table.sessions["s1"]["label"] = str(SessionLabel(k="cd" * 16, index=0, fence=1))
    _, second = world.own()
    assert second.enter(0, "e").id == "s2"
    assert (world.named(), world.table.deleted) == ({0: "s2"}, [])


def test_a_daemon_that_is_away_is_no_reason_to_start_over(world: World) -> None:
    _, first = world.own()
    first.enter(0, "e")
    _, second = world.own()
    world.table.away = UnreachableError("refused")
    with pytest.raises(UnreachableError):
        second.enter(0, "e")
    world.table.away = None
    assert second.enter(0, "e").id == "s1"


def test_an_ambiguous_exec_is_sent_again_to_the_same_session(world: World) -> None:
    _, sessions = world.own()
    execute = world.executor(sessions)
    world.table.on_exec = lambda _session: AmbiguousError("reset")
    with pytest.raises(AmbiguousError):
        execute.run(REQUEST, role="runner", index=0)
    world.table.on_exec = lambda _session: ran("waited")
    execute.run(REQUEST, role="runner", index=0)
    assert world.table.execs == ["s1", "s1"]
    assert execute.recovered(0) == "none"


def test_a_session_lost_under_an_exec_is_replaced_by_the_next_try(world: World) -> None:
    _, sessions = world.own()
    execute = world.executor(sessions)
    world.table.on_exec = lambda session: GONE if session == "s1" else ran()
    with pytest.raises(CollimateError):
        execute.run(REQUEST, role="runner", index=0)
    execute.run(REQUEST, role="runner", index=0)
    assert (world.table.execs, world.named(), world.table.deleted) == (["s1", "s2"], {0: "s2"}, [])


def test_what_an_earlier_owner_left_is_no_witness_against_the_candidate(world: World) -> None:
    _, first = world.own()
    first.enter(0, "e")
    _, second = world.own()
    execute = world.executor(second)
    world.table.on_exec = lambda session: silent(1) if session == "s1" else ran()
    execute.run(REQUEST, role="runner", index=0)
    assert (world.table.execs, world.table.deleted, execute.recovered(0)) == (["s1", "s2"], ["s1"], "rerun")


def test_a_fresh_session_is_a_witness(world: World) -> None:
    _, sessions = world.own()
    world.table.on_exec = lambda _session: silent(1)
    assert world.executor(sessions).run(REQUEST, role="runner", index=0).exit_code == 1
    assert world.table.execs == ["s1"]


def test_an_upload_that_fails_in_a_used_session_moves_on_to_a_fresh_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = world.own()
    first.enter(0, "e")
    _, second = world.own()

    def full(sandbox: Any, request: ExecRequest) -> Any:
        raise TransferError("no space left")

    monkeypatch.setattr("worker.session_executor.run_in_sandbox", full)
    with pytest.raises(TransferError):
        world.executor(second).run(REQUEST, role="runner", index=0)
    assert second.enter(0, "e").id == "s2"


def test_the_runner_may_ask_for_the_exec_again_within_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.session_executor.AGAIN_PAUSE_S", 0.0)
    _, sessions = world.own()
    execute = world.executor(sessions)
    answers = iter([silent(AGAIN), silent(AGAIN), ran()])
    world.table.on_exec = lambda _session: next(answers)
    execute.run(REQUEST, role="runner", index=0)
    assert len(world.table.execs) == 3
    world.table.execs.clear()
    world.table.on_exec = lambda _session: silent(AGAIN)
    assert execute.run(REQUEST, role="runner", index=1).exit_code == AGAIN
    assert len(world.table.execs) == AGAIN_TRIES


def test_a_stop_is_no_answer(world: World) -> None:
    _, sessions = world.own()
    world.table.on_exec = lambda _session: silent(AGAIN)
    world.stop.set()
    with pytest.raises(CollimateError) as stopped:
        world.executor(sessions).run(REQUEST, role="runner", index=0)
    assert stopped.value.error_code == "stopped"


def test_an_orphaned_exec_may_hold_its_place_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.session_executor.AGAIN_PAUSE_S", 0.0)
    _, first = world.own()
    first.enter(0, "e")
    _, second = world.own()
    full = CollimateError("full", 503, "at_capacity")
    answers = iter([full] * 9 + [ran("waited")])
    world.table.on_exec = lambda _session: next(answers)
    execute = world.executor(second)
    execute.run(REQUEST, role="runner", index=0)
    assert execute.recovered(0) == "waited"
    world.table.on_exec = lambda _session: full
    with pytest.raises(CollimateError):
        execute.run(REQUEST, role="runner", index=1)  # its session is fresh: nobody of ours holds its place


# Who may delete what


def test_an_accepted_verdict_gives_the_right_to_delete(world: World) -> None:
    grant, sessions = world.own()
    sessions.enter(0, "e")
    sessions.enter(1, "e")
    assert world.queue.verdict(grant.hold, passed(1)) is Written.ACCEPTED
    sessions.judged(1)
    sessions.judged(1)
    sessions.close()
    assert world.table.deleted == ["s2"]


def test_a_fenced_owner_deletes_nothing_but_what_it_never_noted(world: World) -> None:
    fences: list[int] = []
    _, asleep = world.own()
    asleep = BatchSessions(
        world.daemon(),
        world.queue,
        asleep._hold,
        {},
        template="py",
        on_fenced=lambda: fences.append(1),
    )
    asleep.enter(0, "e")
    _, awake = world.own()
    assert awake.enter(0, "e").id == "s1"
    with pytest.raises(Fenced):
        asleep.enter(1, "e")
    assert (world.table.deleted, fences) == (["s2"], [1])
    assert world.named() == {0: "s1"}


def test_a_note_whose_reply_was_lost_is_no_right_to_delete(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, sessions = world.own()
    note, calls = world.queue.note, []

    def lossy(*args: Any) -> Any:
        calls.append(note(*args))
        if len(calls) == 1:
            # It was accepted; before it can be sent again, the owner is taken for lost.
            lapse(world.queue, world.k)
            settle(world.queue)
            take(world.queue, world.k, "other", "w9", "n1")
            raise RedisUnavailable("the reply was lost")
        return calls[-1]

    monkeypatch.setattr(world.queue, "note", lossy)
    with pytest.raises(Fenced):
        sessions.enter(0, "e")
    assert [reply.accepted for reply in calls] == [True, False]
    assert (world.table.deleted, world.named()) == ([], {0: "s1"})


def test_a_release_with_drop_gives_the_right_to_delete(world: World) -> None:
    grant, sessions = world.own()
    for index in range(3):
        sessions.enter(index, "e")
    world.queue.verdict(grant.hold, passed(0))
    reply = world.queue.release(grant.hold, Mode.CLEAN, drop=True)
    sessions.dropped(reply.dropped)
    assert sorted(world.table.deleted) == ["s2", "s3"]
    assert sessions.settle(1.0)


def test_what_cannot_be_deleted_now_is_left_to_the_janitor(world: World) -> None:
    grant, sessions = world.own()
    sessions.enter(0, "e")
    world.queue.verdict(grant.hold, passed(0))
    world.table.away = UnreachableError("refused")
    sessions.judged(0)
    sessions.close()
    assert world.table.deleted == []
    janitor = SessionJanitor(world.queue, world.table, "n1", "token")
    assert janitor.round() == 0
    world.table.away = None
    assert janitor.round() == 1
    assert world.table.sessions == {}


# The janitor


def test_a_daemon_that_hangs_costs_a_round_one_deletion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a thousand to delete, at the end of a stop."""
    for _ in range(3):
        probe = world.table.create_session("py", label=PROBE_LABEL)["session_id"]
        world.table.sessions[probe]["age_secs"] = 61.0
    asked: list[str] = []

    def hang(session: str) -> None:
        asked.append(session)
        raise AmbiguousError("not answered within 10 s")

    janitor = SessionJanitor(world.queue, world.table, "n1", "token")
    with monkeypatch.context() as patched:
        patched.setattr(world.table, "delete_session", hang)
        assert janitor.round() == 0
    assert len(asked) == 1
    assert janitor.round() == 3


def test_the_janitor_leaves_what_is_used_and_what_is_not_ours(world: World) -> None:
    _, sessions = world.own()
    sessions.enter(0, "e")
    unnoted = world.table.create_session("py", label=str(SessionLabel(k=world.k, index=1, fence=1)))
    stranger = world.table.create_session("py")
    other_server = world.table.create_session("py", label=str(SessionLabel(k="cd" * 16, index=1, fence=1)))
    for session in (stranger, other_server):
        world.table.sessions[session["session_id"]]["idle_secs"] = 901.0
    careful = SessionJanitor(world.queue, world.table, "n1", "token")
    assert careful.forecast() == []
    greedy = SessionJanitor(world.queue, world.table, "n1", "token", min_idle_s=900.0)
    assert greedy.round() == 2
    assert set(world.table.sessions) == {"s1", unnoted["session_id"]}


def test_one_janitor_per_node_acts(world: World) -> None:
    grant, sessions = world.own()
    sessions.enter(0, "e")
    world.queue.verdict(grant.hold, passed(0))
    first, second = (SessionJanitor(world.queue, world.table, "n1", token) for token in ("a", "b"))
    assert world.queue.lease("sessions:n1", "a", 60_000).mine
    assert second.round() == 0
    assert first.round() == 1
    first.resign()
    assert world.queue.lease("sessions:n1", "b", 1000).mine


def test_what_was_noted_and_is_gone_is_forgotten(world: World) -> None:
    _, sessions = world.own()
    sessions.enter(0, "e")
    sessions.enter(1, "e")
    del world.table.sessions["s1"]
    SessionJanitor(world.queue, world.table, "n1", "token").round()
    assert world.queue.client.zrange(keys.sessions("n1"), 0, -1) == [b"s2"]
