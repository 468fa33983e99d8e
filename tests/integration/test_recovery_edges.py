"""The edges of recovery: a connection that breaks under an exec, a bell popped too late, the janitor's command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rq.exceptions import DequeueTimeout, StopRequested

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import keys
from collimate_rl.queue.clients import connect_rq
from collimate_rl.queue.rq_edge import BellQueue, Gate
from producer import Producer
from tests.fixtures.acl_users import as_user
from tests.fixtures.cutting_proxy import CuttingProxy
from tests.fixtures.own_daemon import OwnDaemon
from tests.fixtures.queue_batches import passed, take
from tests.fixtures.recovery import execs, owner_pid, sessions_of
from tests.fixtures.worker_batches import RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import Node, until
from worker.ledger import LedgerEntry, SessionLabel

StartNode = Callable[..., Node]


@pytest.fixture
def cutting(daemon_socket: str) -> Iterator[CuttingProxy]:
    """Cuts three session execs."""
    with tempfile.TemporaryDirectory(prefix="col-p-", dir="/tmp") as folder:
        proxy = CuttingProxy(Path(folder) / "p.sock", daemon_socket, b"/exec ", 3)
        yield proxy
        proxy.close()


def test_an_exec_whose_answer_was_lost_is_healed_in_its_own_session(
    node: StartNode, audit: Audit, daemon: CollimateClient, cutting: CuttingProxy
) -> None:
    started = node(backend=f"unix:{cutting.path}", slots=8)
    k = audit.submit([slow(1.5), RIGHT, WRONG], recovery="attach")
    result = audit.result(k)
    assert cutting.cut == 3
    assert [(v.reward, v.recovered, v.attempt) for v in result.results] == [
        (1.0, "none", 1),
        (1.0, "none", 1),
        (0.0, "none", 1),
    ]
    retried = started.events("candidate_retried", k=k)
    assert {event["code"] for event in retried} == {"ambiguous"}
    assert len(retried) == 3
    # Each in the one session that its candidate had from the start.
    assert len(started.wait_for("session_deleted", count=3, k=k)) == 3
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_a_candidate_that_kills_its_own_runner_is_judged_for_it(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node()
    fatal = "import os, signal\ndef solve(x):\n    os.kill(-1, signal.SIGKILL)\n"
    k = audit.submit([fatal, RIGHT], recovery="attach")
    result = audit.result(k)
    assert [(v.reward, v.infra_error) for v in result.results] == [(0.0, False), (1.0, False)]
    assert result.results[0].outcome == "tampered"
    assert started.events("candidate_retried", k=k) == []
    assert started.stop() == 0


def test_a_full_disk_is_no_witness_after_a_takeover(node: StartNode, audit: Audit, daemon: CollimateClient) -> None:
    """The next owner's exec can't be written into that session; in a fresh one the candidate is as right as ever."""
    started = node(processes=2)
    greedy = """
import time
for folder in ("/box", "/tmp"):
    try:
        with open(f"{folder}/filler", "wb") as file:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
    except OSError:
        pass
time.sleep(8)
def solve(x):
    return x + 1
