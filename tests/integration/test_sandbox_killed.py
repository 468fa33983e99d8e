"""Sandboxes that are lost under candidates of a real daemon, in every way of grading: who does it twice gets a 0.

The local daemon lets no candidate take its own sandbox down, which the first test holds. So the others end sandboxes
from outside, for one candidate's execs alone, or by ending the daemon.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collimate_rl import UnitTestReward
from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError, SandboxKilled
from collimate_rl.grading.grader import GroupRequest
from collimate_rl.grading.inline import InlineGrader
from collimate_rl.rewards import GradeResult, grade, grade_batch
from tests.fixtures.cutting_proxy import CuttingProxy
from tests.fixtures.own_daemon import OwnDaemon
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until
from worker.ledger import SessionLabel

StartNode = Callable[..., Node]
MARK = "the_one_that_does_it"
SPEC = UnitTestReward([{"input": [1], "expected": 2}], entry="solve")
KILLERS = {
    "kill 1": "os.kill(1, 9)",
    "kill all": "os.kill(-1, 9)",
    "memory": "[bytearray(1 << 22) for _ in range(1 << 20)]",
    "protected memory": "open('/proc/self/oom_score_adj', 'w').write('-999'), [bytearray(1 << 22) for _ in range(999)]",
    "forks": "[os.fork() for _ in range(99)]",
}


def marked(code: str) -> str:
    return f"{MARK} = 1\n{code}"


@pytest.mark.parametrize("act", KILLERS.values(), ids=KILLERS)
def test_a_candidate_cannot_take_its_sandbox_down(daemon_socket: str, act: str) -> None:
    code = f"import os\ndef solve(x):\n    {act}\n    return x + 1\n"
    with CollimateClient(unix_socket=daemon_socket) as client:
        assert grade(client, "py", code, SPEC, timeout_seconds=10).outcome != "sandbox_killed"
        session = client.create_session("py")["session_id"]
        try:
            assert not grade(client, "py", code, SPEC, timeout_seconds=10, session_id=session).infra_error
            assert client.session_exec(session, code="print(1)")["stdout"] == "1\n"
        finally:
            client.delete_session(session)


@contextmanager
def killing(client: CollimateClient, k: str, index: int, times: int) -> Iterator[list[str]]:
    """Deletes the sessions of one candidate as soon as an exec runs in them, up to `times`; yields which."""
    done = threading.Event()
    killed: list[str] = []

    def look() -> None:
        while not done.wait(0.02) and len(killed) < times:
            for info in client.list_sessions():
                label = SessionLabel.parse(info.get("label"))
                ours = label is not None and (label.k, label.index) == (k, index)
                if ours and info["exec_count"] and info["session_id"] not in killed:
                    client.delete_session(info["session_id"])
                    killed.append(info["session_id"])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


@pytest.fixture
def client(daemon_socket: str) -> Iterator[CollimateClient]:
    with CollimateClient(unix_socket=daemon_socket) as made:
        before = {session["session_id"] for session in made.list_sessions()}
        yield made
        assert {session["session_id"] for session in made.list_sessions()} == before


@pytest.mark.parametrize(("times", "reward", "outcome"), [(9, 0.0, "sandbox_killed"), (1, 1.0, "passed")])
def test_in_sessions(
    node: StartNode, audit: Audit, client: CollimateClient, times: int, reward: float, outcome: str
) -> None:
    started = node(slots=8)
    k = audit.submit([RIGHT, slow(2), WRONG], recovery="attach")
    with killing(client, k, 1, times) as killed:
        result = audit.result(k)
    assert [(v.reward, v.infra_error) for v in result.results] == [(1.0, False), (reward, False), (0.0, False)]
    assert result.results[1].outcome == outcome
    assert len(killed) == min(times, 2)
    losses = started.events("sandbox_lost", k=k)
    assert [(event["index"], event["control"], event["counted"]) for event in losses] == [
        (1, True, count + 1) for count in range(len(killed))
    ]
    assert started.events("candidate_infra", k=k) == []
    suspects = [(event["index"], event["outcome"]) for event in started.events("candidate_suspect", k=k)]
    assert suspects == [(1, "sandbox_killed")] * (times > 1)
    assert audit.queue.suspects(["run"]) == {"run": {"tampered": 0, "sandbox_killed": len(suspects)}}
    assert started.stop() == 0
    audit.check_each_answered_once()


@contextmanager
def cutting(socket: str, cuts: int) -> Iterator[CuttingProxy]:
    with tempfile.TemporaryDirectory(prefix="col-p-", dir="/tmp") as folder:
        proxy = CuttingProxy(Path(folder) / "p.sock", socket, MARK.encode(), cuts, anywhere=True)
        yield proxy
        proxy.close()


@pytest.mark.parametrize(("cuts", "reward"), [(9, 0.0), (2, 1.0)])
def test_in_forks_of_their_own(
    node: StartNode, audit: Audit, client: CollimateClient, daemon_socket: str, cuts: int, reward: float
) -> None:
    with cutting(daemon_socket, cuts) as proxy:
        started = node(slots=8, backend=f"unix:{proxy.path}")
        k = audit.submit([RIGHT, marked(RIGHT), WRONG], recovery="rerun")
        result = audit.result(k)
        assert [(v.reward, v.infra_error) for v in result.results] == [(1.0, False), (reward, False), (0.0, False)]
        assert (result.results[1].outcome == "sandbox_killed") == (reward == 0.0)
        assert proxy.cut == min(cuts, 3)
        counted = [event["counted"] for event in started.events("sandbox_lost", k=k)]
        assert counted == list(range(proxy.cut))
        assert started.stop() == 0
    audit.check_each_answered_once()


def test_inline(client: CollimateClient, daemon_socket: str) -> None:
    with cutting(daemon_socket, 9) as proxy, CollimateClient(unix_socket=str(proxy.path)) as through:
        results = grade_batch(through, "py", [RIGHT, marked(RIGHT), WRONG], SPEC)
        assert [(r.reward, r.outcome) for r in results] == [
            (1.0, "passed"),
            (0.0, "sandbox_killed"),
            (0.0, "wrong_answer"),
        ]
        assert proxy.cut == 3


def test_a_daemon_that_is_killed_twice_is_nobodys_doing(node: StartNode, audit: Audit, own_daemon: OwnDaemon) -> None:
    watching = own_daemon.serve()
    started = node(processes=2, slots=8, timing=HASTY, backend=own_daemon.backend)
    started.wait_for("worker_ready", count=2)
    ks = [audit.submit([slow(4), RIGHT], recovery=how) for how in ("attach", "rerun")]

    def all_run() -> bool:
        return _running(watching) >= sum(audit.queue.result(k) is None for k in ks)

    for _ in range(2):
        until(all_run, "the slow ones never ran")
        own_daemon.end(signal.SIGKILL)
        own_daemon.serve().close()
    for k in ks:
        verdicts = audit.result(k).results
        assert "sandbox_killed" not in [v.outcome for v in verdicts]
        assert {v.reward for v in verdicts if not v.infra_error} == {1.0}
        assert verdicts[1].reward == 1.0
    assert started.stop() == 0
    assert watching.list_sessions() == []
    audit.check_each_answered_once()


def test_a_daemon_that_is_killed_twice_is_nobodys_doing_inline(own_daemon: OwnDaemon) -> None:
    watching = own_daemon.serve()
    through = CollimateClient(unix_socket=str(own_daemon.socket))
    ends: list[GradeResult | CollimateError] = []

    def run() -> None:
        try:
            ends.append(grade(through, "py", slow(3), SPEC))
        except CollimateError as error:
            ends.append(error)

    def scores() -> list[Any]:
        grader = InlineGrader(through)
        request = GroupRequest(template="py", spec=SPEC, candidates=(slow(3),), seeds=(None,), deadline_s=120.0)
        found = asyncio.run(grader.grade_group(request))
        grader.close()
        return found

    grading = threading.Thread(target=run)
    rounds: list[Any] = []
    inline = threading.Thread(target=lambda: rounds.extend(scores()))
    for thread in (grading, inline):
        thread.start()
    for _ in range(2):
        until(lambda: _running(watching) or not inline.is_alive(), "nothing ever ran")
        own_daemon.end(signal.SIGKILL)
        own_daemon.serve().close()
    for thread in (grading, inline):
        thread.join()
    assert not isinstance(ends[0], SandboxKilled)
    assert isinstance(ends[0], CollimateError) or ends[0].outcome == "passed"
    assert rounds[0].outcome in (None, "passed")


def _running(client: CollimateClient) -> int:
    try:
        return int(client.health()["running"])
    except CollimateError:
        return 0
