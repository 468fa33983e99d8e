"""A worker, or a whole node, dies: who comes back first, and that what was well under way doesn't start over."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import keys
from tests.fixtures.leftovers import check_nothing_is_left
from tests.fixtures.own_daemon import OwnDaemon
from tests.fixtures.recovery import CHECKED, execs, ledger, owner_pid, sessions_of
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]
ONLY_BURYING = "lease_ms=600000,alive_ms=600000"
"""The lease outlasts the test: only a supervisor's burying can give a batch back."""


def stamped(seconds: float) -> str:
    """A right candidate that writes a line to its session's disk whenever it starts, and another when it is through."""
    return f"""
import time
with open("/tmp/stamps", "a") as file:
    file.write("started\\n")
time.sleep({seconds})
with open("/tmp/stamps", "a") as file:
    file.write("through\\n")
def solve(x):
    return x + 1
"""


def stamps(daemon: CollimateClient, session: str) -> list[str]:
    """What the candidate has written in this session."""
    answer = daemon.session_exec(session, command="cat /tmp/stamps 2>/dev/null; true")
    return str(answer["stdout"]).split()


def events_since(started: Node, at: int) -> list[tuple[str, str]]:
    """(event, k) of what the node has logged since its log had `at` bytes."""
    lines = started.log.read_bytes()[at:].decode().splitlines()
    events: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    return [(event["event"], event.get("k", "")) for event in events]


def test_a_candidate_that_was_well_under_way_does_not_start_over(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node(processes=2, slots=8, timing=ONLY_BURYING)
    # The second keeps the group, and so the sessions, until its stamps have been read.
    k = audit.submit([stamped(8), slow(14)], spec=CHECKED, recovery="attach", timeout_seconds=40)
    until(lambda: execs(daemon, k) == {0: 1, 1: 1}, "they never started")
    session = ledger(audit, k)[0].session
    until(lambda: stamps(daemon, session) == ["started"], "it wrote no stamp")
    for turn in range(2):
        claims = started.wait_for("batch_claimed", count=turn + 1, k=k)
        os.kill(started.child_pids()[claims[-1]["worker"]], signal.SIGKILL)
    until(lambda: "through" in stamps(daemon, session), "it never came through")
    assert stamps(daemon, session) == ["started", "through"]
    result = audit.result(k)
    # Read where it came through before it was attached to, as on a busy machine.
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 3)] * 2
    assert {v.recovered for v in result.results} <= {"waited", "read"}
    assert result.results[0].session_id == session
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)


def test_a_restarted_supervisor_recovers_its_batches_before_anything_else(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node(processes=2, slots=8, timing=ONLY_BURYING)
    held = [audit.submit([RIGHT, slow(9)], id=f"held{n}", recovery="attach", timeout_seconds=40) for n in range(2)]
    for k in held:
        started.wait_for("candidate_graded", k=k)
        until(lambda k=k: execs(daemon, k) == {1: 1}, "the slow one never started")  # type: ignore[misc]
    waiting = [audit.submit(id=f"waiting{n}") for n in range(8)]
    started.kill()
    length = started.log.stat().st_size
    assert [execs(daemon, k) for k in held] == [{1: 1}] * 2
    started.start()
    for k in held:
        verdicts = audit.result(k).results
        assert [(v.reward, v.attempt) for v in verdicts] == [(1.0, 1), (1.0, 2)]
        # Read, where a loaded machine took longer to start than the candidate to finish.
        assert [v.recovered for v in verdicts] in (["none", "waited"], ["none", "read"])
    assert [audit.rewards(k) for k in waiting] == [[1.0, 0.0]] * 8
    # Buried before the first worker started, and taken before what had waited longer on the list.
    told = events_since(started, length)
    happened = [event for event, _ in told if event in ("buried", "process_started")]
    assert happened[:3] == ["buried", "buried", "process_started"]
    assert sorted(k for event, k in told if event == "buried") == sorted(held)
    assert sorted([k for event, k in told if event == "batch_claimed"][:2]) == sorted(held)
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)


def test_with_no_restart_another_node_answers(node: StartNode, audit: Audit, daemon: CollimateClient) -> None:
    """With the product's own timing. Nodes that share a daemon attach to each other's sessions."""
    lost = node("n1", processes=2, slots=8)
    ks = [audit.submit([RIGHT, slow(8)], id=f"b{n}", recovery=how) for n, how in enumerate(("attach", "rerun"))]
    for k in ks:
        lost.wait_for("candidate_graded", k=k)
    lost.kill()
    killed_at = time.monotonic()
    # Up long before the leases have run out; before the kill, a loaded machine took longer for it than they run.
    other = node("n2", processes=2, slots=8)
    results = audit.results(ks)
    print(f"another node answered after {time.monotonic() - killed_at:.1f} s")
    for result in results:
        assert [(v.reward, v.node, v.attempt) for v in result.results] == [(1.0, "n1", 1), (1.0, "n2", 2)]
    assert results[0].results[1].recovered in ("read", "waited")
    assert other.stop() == 0
    assert sessions_of(daemon, ks[0]) == set()
    audit.check_each_answered_once()


def test_a_large_group_keeps_every_verdict_through_kills_of_its_owners_threads(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    """Many threads of one owner note, judge and delete at once, while owner after owner is killed."""
    started = node(processes=2, slots=16, timing=HASTY)
    candidates = [slow(0.4) if n % 3 else WRONG for n in range(48)]
    k = audit.submit(candidates, recovery="attach")
    seen: dict[str, bytes] = {}
    for turn in range(3):
        claims = started.wait_for("batch_claimed", count=turn + 1, k=k)
        until(lambda seen=turn: audit.queue.client.hlen(keys.BatchKeys(k).verdicts) > 8 * seen)  # type: ignore[misc]
        os.kill(started.child_pids()[claims[-1]["worker"]], signal.SIGKILL)
        stand = audit.queue.client.hgetall(keys.BatchKeys(k).verdicts)
        assert seen.items() <= stand.items()
        seen = stand  # type: ignore[assignment]
    assert audit.rewards(k) == [1.0 if n % 3 else 0.0 for n in range(48)]
    stand = audit.queue.client.hgetall(keys.BatchKeys(k).verdicts)
    assert seen.items() <= stand.items()
    assert len(stand) == 48
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)


def test_an_idle_node_does_not_take_what_the_killed_workers_own_node_can_attach_to(
    node: StartNode, audit: Audit, daemon: CollimateClient, own_daemon: OwnDaemon
) -> None:
    """Two nodes, each with a daemon of its own: the other's processes wait for a bell while the only one here dies."""
    # It is up first, and takes nothing before its daemon is: a node takes longer to start than a candidate may run.
    other = node("n2", processes=2, slots=8, timing=ONLY_BURYING, backend=own_daemon.backend)
    other.wait_for("worker_ready", count=2)
    other.wait_for("backend_down")
    here = node("n1", processes=1, slots=8, timing=ONLY_BURYING)
    k = audit.submit([RIGHT, stamped(12)], recovery="attach", timeout_seconds=40)
    here.wait_for("candidate_graded", k=k)
    until(lambda: execs(daemon, k) == {1: 1}, "it never started")
    own_daemon.serve()
    other.wait_for("backend_up")
    os.kill(owner_pid(here, k), signal.SIGKILL)
    result = audit.result(k)
    assert [(v.reward, v.node, v.attempt) for v in result.results] == [(1.0, "n1", 1), (1.0, "n1", 2)]
    assert result.results[1].recovered in ("waited", "read")
    assert other.events("batch_claimed", k=k) == []
    assert (here.stop(), other.stop()) == (0, 0)
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)