"""
    k = audit.submit([greedy], recovery="attach")
    until(lambda: execs(daemon, k) == {0: 1}, "it never started")
    [session] = sessions_of(daemon, k)
    full = "test $(df -P /box | tail -n 1 | tr -s ' ' | cut -d ' ' -f 4) = 0"
    until(lambda: daemon.session_exec(session, command=full)["exit_code"] == 0, "the disk never filled up")
    os.kill(owner_pid(started, k), signal.SIGKILL)
    result = audit.result(k)
    assert [(v.reward, v.recovered) for v in result.results] == [(1.0, "rerun")]
    assert result.results[0].session_id != session
    assert started.stop() == 0
    audit.check_each_answered_once()


def test_a_producer_may_ask_for_attaching(
    node: StartNode, redis_url: str, daemon: CollimateClient, audit: Audit
) -> None:
    started = node()
    started.wait_for("worker_ready")
    with Producer(redis_url, run="run", name="trainer") as producer:
        handle = producer.submit(
            template="py", candidates=[RIGHT, WRONG], spec=json.dumps(SPEC), timeout_seconds=5, recovery="attach"
        )
        result = handle.result(60)
    assert [v.reward for v in result.results] == [1.0, 0.0]
    assert all(v.session_id for v in result.results)
    assert started.stop() == 0


def test_a_bell_popped_while_the_gate_closes_goes_back_untouched(redis_url: str) -> None:
    """A worker waits in its pop while its daemon begins to drain: the batch must not bounce off this node."""
    client = connect_rq(redis_url)
    key = keys.rq_queue("grade")
    client.rpush(key, "first", "second")
    for closing, error in ((Gate.WAIT, DequeueTimeout), (Gate.STOP, StopRequested)):
        answers = [closing, Gate.GO]

        class Closing(BellQueue):
            gate = staticmethod(answers.pop)

        with pytest.raises(error):
            Closing.lmove(client, key, 1)
        assert answers == []
        assert client.lrange(key, 0, -1) == [b"first", b"second"]
        assert client.llen(keys.rq_intermediate("grade")) == 0
    client.close()


def janitor(redis_url: str, backend: str, *options: str) -> str:
    command = [sys.executable, "-m", "worker", "janitor", "--once", "--node", "n1", "--backend", backend, *options]
    done = subprocess.run(
        command,
        env={**os.environ, "COLLIMATE_REDIS_URL": as_user(redis_url, "worker")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_the_janitors_command_deletes_exactly_what_it_may(audit: Audit, redis_url: str, own_daemon: OwnDaemon) -> None:
    client = own_daemon.serve()
    k, done = audit.submit([RIGHT, RIGHT, RIGHT], id="live"), audit.submit([RIGHT], id="done")
    grant = take(audit.queue, k)
    audit.queue.cancel(done)

    def create(of: str, index: int | None, fence: int) -> str:
        label = SessionLabel(k=of, index=index, fence=fence)
        return str(client.create_session("py", label=str(label))["session_id"])

    kept = {
        "not noted yet": create(k, 1, grant.hold.fence),
        "noted": create(k, 2, grant.hold.fence),
        "its judge's": create(k, None, grant.hold.fence),
        "of another server": create("cd" * 16, 0, 1),
    }
    stranger = client.create_session("py")["session_id"]
    goes = {
        "judged": create(k, 0, grant.hold.fence),
        "replaced": create(k, 2, grant.hold.fence),
        "of an old fence": create(k, 1, 0),
        "of an old judge": create(k, None, 0),
        "answered": create(done, 0, 1),
    }
    for name, session in (("replaced", goes["replaced"]), ("noted", kept["noted"])):
        entry = LedgerEntry(session=session, node="n1", endpoint=own_daemon.backend, exec_id=name, seed="5")
        assert audit.queue.note(grant.hold, 2, entry.pack(), session, "n1").accepted
    audit.queue.verdict(grant.hold, passed(0))

    told = janitor(redis_url, own_daemon.backend, "--dry-run")
    assert {session for session in (*kept.values(), *goes.values(), stranger) if session in told} == set(goes.values())
    assert len(client.list_sessions()) == len(kept) + len(goes) + 1
    assert f"sessions deleted: {len(goes)}" in janitor(redis_url, own_daemon.backend)
    assert {session["session_id"] for session in client.list_sessions()} == {*kept.values(), stranger}
    assert "deleted" not in janitor(redis_url, own_daemon.backend, "--reap-unclaimed", "--min-idle", "900")
    assert "sessions deleted: 2" in janitor(redis_url, own_daemon.backend, "--reap-unclaimed", "--min-idle", "0")
    left = {session["session_id"] for session in client.list_sessions()}
    assert left == {*kept.values()} - {kept["of another server"]}
    own_daemon.end(signal.SIGKILL)
    assert "cannot be asked" in janitor(redis_url, own_daemon.backend, "--dry-run")
    assert "deleted" not in janitor(redis_url, own_daemon.backend)
