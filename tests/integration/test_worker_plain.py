"""The plain form: rq's own command with our worker class, beside `python -m worker janitor`, set by environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import ResultStatus, keys
from collimate_rl.queue.clients import connect_commands
from tests.fixtures.acl_users import as_user
from tests.fixtures.recovery import execs, sessions_of
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, PATIENCE_S, until

RQ = [str(Path(sys.executable).with_name("rq")), "worker", "grade", "--worker-class", "worker.NodeWorker"]
RQ += ["--serializer", "collimate_rl.queue.codec.MsgpackSerializer"]
JANITOR = [sys.executable, "-m", "worker", "janitor"]


class Plain:
    """One process of the plain form, and the JSON lines of its log."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            )

    def wait_for(self, event: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        def seen() -> list[dict[str, Any]]:
            lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
            found = [line for line in lines if line["event"] == event and fields.items() <= line.items()]
            return found if len(found) >= count else []

        return until(seen, f"no {count} times {event} {fields} in\n{self.log.read_text()}")  # type: ignore[no-any-return]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


StartPlain = Callable[..., Plain]


@pytest.fixture
def plain(tmp_path: Path, redis_url: str, daemon_socket: str) -> Iterator[StartPlain]:
    """Starts processes of the plain form; keywords are further settings."""
    started: list[Plain] = []

    def start(command: list[str], **settings: str) -> Plain:
        given = {
            "REDIS_URL": as_user(redis_url, "worker"),
            "BACKEND": f"unix:{daemon_socket}",
            "STATE_DIR": str(tmp_path / "state"),
            "NODE": "n1",
            "TIMING": HASTY,
            "LOG_FORMAT": "json",
            "LOG_LEVEL": "debug",
            **settings,
        }
        environment = {**os.environ, **{f"COLLIMATE_{name}": value for name, value in given.items()}}
        for name in ("RQ_REDIS_URL", "REDIS_URL"):
            environment.pop(name, None)
        started.append(Plain(command, tmp_path / f"plain-{len(started)}.log", environment))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        print(f"--- {each.log.name}\n{each.log.read_text()[-4000:]}")


def test_the_command_of_the_documentation_grades_and_stops(plain: StartPlain, audit: Audit) -> None:
    ks = [audit.submit([RIGHT, WRONG]) for _ in range(4)]
    worker = plain(RQ)
    assert [audit.rewards(k) for k in ks] == [[1.0, 0.0]] * 4
    alive = audit.queue.who_is_alive([audit.result(ks[0]).worker])
    assert [text.split(".")[2] for text in alive.values()] == [str(worker.process.pid)]
    beat = until(lambda: "templates" in audit.queue.nodes().get("n1", {}) and audit.queue.nodes()["n1"])
    assert (beat["up"], "py" in beat["templates"]) == (True, True)
    assert worker.end(signal.SIGTERM) == 0
    audit.check_each_answered_once()


def test_a_killed_worker_is_buried_by_the_janitor_beside_it_and_poison_is_quarantined(
    plain: StartPlain, audit: Audit
) -> None:
    # The lease outlasts the test: only burying can give the batch back.
    timing = HASTY.replace("lease_ms=3000", "lease_ms=600000").replace("alive_ms=3000", "alive_ms=600000")
    janitor = plain(JANITOR, TIMING=timing)
    k = audit.submit([RIGHT, slow(6), RIGHT])
    for turn in range(3):
        worker = plain(RQ, TIMING=timing)
        worker.wait_for("batch_claimed", k=k)
        if turn == 0:
            worker.wait_for("candidate_graded", count=2, k=k)
        else:
            until(lambda: audit.queue.client.hexists(keys.BatchKeys(k).flight, "1"), "its start was not marked")
        worker.end(signal.SIGKILL)
        janitor.wait_for("buried", count=turn + 1)
    result = audit.result(k)
    assert [(v.reward, v.error_code) for v in result.results] == [(1.0, None), (None, "quarantined"), (1.0, None)]
    assert result.status is ResultStatus.QUARANTINED
    assert janitor.end(signal.SIGTERM) == 0
    audit.check_each_answered_once()


def test_without_a_janitor_on_its_node_any_janitor_takes_over_what_it_held(plain: StartPlain, audit: Audit) -> None:
    first = plain(RQ)
    k = audit.submit([RIGHT, slow(4)])
    first.wait_for("candidate_graded", k=k)
    first.end(signal.SIGKILL)
    janitor = plain(JANITOR, NODE="n2")
    second = plain(RQ, NODE="n2")
    assert [(v.reward, v.attempt) for v in audit.result(k).results] == [(1.0, 1), (1.0, 2)]
    assert (second.end(signal.SIGTERM), janitor.end(signal.SIGTERM)) == (0, 0)
    audit.check_each_answered_once()


def test_what_a_killed_worker_had_running_is_attached_to(
    plain: StartPlain, audit: Audit, daemon: CollimateClient
) -> None:
    janitor = plain(JANITOR)
    first = plain(RQ)
    k = audit.submit([RIGHT, slow(8)], recovery="attach")
    first.wait_for("candidate_graded", k=k)
    until(lambda: execs(daemon, k) == {1: 1}, "the slow one never started")
    first.end(signal.SIGKILL)
    janitor.wait_for("buried", k=k)
    second = plain(RQ)
    verdicts = audit.result(k).results
    assert [(v.reward, v.attempt, v.recovered) for v in verdicts] == [(1.0, 1, "none"), (1.0, 2, "waited")]
    assert (second.end(signal.SIGTERM), janitor.end(signal.SIGTERM)) == (0, 0)
    audit.check_each_answered_once()


def test_a_stop_deletes_the_sessions_of_what_it_releases(
    plain: StartPlain, audit: Audit, daemon: CollimateClient
) -> None:
    worker = plain(RQ, GRACE="2")
    k = audit.submit([slow(15)], recovery="attach")
    until(lambda: execs(daemon, k) == {0: 1}, "it never started")
    assert worker.end(signal.SIGTERM) == 0
    assert sessions_of(daemon, k) == set()
    assert audit.state(k, "status") == "open"


def test_a_stop_under_load_releases_within_the_grace(plain: StartPlain, audit: Audit) -> None:
    worker = plain(RQ, GRACE="2")
    k = audit.submit([RIGHT, slow(15)])
    worker.wait_for("candidate_graded", k=k)
    assert worker.end(signal.SIGTERM) == 0
    assert [event["reason"] for event in worker.wait_for("batch_released", k=k)] == ["clean"]
    assert (audit.state(k, "status"), audit.state(k, "losses")) == ("open", "")
    assert audit.queue.client.smembers("rq:workers:grade") == set()
    assert audit.queue.client.exists(f"rq:executions:{k}-1") == 0


def test_a_server_that_may_evict_is_refused(plain: StartPlain, redis_url: str) -> None:
    client = connect_commands(redis_url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        worker = plain(RQ)
        worker.wait_for("refused")
        assert worker.process.wait(PATIENCE_S) == 2
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.close()


def test_a_loop_that_ends_by_itself_is_no_orderly_end(plain: StartPlain, audit: Audit) -> None:
    worker = plain(RQ)
    worker.wait_for("worker_ready")
    audit.queue.client.set(keys.rq_job("stranger"), "no hash")
    audit.queue.client.rpush(keys.rq_queue("grade"), "stranger")
    assert worker.process.wait(PATIENCE_S) == 1


def test_two_queues_are_refused(plain: StartPlain) -> None:
    worker = plain([*RQ[:3], "another", *RQ[3:]])
    assert worker.process.wait(PATIENCE_S) == 1
    assert "a worker serves one queue, not 2" in worker.log.read_text()
