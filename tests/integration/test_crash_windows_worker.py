"""A worker process is killed at every instant between two of its steps: the batch is answered, once, and rightly.

Two candidates, one after the other, so that what was done before the kill is known to the exec.
"""

from __future__ import annotations

import signal
import zlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import ResultStatus, keys
from tests.fixtures.crashes import UNHURRIED, Faults, Requests, StartFaulty, check_nothing_stayed
from tests.fixtures.leftovers import check_nothing_is_left
from tests.fixtures.recovery import ledger, sessions_of
from tests.fixtures.worker_batches import RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import until

PROPERTY = {
    "type": "property",
    "reference": "    return x + 1",
    "generator": "random.randrange(1, 100)",
    "k": 3,
    "entry": "solve",
}
FATAL = "import os, signal\ndef solve(x):\n    os.kill(-1, signal.SIGKILL)\n"


@dataclass(frozen=True, kw_only=True)
class Window:
    """Where workers are killed, and what that may cost. Per candidate: which owner judged it, how it was recovered."""

    plan: str
    recovery: str = "attach"
    execs: int = 2
    """In all: what the two candidates (and their judges) need, and what the kill made necessary again."""
    losses: str = "1"
    attempts: int = 2
    judged_by: tuple[int, int] = (2, 2)
    recovered: tuple[str, str] = ("none", "none")
    spec: dict[str, Any] = field(default_factory=lambda: SPEC)
    reaped: int = 0
    """Sessions that nobody but the session janitor may delete. It may be quicker than an owner about others, too."""


