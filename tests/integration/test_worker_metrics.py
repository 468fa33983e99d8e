"""A supervisor's metrics are what its workers did, exactly; readiness follows what the node needs."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable

from collimate_rl.queue.server import LocalRedis
from tests.fixtures.own_daemon import LongExec, OwnDaemon
from tests.fixtures.scrapes import Pages
from tests.fixtures.worker_batches import CRASH, RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]
NOTHING = "def other():\n    pass\n"
FREQUENT = "beat_every_ms=300"
"""Leases as long as they are in use: on a busy machine no batch may be taken over but for the death that is meant."""
GRADED = "collimate_candidates_graded_total"


def test_counts_are_what_was_submitted_and_outlive_a_killed_worker(node: StartNode, audit: Audit) -> None:
    started = node(processes=2, slots=8, metrics_port=0, timing=FREQUENT)
    pages = Pages.of(started)
    started.wait_for("worker_ready", count=2)
    late = audit.submit([RIGHT, slow(60), slow(60)], id="late", deadline_s=8.0, timeout_seconds=100)
    started.wait_for("batch_claimed", k=late)
    for number in range(12):
        audit.submit([RIGHT, WRONG, CRASH, NOTHING], id=f"b{number}")
    audit.submit([RIGHT, WRONG], spec={"type": "of another version"}, id="bad")
    answers = audit.results()
    statuses = Counter(result.status.value for result in answers)
    assert statuses == {"graded": 12, "failed": 1, "expired": 1}
    until(lambda: pages.sums("collimate_batches_published_total") == statuses, "not all were counted, or some twice")
    verdicts = [verdict for result in answers for verdict in result.results]
    assert pages.sums("collimate_candidates_flagged_total") == Counter(v.error_code for v in verdicts if v.infra_error)
    assert pages.sums(GRADED) == Counter(v.outcome for v in verdicts if not v.infra_error)
    before = pages.numbers()
    assert before["collimate_batches_claimed_total"] == len(answers)
    assert before["collimate_batch_seconds_count"] == before["collimate_batch_queue_seconds_count"] == len(answers)
    assert before["collimate_exec_seconds_count"] == before["collimate_exec_seconds_bucket[+Inf]"] >= 36
    assert (before["collimate_slots"], before["collimate_worker_processes_ready"]) == (8, 2)

    quick = pages.sums(GRADED)["passed"] + 1
    k = audit.submit([RIGHT, slow(3)], id="killed", recovery="rerun")
    until(lambda: pages.sums(GRADED)["passed"] == quick, "the quick candidate was not counted")
    until(lambda: pages.numbers()["collimate_slots_in_use"] == 1, "the slow candidate holds no slot")
    owner = started.wait_for("batch_claimed", k=k)[-1]["worker"]
    os.kill(started.child_pids()[owner], signal.SIGKILL)
    assert audit.rewards(k) == [1.0, 1.0]
    until(lambda: pages.sums("collimate_batches_published_total") == statuses + Counter(graded=1), "not counted once")
    until(lambda: pages.numbers()["collimate_worker_processes_ready"] == 2, "the killed process was not replaced")
    assert pages.sums(GRADED)["passed"] == quick + 1
    assert pages.sums("collimate_candidates_recovered_total") == {"rerun": 1}
    assert pages.sums("collimate_worker_processes_ended_total") == {"killed": 1}
    assert pages.sums("collimate_batches_buried_total") == {"released": 1}
    after = pages.numbers()
    assert after["collimate_batches_claimed_total"] == len(answers) + 2
    assert after["collimate_batches_taken_over_total"] == 1
    assert after["collimate_worker_processes_started_total"] == 3
    assert after["collimate_slots_in_use"] == after["collimate_batches_running"] == 0
    assert pages.get("/healthz")[0] == 200
    # It is the only node, so its janitor leads, and it tells of the queue.
    until(lambda: pages.numbers().get("collimate_queue_unanswered_batches") == 0, "the queue was not read")
    told = pages.numbers()
    assert told["collimate_janitor_leading"] == told["collimate_queue_nodes"] == told["collimate_queue_nodes_up"] == 1
    assert started.events("numbers_failed") == []
    assert started.stop() == 0


def test_a_port_that_is_taken_refuses_the_node(node: StartNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        started = node(metrics_port=taken.getsockname()[1])
        assert started.wait() == 2
    assert "--metrics-port" in started.wait_for("refused")[0]["reason"]
    assert started.events("process_started") == []


def test_readiness_follows_the_daemon_and_the_server(node: StartNode, own_daemon: OwnDaemon) -> None:
    with own_daemon.serve(), LocalRedis() as server:
        where = {"COLLIMATE_REDIS_URL": server.url}
        started = node(backend=own_daemon.backend, metrics_port=0, timing=HASTY, environment=where)
        pages = Pages.of(started)
        pages.wait_until_ready()
        assert pages.numbers()["collimate_backend_up"] == 1

        holding = LongExec(own_daemon)
        own_daemon.drain()
        until(lambda: "draining" in pages.unready().get("intake", ""), "a drain was not seen")
        assert pages.numbers()["collimate_node_paused[draining]"] == 1
        assert pages.numbers()["collimate_node_paused_since_timestamp_seconds"] > 1e9
        holding.release()
        assert own_daemon.process is not None
        own_daemon.process.wait(60)
        own_daemon.serve().close()
        pages.wait_until_ready()
        assert "collimate_node_paused_since_timestamp_seconds" not in pages.numbers()

        server.kill()
        until(lambda: "redis" in pages.unready(), "nobody said that the server is away")
        assert pages.numbers()["collimate_redis_up"] == 0
        assert json.loads(pages.get("/healthz")[1])["alive"] is True
        server.start()
        pages.wait_until_ready()
        assert pages.numbers()["collimate_redis_up"] == 1
        assert started.stop() == 0
