"""A worker dies in the middle of a batch: what ran is read, what runs is waited for, and nothing starts over."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import keys
from tests.fixtures.sandbox_daemon import RunningDaemon, start_daemon
from tests.fixtures.worker_batches import RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until
from worker.ledger import LedgerEntry, SessionLabel
from worker.process import start_time

StartNode = Callable[..., Node]
CHECKED = {"type": "assert", "test": "def check(f):\n    assert f(1) == 2\n    assert f(41) == 42\n", "entry": "solve"}


@pytest.fixture
def daemon(daemon_socket: str) -> Iterator[CollimateClient]:
    with CollimateClient(unix_socket=daemon_socket) as client:
        before = {session["session_id"] for session in client.list_sessions()}
        yield client
        left = {session["session_id"] for session in client.list_sessions()} - before
        assert left == set(), "sessions were left behind"


@pytest.fixture
def other_daemon(sandbox_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """A second node's daemon."""
    started = start_daemon("--isolation", "namespaces")
    yield started
    with CollimateClient(unix_socket=started.socket_path) as client:
        left = client.list_sessions()
    assert started.stop() == 0
    shutil.rmtree(started.folder, ignore_errors=True)
    assert left == []


def owner_pid(started: Node, k: str) -> int:
    """The pid of the worker process that claimed the batch last."""
    claims = started.wait_for("batch_claimed", k=k)
    return started.child_pids()[claims[-1]["worker"]]


def ledger(audit: Audit, k: str) -> dict[int, LedgerEntry]:
    raw: Any = audit.queue.client.hgetall(keys.BatchKeys(k).ledger)
    entries = {int(index): LedgerEntry.unpack(blob) for index, blob in raw.items()}
    return {index: entry for index, entry in entries.items() if entry is not None}


def sessions_of(daemon: CollimateClient, k: str) -> set[str]:
    """The batch's sessions on the daemon."""
    labels = {session["session_id"]: SessionLabel.parse(session.get("label")) for session in daemon.list_sessions()}
    return {session for session, label in labels.items() if label is not None and label.k == k}


def execs(daemon: CollimateClient, k: str) -> dict[int, int]:
    """Per candidate of the batch, how many execs its session has seen."""
    found = {}
    for session in daemon.list_sessions():
        label = SessionLabel.parse(session.get("label"))
        if label is not None and label.k == k and label.index is not None:
            found[label.index] = session["exec_count"]
    return found


def test_running_candidates_are_waited_for(node: StartNode, audit: Audit, daemon: CollimateClient) -> None:
    started = node(processes=2, slots=8)
    k = audit.submit([RIGHT, WRONG, slow(6), slow(6)], recovery="attach")
    started.wait_for("candidate_graded", count=2, k=k)
    until(lambda: execs(daemon, k) == {2: 1, 3: 1}, "the slow ones never started")
    os.kill(owner_pid(started, k), signal.SIGKILL)
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 1), (0.0, 1), (1.0, 2), (1.0, 2)]
    assert [v.recovered for v in result.results] == ["none", "none", "waited", "waited"]
    assert [event["reply"] for event in started.events("session_found", k=k)] == ["attached"] * 2
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_finished_outputs_are_read_and_run_no_second_time(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    """Test code is judged for the whole group at once: candidates that have finished wait for the slowest."""
    started = node(processes=2, slots=8)
    k = audit.submit([RIGHT, WRONG, RIGHT, slow(8)], spec=CHECKED, recovery="attach")
    until(lambda: execs(daemon, k) == {0: 1, 1: 1, 2: 1, 3: 1}, "they never started")
    until(lambda: [s["idle_secs"] > 0.2 for s in daemon.list_sessions()].count(True) >= 3, "none finished")
    assert audit.queue.client.hlen(keys.BatchKeys(k).verdicts) == 0
    os.kill(owner_pid(started, k), signal.SIGKILL)
    result = audit.result(k)
    assert [v.reward for v in result.results] == [1.0, 0.0, 1.0, 1.0]
    assert [v.recovered for v in result.results] == ["read", "read", "read", "waited"]
    assert {v.attempt for v in result.results} == {2}
    assert all(v.session_id for v in result.results)
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_a_batch_that_lost_two_owners_is_still_waited_for(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node(processes=2, slots=8)
    k = audit.submit([slow(9)], recovery="attach")
    for turn in range(2):
        claims = started.wait_for("batch_claimed", count=turn + 1, k=k)
        until(lambda seen=turn + 1: execs(daemon, k) == {0: seen}, "its exec was never sent")  # type: ignore[misc]
        os.kill(started.child_pids()[claims[-1]["worker"]], signal.SIGKILL)
    result = audit.result(k)
    assert [(v.reward, v.recovered, v.attempt) for v in result.results] == [(1.0, "waited", 3)]
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_a_killed_supervisor_leaves_sessions_to_the_next_one(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node(processes=2, slots=8)
    k = audit.submit([RIGHT, slow(10)], recovery="attach")
    started.wait_for("candidate_graded", k=k)
    until(lambda: execs(daemon, k) == {1: 1}, "the slow one never started")
    started.kill()
    assert execs(daemon, k) == {1: 1}
    started.start()
    result = audit.result(k)
    assert [(v.reward, v.recovered) for v in result.results] == [(1.0, "none"), (1.0, "waited")]
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_another_node_runs_it_again_and_the_janitor_of_the_first_cleans_up(
    node: StartNode, audit: Audit, daemon: CollimateClient, other_daemon: RunningDaemon
) -> None:
    lost = node("n1", timing=HASTY)
    k = audit.submit([RIGHT, slow(4)], recovery="attach")
    lost.wait_for("candidate_graded", k=k)
    until(lambda: len(ledger(audit, k)) == 2, "the slow one was never noted")
    [old] = [entry.session for entry in ledger(audit, k).values() if entry.session in sessions_of(daemon, k)]
    other = node("n2", timing=HASTY, backend=f"unix:{other_daemon.socket_path}")
    other.wait_for("worker_ready")
    lost.kill()
    result = audit.result(k)
    assert [(v.reward, v.node, v.recovered) for v in result.results] == [
        (1.0, "n1", "none"),
        (1.0, "n2", "rerun"),
    ]
    assert sessions_of(daemon, k) == {old}
    lost.start()
    reaped = lost.wait_for("session_reaped", k=k)
    assert [event["session"] for event in reaped] == [old]
    audit.check_each_answered_once()


def test_batches_of_every_kind_survive_kills(node: StartNode, audit: Audit, daemon: CollimateClient) -> None:
    started = node(processes=2, slots=8, timing=HASTY)
    ks = []
    for number in range(12):
        spec = CHECKED if number % 3 == 0 else SPEC
        recovery = ("attach", "auto", "rerun")[number % 3]
        ks.append(audit.submit([RIGHT, slow(0.4), WRONG], id=f"b{number}", spec=spec, recovery=recovery))
    for turn in range(4):
        claims = started.wait_for("batch_claimed", count=2 * turn + 1)
        pid = started.child_pids()[claims[-1]["worker"]]
        if start_time(pid) is not None:
            os.kill(pid, signal.SIGKILL)
    assert [audit.rewards(k) for k in ks] == [[1.0, 1.0, 0.0]] * 12
    assert started.stop() == 0
    audit.check_each_answered_once()