WINDOWS = [
    # Nobody owned the batch yet: the bell is lost, and no loss is counted.
    Window(plan="bell_popped=kill", losses="", attempts=1, judged_by=(1, 1)),
    Window(plan="job_started=kill", losses="", attempts=1, judged_by=(1, 1)),
    Window(plan="claimed=kill"),
    Window(plan="claimed=kill", recovery="rerun", recovered=("rerun", "rerun")),
    # Sessions: one that no ledger names is the janitor's, one that is noted is gone back to.
    Window(plan="session_created=kill", reaped=1),
    Window(plan="noted=kill"),
    Window(plan="noted=kill@2", judged_by=(1, 2)),
    Window(plan="noted=kill,attached=kill", losses="2", attempts=3, judged_by=(3, 3)),
    # A start that is marked in a cautious batch has not run.
    Window(plan="claimed=kill,marked=kill", losses="2", attempts=3, judged_by=(3, 3)),
    Window(
        plan="claimed=kill,marked=kill", recovery="rerun", losses="2", attempts=3, judged_by=(3, 3),
        recovered=("rerun", "rerun"),
    ),
    # Made cases are made again until they are stored.
    Window(plan="cases_made=kill", execs=6, spec=PROPERTY),
    # What ran is read, or runs again; a verdict stands.
    Window(plan="graded=kill", execs=3, recovered=("read", "none")),
    Window(plan="graded=kill", recovery="rerun", execs=3, recovered=("rerun", "rerun")),
    Window(plan="graded=kill@2", execs=3, judged_by=(1, 2), recovered=("none", "read")),
    Window(plan="verdict_written=kill", judged_by=(1, 2), reaped=1),
    Window(plan="verdict_written=kill", recovery="rerun", judged_by=(1, 2), recovered=("none", "rerun")),
    # With every verdict written nothing is left to run: whoever buries the owner answers the batch.
    Window(plan="all_judged=kill", losses="", attempts=1, judged_by=(1, 1)),
    Window(plan="verdict_written=kill@2", recovery="rerun", losses="", attempts=1, judged_by=(1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: f"{window.plan}-{window.recovery}")
def test_a_worker_killed_there_costs_no_answer(
    window: Window,
    faulty: StartFaulty,
    faults: Faults,
    requests_to: Requests,
    audit: Audit,
    daemon: CollimateClient,
) -> None:
    started = faulty(window.plan)
    k = audit.submit([RIGHT, WRONG], spec=window.spec, recovery=window.recovery)
    for part in window.plan.split(","):
        pid = faults.killed(part.partition("=")[0])
        [name] = [name for name, each in started.child_pids().items() if each == pid]
        [end] = started.wait_for("process_ended", ended=name)
        assert end["code"] == -signal.SIGKILL
    result = audit.result(k)
    assert [(v.reward, v.infra_error) for v in result.results] == [(1.0, False), (0.0, False)]
    assert tuple(v.attempt for v in result.results) == window.judged_by
    assert tuple(v.recovered for v in result.results) == window.recovered
    assert (audit.state(k, "losses"), result.attempts) == (window.losses, window.attempts)
    assert requests_to.execs == window.execs
    if window.reaped:
        started.wait_for("session_reaped", count=window.reaped, k=k)
    assert started.stop() == 0
    assert started.events("batch_error") == started.events("loop_failed") == []
    assert audit.rewards(k) == [1.0, 0.0]


def test_what_a_killed_worker_had_not_written_yet_is_graded_again(
    faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit
) -> None:
    codes = [RIGHT, WRONG] * 4
    started = faulty("verdict_waits=kill@2", batch_concurrency=4)
    k = audit.submit(codes, recovery="rerun")
    pid = faults.killed("verdict_waits")
    [name] = [name for name, each in started.child_pids().items() if each == pid]
    [end] = started.wait_for("process_ended", ended=name)
    assert end["code"] == -signal.SIGKILL
    result = audit.result(k)
    assert [(v.reward, v.infra_error) for v in result.results] == [(1.0, False), (0.0, False)] * 4
    assert (audit.state(k, "losses"), result.attempts) == ("1", 2)
    again = [v for v in result.results if v.attempt == 2]
    assert again
    assert {v.recovered for v in again} == {"rerun"}
    assert len(codes) < requests_to.execs <= 2 * len(codes)
    check_nothing_stayed(audit)
    assert started.stop() == 0
    assert started.events("batch_error") == started.events("loop_failed") == []
    check_nothing_stayed(audit)


def test_a_worker_killed_right_after_its_answer_leaves_no_bell(
    faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit, daemon: CollimateClient
) -> None:
    """Whoever buries it takes its bell off rq's lists: the janitor looks again only after the test."""
    started = faulty("published=kill", timing=UNHURRIED.replace("look_ms=500", "look_ms=90000"))
    k = audit.submit([RIGHT, WRONG])
    faults.killed("published")
    [end] = started.wait_for("process_ended", code=-signal.SIGKILL)
    [burial] = started.wait_for("buried", buried=end["ended"])
    assert (burial["reply"], burial["bells"]) == ("NONE", str([f"{k}-1"]))
    result = audit.result(k)
    assert [(v.reward, v.infra_error, v.attempt, v.recovered) for v in result.results] == [
        (1.0, False, 1, "none"),
        (0.0, False, 1, "none"),
    ]
    assert (audit.state(k, "losses"), result.attempts, requests_to.execs) == ("", 1, 2)
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)


def test_a_worker_killed_when_rq_hears_of_its_job(
    faulty: StartFaulty, faults: Faults, audit: Audit, daemon: CollimateClient
) -> None:
    """While the batch runs: what rq keeps of that job goes with its worker."""
    started = faulty("execution_entered=kill")
    k = audit.submit([slow(2), RIGHT], recovery="rerun")
    faults.killed("execution_entered")
    result = audit.result(k)
    assert [(v.reward, v.attempt, v.recovered) for v in result.results] == [(1.0, 2, "rerun")] * 2
    assert (audit.state(k, "losses"), result.attempts) == ("1", 2)
    assert started.stop() == 0
    check_nothing_stayed(audit)


def test_cases_that_were_stored_are_those_that_are_judged(
    faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit, daemon: CollimateClient
) -> None:
    """The batch names no seed, so its cases can't be made again: whoever takes over judges by the stored ones."""
    started = faulty("cases_stored=kill")
    k = audit.submit([RIGHT, WRONG], spec=PROPERTY, recovery="attach")
    faults.killed("cases_stored")
    stored = audit.queue.stored_cases(k)
    assert stored is not None
    result = audit.result(k)
    assert [(v.reward, v.attempt, v.recovered) for v in result.results] == [(1.0, 2, "none"), (0.0, 2, "none")]
    assert (audit.state(k, "losses"), result.attempts, requests_to.execs) == ("1", 2, 4)
    assert audit.queue.stored_cases(k) == stored
    assert all(v.seed.encode() in zlib.decompress(stored) for v in result.results)
    assert started.stop() == 0
    check_nothing_stayed(audit)


def test_a_worker_killed_before_it_deletes_a_replaced_session(
    faulty: StartFaulty, faults: Faults, audit: Audit, daemon: CollimateClient
) -> None:
    """A candidate that ends its own runner in a session of an earlier owner's gets a fresh one instead."""
    started = faulty("noted=kill,replaced=kill")
    k = audit.submit([FATAL, RIGHT], recovery="attach")
    faults.killed("noted")
    [first] = [entry.session for entry in ledger(audit, k).values()]
    faults.killed("replaced")
    assert first not in {entry.session for entry in ledger(audit, k).values()}
    result = audit.result(k)
    assert [(v.reward, v.infra_error, v.attempt) for v in result.results] == [(0.0, False, 3), (1.0, False, 3)]
    assert (audit.state(k, "losses"), result.attempts, result.status) == ("2", 3, ResultStatus.GRADED)
    # The second owner had the right to delete it, and died: it is the janitor's.
    reaped = started.wait_for("session_reaped", k=k)
    assert first in {event["session"] for event in reaped}
    assert started.stop() == 0
    check_nothing_stayed(audit)


@pytest.mark.parametrize(
    ("point", "on_stop", "found"),
    [("dropped", "delete", []), ("released", "leave", ["attached"])],
)
def test_a_worker_killed_while_it_gives_its_batch_back(
    point: str,
    on_stop: str,
    found: list[str],
    faulty: StartFaulty,
    faults: Faults,
    requests_to: Requests,
    audit: Audit,
    daemon: CollimateClient,
) -> None:
    started = faulty(f"{point}=kill", grace=3, on_stop=on_stop)
    k = audit.submit([RIGHT, slow(4)], recovery="attach")
    until(lambda: requests_to.execs == 2, "the slow one never started")
    assert started.stop() == 0
    faults.killed(point)
    assert (audit.state(k, "status"), audit.state(k, "losses")) == ("open", "")
    # The supervisor's last look at the daemon has taken what the worker had no time to delete.
    assert len(sessions_of(daemon, k)) == len(found)
    assert len(started.events("session_reaped", k=k)) == (point == "dropped")
    started.start()
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 1), (1.0, 2)]
    assert [event["reply"] for event in started.events("session_found", k=k)] == found
    assert (audit.state(k, "losses"), requests_to.execs) == ("", 3)
    assert started.stop() == 0
    check_nothing_stayed(audit)


def test_a_batch_cancelled_while_its_owner_dies_is_answered_so(
    faulty: StartFaulty, faults: Faults, audit: Audit, daemon: CollimateClient
) -> None:
    started = faulty("noted=stop@2")
    k = audit.submit([RIGHT, RIGHT], recovery="attach")
    faults.stopped("noted")
    audit.queue.cancel(k)
    assert audit.queue.result(k) is None
    faults.kill("noted")
    result = audit.result(k)
    assert result.status is ResultStatus.CANCELLED
    assert [(v.reward, v.error_code) for v in result.results] == [(1.0, None), (None, "cancelled")]
    until(lambda: sessions_of(daemon, k) == set(), "its session was never reaped")
    assert not audit.queue.client.exists(keys.alive(result.worker))
    assert started.stop() == 0
    check_nothing_stayed(audit)
