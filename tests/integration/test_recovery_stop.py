"""Stops, pauses, drains and dead daemons: whose sessions stay, whose go, and where a batch goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import ResultStatus, keys
from tests.fixtures.own_daemon import LongExec, OwnDaemon
from tests.fixtures.recovery import execs, ledger, owner_pid, sessions_of
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]
DAEMON_TIMING = HASTY.replace("backoff_ms=200", "backoff_ms=500")


def test_a_stop_deletes_the_sessions_of_what_it_releases(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node(grace=2, slots=8)
    k = audit.submit([RIGHT, slow(15), slow(15)], recovery="attach")
    until(lambda: execs(daemon, k) == {1: 1, 2: 1}, "the slow ones never started")
    assert started.stop() == 0
    assert sessions_of(daemon, k) == set()
    assert sorted(ledger(audit, k)) == [0]
    assert (audit.state(k, "status"), audit.state(k, "losses")) == ("open", "")
    assert [event["reason"] for event in started.events("batch_released", k=k)] == ["clean"]
    audit.queue.cancel(k)
    assert audit.result(k).status is ResultStatus.CANCELLED


def test_a_stop_may_leave_the_sessions_for_whoever_attaches(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node(grace=2, slots=8, on_stop="leave")
    k = audit.submit([RIGHT, slow(12)], recovery="attach", timeout_seconds=40)
    until(lambda: execs(daemon, k) == {1: 1}, "the slow one never started")
    assert started.stop() == 0
    assert execs(daemon, k) == {1: 1}
    started.start()
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 1), (1.0, 2)]
    # Read, where a loaded machine took longer to start than the candidate to finish.
    assert [v.recovered for v in result.results] in (["none", "waited"], ["none", "read"])
    assert [event["reply"] for event in started.events("session_found", k=k)] == ["attached"]
    assert audit.state(k, "losses") == ""
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_a_paused_owner_wakes_up_fenced_and_deletes_no_session_of_the_next(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node(processes=2, slots=8, timing=HASTY)
    k = audit.submit([RIGHT, slow(14), slow(14)], recovery="attach", timeout_seconds=40)
    started.wait_for("candidate_graded", k=k)
    until(lambda: execs(daemon, k) == {1: 1, 2: 1}, "the slow ones never started")
    kept = sessions_of(daemon, k)
    paused = owner_pid(started, k)
    os.kill(paused, signal.SIGSTOP)
    until(lambda: execs(daemon, k) == {1: 2, 2: 2}, "nobody attached")
    os.kill(paused, signal.SIGCONT)
    started.wait_for("batch_fenced", k=k)
    assert sessions_of(daemon, k) == kept
    result = audit.result(k)
    assert [(v.reward, v.recovered) for v in result.results] == [(1.0, "none"), (1.0, "waited"), (1.0, "waited")]
    assert {v.session_id for v in result.results[1:]} == kept
    assert audit.rewards(audit.submit()) == [1.0, 0.0]
    assert audit.result(k) == result
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_a_cancelled_batchs_sessions_are_reaped(node: StartNode, audit: Audit, daemon: CollimateClient) -> None:
    started = node(timing=HASTY)
    k = audit.submit([slow(15), slow(15)], recovery="attach")
    until(lambda: execs(daemon, k) == {0: 1, 1: 1}, "they never started")
    audit.queue.cancel(k)
    assert audit.result(k).status is ResultStatus.CANCELLED
    until(lambda: sessions_of(daemon, k) == set(), "its sessions were never reaped")
    reaped = started.wait_for("session_reaped", count=2, k=k)
    assert {event["reason"] for event in reaped} == {"its batch is answered"}
    # Their execs ended with them, so the worker is free again long before they would have.
    assert audit.rewards(audit.submit()) == [1.0, 0.0]


def test_a_daemon_killed_and_restarted_in_the_middle_costs_a_rerun_and_no_verdict(
    node: StartNode, audit: Audit, own_daemon: OwnDaemon
) -> None:
    client = own_daemon.serve()
    started = node(backend=own_daemon.backend, slots=8, timing=DAEMON_TIMING, hops=5)
    k = audit.submit([RIGHT, WRONG, slow(3), slow(3)], recovery="attach")
    started.wait_for("candidate_graded", count=2, k=k)
    until(lambda: execs(client, k) == {2: 1, 3: 1}, "the slow ones never started")
    own_daemon.end(signal.SIGKILL)
    client = own_daemon.serve()
    result = audit.result(k)
    assert [v.reward for v in result.results] == [1.0, 0.0, 1.0, 1.0]
    assert result.status is ResultStatus.GRADED
    audit.check_each_answered_once()
    assert started.stop() == 0
    assert client.list_sessions() == []


def test_a_draining_daemon_pauses_its_node_and_others_go_on(
    node: StartNode, audit: Audit, own_daemons: Callable[[], OwnDaemon], daemon: CollimateClient
) -> None:
    draining = own_daemons()
    draining.serve()
    drained = node("n1", processes=3, slots=2, backend=draining.backend, timing=HASTY)
    drained.wait_for("worker_ready", count=3)
    holding = LongExec(draining)
    k = audit.submit([slow(4), slow(4), slow(4), RIGHT, WRONG], recovery="attach")
    until(lambda: len(ledger(audit, k)) == 2, "the slow ones were never noted")
    draining.drain()
    drained.wait_for("batch_released", k=k)
    other = node("n2", processes=1, slots=8, timing=HASTY)
    result = audit.result(k)
    assert [v.reward for v in result.results] == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert {v.node for v in result.results[2:]} == {"n2"}
    # Given back clean and once: none of the draining node's other processes took it up.
    assert len(drained.events("batch_claimed", k=k)) == 1
    assert [event["reason"] for event in drained.events("batch_released", k=k)] == ["clean"]
    assert (result.attempts, audit.state(k, "passes"), audit.state(k, "losses")) == (2, "", "")
    assert len(drained.events("backend_down")) == 1  # by the process that was told, or by the supervisor's look
    # While it drains, its node takes nothing.
    more = [audit.submit(id=f"m{number}") for number in range(6)]
    assert [audit.rewards(other_k) for other_k in more] == [[1.0, 0.0]] * 6
    assert {v.node for other_k in more for v in audit.result(other_k).results} == {"n2"}
    until(lambda: audit.queue.client.llen(keys.rq_intermediate("grade")) == 0, "a bell stayed between rq's lists")
    # A daemon that takes work again ends the pause.
    assert other.stop() == 0
    holding.release()
    assert draining.process is not None
    draining.process.wait(60)
    again = draining.serve()
    drained.wait_for("backend_up")
    last = audit.submit(id="last")
    assert audit.rewards(last) == [1.0, 0.0]
    assert {v.node for v in audit.result(last).results} == {"n1"}
    assert drained.stop() == 0
    assert again.list_sessions() == []
    audit.check_each_answered_once()


def test_a_drain_that_no_exec_was_told_of_is_no_failure(node: StartNode, audit: Audit, own_daemon: OwnDaemon) -> None:
    """All slots are taken by execs that run on: when they end the daemon goes, and the next ones find nobody."""
    own_daemon.serve()
    started = node(processes=1, slots=1, backend=own_daemon.backend, timing=HASTY)
    k = audit.submit([slow(9), RIGHT, WRONG], recovery="rerun")
    started.wait_for("batch_claimed", k=k)
    client = CollimateClient(unix_socket=str(own_daemon.socket), retries=0)
    until(lambda: client.health()["running"] == 1, "it never ran")
    own_daemon.drain()
    started.wait_for("backend_down")
    started.wait_for("batch_released", k=k)
    assert own_daemon.process is not None
    own_daemon.process.wait(60)
    own_daemon.serve()
    assert audit.rewards(k) == [1.0, 1.0, 0.0]
    assert [event["reason"] for event in started.events("batch_released", k=k)] == ["clean"]
    assert (audit.state(k, "passes"), audit.state(k, "losses")) == ("", "")
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_a_node_alone_waits_for_its_draining_daemon_to_come_back(
    node: StartNode, audit: Audit, own_daemon: OwnDaemon
) -> None:
    own_daemon.serve()
    started = node(processes=2, slots=1, backend=own_daemon.backend, timing=HASTY)
    started.wait_for("worker_ready", count=2)
    ks = [audit.submit([slow(3.0), RIGHT, WRONG], recovery=how) for how in ("attach", "rerun")]
    for k in ks:
        started.wait_for("batch_claimed", k=k)
    holding = LongExec(own_daemon)
    own_daemon.drain()
    for k in ks:
        started.wait_for("batch_released", k=k)
    holding.release()
    assert own_daemon.process is not None
    own_daemon.process.wait(60)
    own_daemon.serve()
    assert [audit.rewards(k) for k in ks] == [[1.0, 1.0, 0.0]] * 2
    assert [audit.result(k).attempts for k in ks] == [2, 2]
    assert started.stop() == 0
    audit.check_each_answered_once()
