"""Supervisors and janitors are stopped in the middle of what they do for others: nobody's work is lost or doubled."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import keys
from collimate_rl.queue.batch_list import list_batches
from collimate_rl.queue.numbers import read_numbers
from collimate_rl.queue.replies import Submitted
from tests.fixtures.crashes import Faults, Requests, StartFaulty, check_nothing_stayed
from tests.fixtures.queue_batches import make_batch, put
from tests.fixtures.recovery import execs, sessions_of
from tests.fixtures.worker_batches import RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until
from worker.process import start_time

StartNode = Callable[..., Node]


def died(started: Node) -> None:
    """The supervisor was killed, and its workers have gone with it."""
    assert started.wait() == -signal.SIGKILL
    until(lambda: not any(start_time(pid) for pid in started.child_pids().values()), "a worker process stayed")


@pytest.mark.parametrize("point", ["death_seen", "buried"])
def test_a_supervisor_killed_while_it_buries_a_worker_finishes_that_in_its_next_life(
    point: str, faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit, daemon: CollimateClient
) -> None:
    started = faulty(f"noted=kill,{point}=kill")
    k = audit.submit([RIGHT, WRONG], recovery="attach")
    faults.killed("noted")
    faults.killed(point)
    died(started)
    status = "running" if point == "death_seen" else "open"
    assert audit.state(k, "status") == status
    started.start()
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 2), (0.0, 2)]
    # Buried once, whoever did it, and gone back to: the session that the first owner noted.
    assert (audit.state(k, "losses"), result.attempts, requests_to.execs) == ("1", 2, 2)
    assert [event["reply"] for event in started.events("session_found", k=k)] == ["attached"]
    assert started.stop() == 0
    check_nothing_stayed(audit)


def test_a_supervisor_killed_before_it_buried_a_worker_and_never_restarted(
    faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit, daemon: CollimateClient
) -> None:
    lost = faulty("noted=kill,death_seen=kill", timing=HASTY)
    k = audit.submit([RIGHT, WRONG], recovery="attach")
    faults.killed("death_seen")
    died(lost)
    other = faulty("", "n2")
    result = audit.result(k)
    assert [(v.reward, v.node, v.attempt) for v in result.results] == [(1.0, "n2", 2), (0.0, "n2", 2)]
    assert (audit.state(k, "losses"), result.attempts, requests_to.execs) == ("1", 2, 2)
    # What rq keeps of the dead expires; the next life of their own node clears it at once.
    lost.start().wait_for("supervisor_ready", count=2)
    assert other.stop() == 0
    assert lost.stop() == 0
    check_nothing_stayed(audit)


def test_a_supervisor_killed_between_two_burials_of_its_earlier_life(
    faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit, daemon: CollimateClient
) -> None:
    started = faulty("earlier_life=kill@2", processes=2)
    ks = [audit.submit([slow(2)], id=f"b{number}", recovery="attach") for number in range(2)]
    until(lambda: requests_to.execs == 2, "they never started")
    started.kill()
    started.start()
    faults.killed("earlier_life")
    died(started)
    assert sorted(audit.state(k, "status") for k in ks) == ["open", "running"]
    assert len(audit.queue.owned("n1")) == 1
    started.start()
    for k in ks:
        result = audit.result(k)
        assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 2)]
        assert (audit.state(k, "losses"), result.attempts) == ("1", 2)
    # One exec each to run them, one each to have what they had come to.
    assert requests_to.execs == 4
    # While it still listens: each batch had a second bell, on the node's own list or on everybody's.
    check_nothing_stayed(audit)
    assert started.stop() == 0


def test_a_supervisor_that_slept_over_a_death_buries_nothing_of_the_next_owners(
    faulty: StartFaulty, faults: Faults, audit: Audit, daemon: CollimateClient
) -> None:
    """It wakes up with an old belief: that its dead worker owns the batch."""
    started = faulty("noted=kill,death_seen=stop", timing=HASTY)
    k = audit.submit([slow(4)], recovery="attach")
    faults.killed("noted")
    faults.stopped("death_seen")
    [dead] = [event["ended"] for event in started.wait_for("process_ended")]
    other = faulty("", "n2")  # its janitor sees to it; any process that works may be the next owner
    until(lambda: execs(daemon, k) == {0: 1}, "nobody took the batch over")
    before = [audit.state(k, name) for name in ("status", "fence", "losses")]
    faults.wake("death_seen")
    until(lambda: not audit.queue.client.sismember("rq:workers:grade", f"rq:worker:{dead}"), "it buried nobody")
    # Said only where rq had heard of the bell, which is told while its batch runs.
    assert {event["reply"] for event in started.events("buried")} <= {"NONE"}
    assert [audit.state(k, name) for name in ("status", "fence", "losses")] == before == ["running", "2", "1"]
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 2)]
    assert started.stop() == other.stop() == 0  # then all is said
    assert sum(len(each.events("batch_published", k=k)) for each in (started, other)) == 1
    check_nothing_stayed(audit)


@pytest.mark.parametrize("plan", ["mending=kill", "mending=stop", "sweeping=kill"])
def test_a_janitor_that_leaves_off_in_the_middle_of_its_round_is_followed_by_another(
    plan: str, faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit, daemon: CollimateClient
) -> None:
    """Its round was about a bell that was lost between rq's lists; whoever leads next rings another."""
    point, _, action = plan.partition("=")
    nodes = [faulty(f"bell_popped=kill,{plan}", name) for name in ("n1", "n2")]
    k = audit.submit([RIGHT, WRONG], recovery="attach")
    faults.killed("bell_popped")
    pid = faults.killed(point) if action == "kill" else faults.stopped(point)
    [led] = [each for each in nodes if each.pid == pid]
    [other] = [each for each in nodes if each is not led]
    other.wait_for("janitor_leads")
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 1), (0.0, 1)]
    assert (audit.state(k, "losses"), result.attempts, requests_to.execs) == ("", 1, 2)
    if action == "kill":
        died(led)
        led.start().wait_for("supervisor_ready", count=2)
    else:
        faults.wake(point)
        led.wait_for("janitor_acted" if led.events("janitor_acted") else "janitor_leads")
    assert audit.rewards(audit.submit([WRONG])) == [0.0]
    assert led.stop() == other.stop() == 0
    check_nothing_stayed(audit)
    assert requests_to.execs == 3


