"""Whatever dies: every batch is answered, once, and verdicts that stand are kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from collimate_rl.protocol import ResultStatus, keys
from tests.fixtures.own_daemon import OwnDaemon
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]


def owner_pid(started: Node, k: str) -> int:
    """The pid of the worker process that claimed the batch last."""
    claims = started.wait_for("batch_claimed", k=k)
    return started.child_pids()[claims[-1]["worker"]]


def test_a_killed_worker_process_loses_nothing(node: StartNode, audit: Audit) -> None:
    started = node(processes=2, slots=8)
    k = audit.submit([RIGHT, WRONG, slow(2), slow(2)], recovery="rerun")
    started.wait_for("candidate_graded", count=2, k=k)
    os.kill(owner_pid(started, k), signal.SIGKILL)
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 1), (0.0, 1), (1.0, 2), (1.0, 2)]
    assert [v.recovered for v in result.results] == ["none", "none", "rerun", "rerun"]
    buried = started.wait_for("buried", k=k)
    assert [event["reply"] for event in buried] == ["RELEASED"]
    assert started.wait_for("process_started", count=3)
    assert audit.state(k, "losses") == "1"
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_a_killed_supervisor_takes_its_workers_along_and_a_restarted_one_goes_on(node: StartNode, audit: Audit) -> None:
    ks = [audit.submit([RIGHT, slow(0.4)], id=f"b{number}") for number in range(10)]
    started = node(processes=2)
    started.wait_for("batch_claimed", count=4)
    owned = audit.queue.owned("n1")
    started.kill()
    assert len(owned) > 0
    started.start()
    assert [audit.rewards(k) for k in ks] == [[1.0, 1.0]] * 10
    assert started.events("node_taken") == []
    assert started.stop() == 0
    audit.check_each_answered_once()
    members = audit.queue.client.smembers("rq:workers:grade")
    assert members == set()


def test_sigterm_under_load_loses_nothing(node: StartNode, audit: Audit) -> None:
    ks = [audit.submit([RIGHT, slow(0.2)], id=f"b{number}") for number in range(14)]
    started = node(processes=2)
    for turn in range(2):
        # The second life may find that the first has published enough: only one that is up can stop in order.
        started.wait_for("supervisor_ready", count=turn + 1)
        started.wait_for("batch_published", count=3 * (turn + 1))
        assert started.stop() == 0
        assert audit.queue.owned("n1") == {}
        assert audit.queue.client.llen(keys.rq_intermediate("grade")) == 0
        started.start()
    assert [audit.rewards(k) for k in ks] == [[1.0, 1.0]] * 14
    assert {audit.state(k, "losses") for k in ks} == {""}
    assert started.events("process_killed") == []
    audit.check_each_answered_once()


def test_what_cannot_finish_within_the_grace_is_released_uncounted(node: StartNode, audit: Audit) -> None:
    started = node(grace=2, slots=8)
    k = audit.submit([RIGHT, slow(5)])
    started.wait_for("candidate_graded", k=k)
    assert started.stop() == 0
    assert [event["reason"] for event in started.events("batch_released", k=k)] == ["clean"]
    assert (audit.state(k, "status"), audit.state(k, "losses")) == ("open", "")
    other = node("n2")
    assert [(v.reward, v.attempt) for v in audit.result(k).results] == [(1.0, 1), (1.0, 2)]
    assert other.stop() == 0
    audit.check_each_answered_once()


def test_a_second_signal_ends_it_at_once(node: StartNode, audit: Audit) -> None:
    started = node(grace=600)
    k = audit.submit([slow(15)])
    started.wait_for("batch_claimed", k=k)
    os.kill(started.pid, signal.SIGTERM)
    started.wait_for("supervisor_stopping")
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait() == 0
    assert (audit.state(k, "status"), audit.queue.owned("n1")) == ("open", {})


def test_a_candidate_that_costs_three_workers_their_lives_is_quarantined(node: StartNode, audit: Audit) -> None:
    started = node(slots=8)
    k = audit.submit([RIGHT, slow(6), RIGHT], recovery="rerun")
    for turn in range(3):
        claims = started.wait_for("batch_claimed", count=turn + 1, k=k)
        started.wait_for("candidate_graded", count=2, k=k)
        if turn:
            until(lambda: audit.queue.client.hexists(keys.BatchKeys(k).flight, "1"), "its start was not marked")
        os.kill(started.child_pids()[claims[-1]["worker"]], signal.SIGKILL)
    result = audit.result(k)
    assert [(v.reward, v.error_code) for v in result.results] == [(1.0, None), (None, "quarantined"), (1.0, None)]
    assert result.status is ResultStatus.QUARANTINED
    audit.check_each_answered_once()


def test_a_daemon_that_is_down_at_start_is_waited_for(node: StartNode, audit: Audit, own_daemon: OwnDaemon) -> None:
    started = node(backend=own_daemon.backend)
    k = audit.submit()
    started.wait_for("backend_down")
    started.wait_for("worker_ready")
    assert started.events("batch_claimed") == []
    own_daemon.start()
    assert audit.rewards(k) == [1.0, 0.0]
    assert started.events("process_ended") == []
    assert started.stop() == 0


def test_a_daemon_killed_and_restarted_costs_no_candidate_its_verdict(
    node: StartNode, audit: Audit, own_daemon: OwnDaemon
) -> None:
    own_daemon.start()
    started = node(processes=2, backend=own_daemon.backend, timing=HASTY)
    ks = [audit.submit([RIGHT, slow(0.2), WRONG], id=f"b{number}") for number in range(10)]
    started.wait_for("batch_published", count=3)
    own_daemon.end(signal.SIGKILL)
    own_daemon.start()
    assert [audit.rewards(k) for k in ks] == [[1.0, 1.0, 0.0]] * 10
    audit.check_each_answered_once()
    assert started.stop() == 0


def test_a_daemon_that_stays_down_is_answered_unreachable(node: StartNode, audit: Audit, own_daemon: OwnDaemon) -> None:
    own_daemon.start()
    started = node(backend=own_daemon.backend, timing=HASTY, retries=1, retry_backoff=0.1, hops=1)
    first = audit.submit([RIGHT])
    assert audit.rewards(first) == [1.0]
    own_daemon.end(signal.SIGKILL)
    k = audit.submit([RIGHT, WRONG])
    result = audit.result(k)
    assert [(v.reward, v.infra_error, v.error_code) for v in result.results] == [(None, True, "unreachable")] * 2
    assert all("daemon of node n1" in str(v.detail) for v in result.results)
    assert result.status is ResultStatus.PARTIAL
    assert result.attempts == 2
    assert len(started.events("candidate_retried", k=k)) == 4
    assert [event["reason"] for event in started.events("batch_released", k=k)] == ["pass"]
    audit.check_each_answered_once()
