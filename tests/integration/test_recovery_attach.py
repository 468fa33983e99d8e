"""A worker dies in the middle of a batch: what ran is read, what runs is waited for, and nothing starts over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import keys
from tests.fixtures.own_daemon import OwnDaemon
from tests.fixtures.recovery import CHECKED, execs, ledger, owner_pid, sessions_of
from tests.fixtures.worker_batches import RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until
from worker.process import start_time

StartNode = Callable[..., Node]


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


def test_another_node_runs_it_again_and_the_janitor_of_the_first_cleans_up(
    node: StartNode, audit: Audit, daemon: CollimateClient, own_daemon: OwnDaemon
) -> None:
    # The other one is there when the first is lost, and takes nothing before: its daemon isn't up.
    other = node("n2", timing=HASTY, backend=own_daemon.backend)
    other.wait_for("worker_ready")
    other.wait_for("backend_down")
    lost = node("n1", timing=HASTY)
    k = audit.submit([RIGHT, slow(8)], recovery="attach")
    lost.wait_for("candidate_graded", k=k)
    until(lambda: len(ledger(audit, k)) == 2, "the slow one was never noted")
    [old] = [entry.session for entry in ledger(audit, k).values() if entry.session in sessions_of(daemon, k)]
    lost.kill()
    others = own_daemon.serve()
    result = audit.result(k)
    assert [(v.reward, v.node, v.recovered) for v in result.results] == [
        (1.0, "n1", "none"),
        (1.0, "n2", "rerun"),
    ]
    assert sessions_of(daemon, k) == {old}
    lost.start()
    reaped = lost.wait_for("session_reaped", k=k)
    assert [event["session"] for event in reaped] == [old]
    assert others.list_sessions() == []
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