@pytest.mark.parametrize("plan", ["tallied=kill", "tallying=stop"])
def test_an_answer_is_counted_once_whoever_leaves_off_while_counting(
    plan: str, faulty: StartFaulty, faults: Faults, audit: Audit, daemon: CollimateClient
) -> None:
    """The counting janitor dies, or sleeps until another leads; and the same batches are submitted again meanwhile."""
    point, _, action = plan.partition("=")
    first = faulty(plan)
    ks = [audit.submit([RIGHT, WRONG, WRONG], id=f"b{number}") for number in range(2)]
    if action == "kill":
        faults.killed(point)
        died(first)
        first.start()
    else:
        faults.stopped(point)
        other = faulty("", "n2")
    audit.results()
    for number in range(2):
        again = make_batch(
            candidates=(RIGHT, WRONG, WRONG),
            seeds=(None,) * 3,
            spec=json.dumps(SPEC),
            id=f"b{number}",
            timeout_seconds=20,
        )
        assert put(audit.queue, again, Submitted.DONE) == ks[number]
    audit.submit([RIGHT], id="b2")
    audit.results()
    until(lambda: read_numbers(audit.queue).total.batches == 3, "an answer was not counted")
    if action == "stop":
        faults.wake(point)
        first.wait_for("janitor_leads")
        assert other.stop() == 0
    audit.submit([WRONG], id="b3")
    until(lambda: read_numbers(audit.queue).total.batches == 4, "an answer was not counted, or one twice")
    numbers = read_numbers(audit.queue)
    [run] = numbers.runs
    for counts in (numbers.total, run.counts):
        assert (counts.batches, counts.candidates, counts.graded, counts.infra, counts.zeros) == (4, 8, 8, 0, 5)
        assert counts.mean_reward == 3 / 8
        assert (counts.statuses, counts.outcomes) == ({"graded": 4}, {"passed": 3, "wrong_answer": 5})
    assert (run.submitted, run.unanswered, numbers.uncounted) == (4, 0, 0)
    assert sum(point.graded for point in run.rewards) == 8
    assert sorted(line.id for line in list_batches(audit.queue)) == ["b0", "b1", "b2", "b3"]
    assert first.stop() == 0
    check_nothing_stayed(audit)


def test_a_session_janitor_that_slept_before_it_deleted_takes_nothing_of_a_new_owners(
    faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit, daemon: CollimateClient
) -> None:
    """It found the session that a dead owner had made and not noted. Meanwhile the next owner makes its own."""
    started = faulty("session_created=kill,reaping=stop", processes=2)
    k = audit.submit([slow(3), RIGHT], recovery="attach")
    faults.killed("session_created")
    [orphan] = sessions_of(daemon, k)
    faults.stopped("reaping")
    until(lambda: requests_to.execs == 1, "the next owner never began")
    kept = sessions_of(daemon, k) - {orphan}
    assert len(kept) == 1
    faults.wake("reaping")
    [reaped] = started.wait_for("session_reaped", session=orphan)
    assert reaped["reason"] == "its owner is gone, and the ledger does not name it"
    result = audit.result(k)
    assert [v.reward for v in result.results] == [1.0, 1.0]
    assert {result.results[0].session_id} == kept
    assert (audit.state(k, "losses"), requests_to.execs) == ("1", 2)
    assert started.stop() == 0
    check_nothing_stayed(audit)


def test_a_session_janitor_that_slept_until_the_batch_was_answered(
    faulty: StartFaulty, faults: Faults, requests_to: Requests, audit: Audit, daemon: CollimateClient
) -> None:
    started = faulty("session_created=kill,reaping=stop", processes=2)
    k = audit.submit([RIGHT, WRONG], recovery="attach")
    faults.stopped("reaping")
    assert audit.rewards(k) == [1.0, 0.0]
    until(lambda: len(sessions_of(daemon, k)) == 1, "a judged candidate's session stayed")
    faults.wake("reaping")
    until(lambda: sessions_of(daemon, k) == set(), "the orphan was never reaped")
    assert started.stop() == 0
    assert started.events("loop_failed") == []
    assert not audit.queue.client.exists(keys.sessions("n1")) or requests_to.execs == 2
    check_nothing_stayed(audit)
