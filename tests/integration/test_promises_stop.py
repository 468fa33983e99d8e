"""Stops, pauses, cancellations, deadlines under load, with the product's defaults: what is left, and what is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import ResultStatus, keys
from collimate_rl.queue.replies import Cancelled
from producer import Producer
from tests.fixtures.leftovers import check_nothing_is_left, without_lifetime
from tests.fixtures.queue_batches import overdue
from tests.fixtures.recovery import all_sessions, execs, owner_pid, sessions_of
from tests.fixtures.worker_batches import RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, PATIENCE_S, Node, until

StartNode = Callable[..., Node]


def test_a_stop_under_load_with_the_defaults_leaves_no_session_and_takes_no_new_batch(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    before = all_sessions(daemon)
    started = node(processes=2, slots=8, grace=6)
    short = [audit.submit([RIGHT, slow(1.5)], id=f"short{n}", recovery="attach") for n in range(2)]
    for k in short:
        started.wait_for("batch_claimed", k=k)
    waiting = [audit.submit([RIGHT, slow(30), slow(30)], id=f"waiting{n}", recovery="attach") for n in range(6)]
    # One process is through with its first batch: what it holds now can't be finished within the grace.
    claimed = [event["k"] for event in started.wait_for("batch_claimed", count=3)]
    started.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
    assert started.wait() == 0
    assert all_sessions(daemon) - before == set()
    assert audit.queue.owned("n1") == {}
    # Between the signal and a process' hearing of it, it may have popped one bell.
    at_most = len(claimed) + 2
    claims = started.events("batch_claimed")
    assert len({event["k"] for event in claims}) <= at_most
    ended: dict[str, Any] = {event["k"]: "published" for event in started.events("batch_published")}
    ended |= {event["k"]: event["reason"] for event in started.events("batch_released")}
    assert {event["k"] for event in claims} == set(ended)
    assert {reason for k, reason in ended.items() if k not in short} == {"clean"}
    assert [event["code"] for event in started.events("process_ended")] == []
    assert {audit.state(k, "losses") for k in (*short, *waiting)} == {""}
    client = audit.queue.client
    assert client.llen(keys.rq_intermediate("grade")) == 0
    assert client.smembers("rq:workers:grade") == set()
    assert client.zcard("rq:wip:grade") == 0
    # Everything that is unanswered still has its bell.
    unanswered = {k for k in (*short, *waiting) if audit.queue.result(k) is None}
    listed: Any = client.lrange(keys.rq_queue("grade"), 0, -1)
    assert unanswered <= {job.decode()[:32] for job in listed}
    for k in unanswered:
        assert audit.queue.cancel(k) is Cancelled.ANSWERED
    again = node("n2")
    audit.check_each_answered_once()
    until(lambda: client.llen(keys.rq_queue("grade")) == 0, "bells of answered batches stayed")
    assert again.stop() == 0
    check_nothing_is_left(client)


def test_nothing_is_claimed_behind_the_signal(node: StartNode, audit: Audit) -> None:
    """Every process is at work when it is told to stop: it finishes that, and takes nothing more."""
    started = node(processes=2, slots=8)
    held = [audit.submit([slow(3)], id=f"held{n}") for n in range(2)]
    for k in held:
        started.wait_for("batch_claimed", k=k)
    waiting = [audit.submit(id=f"waiting{n}") for n in range(6)]
    assert started.stop() == 0
    assert {event["k"] for event in started.events("batch_claimed")} == set(held)
    assert [audit.rewards(k) for k in held] == [[1.0]] * 2
    assert audit.queue.client.llen(keys.rq_queue("grade")) == len(waiting)
    assert audit.queue.client.llen(keys.rq_intermediate("grade")) == 0
    other = node("n2")
    assert [audit.rewards(k) for k in waiting] == [[1.0, 0.0]] * 6
    assert other.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)


def test_rqs_state_is_right_after_a_worker_was_suspended_past_its_lease(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    started = node(processes=2, slots=8, timing=HASTY)
    k = audit.submit([RIGHT, slow(6)], recovery="attach", timeout_seconds=40)
    started.wait_for("candidate_graded", k=k)
    until(lambda: execs(daemon, k) == {1: 1}, "the slow one never started")
    paused = owner_pid(started, k)
    os.kill(paused, signal.SIGSTOP)
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 1), (1.0, 2)]
    os.kill(paused, signal.SIGCONT)
    until(lambda: started.events("batch_fenced", k=k) or started.events("batch_skipped", k=k, reply="answered"))
    client = audit.queue.client
    # It answers bells again, as one of two registered workers.
    more = [audit.submit([slow(0.5)], id=f"more{n}") for n in range(6)]
    assert [audit.rewards(each) for each in more] == [[1.0]] * 6
    alive = {name for name, pid in started.child_pids().items()}
    assert {event["worker"] for event in started.events("batch_published") if event["k"] in more} == alive
    registered: Any = client.smembers("rq:workers:grade")
    assert {name.decode().removeprefix("rq:worker:") for name in registered} == alive
    assert len(alive) == 2
    until(lambda: client.zcard("rq:wip:grade") == 0, "rq believes that something runs")
    assert client.llen(keys.rq_intermediate("grade")) == 0
    jobs = list(client.scan_iter(match="rq:job:*"))
    assert all(client.ttl(job) > 0 for job in jobs)
    assert len(started.events("batch_published", k=k)) == 1
    assert audit.state(k, "losses") == ""
    assert audit.result(k) == result
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(client)


def test_cancelled_and_expired_wherever_the_batch_is(node: StartNode, audit: Audit, daemon: CollimateClient) -> None:
    """Running or still on the list, by session or not: the verdicts that stand are kept, the rest says why."""
    started = node(processes=2, slots=8, timing=HASTY)
    running = [
        audit.submit([RIGHT, slow(25)], id=f"running-{how}", recovery=how, timeout_seconds=30)
        for how in ("attach", "rerun")
    ]
    for k in running:
        started.wait_for("candidate_graded", k=k)
    queued = [audit.submit([RIGHT, WRONG], id=f"queued-{n}") for n in range(3)]
    assert audit.queue.cancel(queued[0]) is Cancelled.ANSWERED
    overdue(audit.queue, queued[1])
    assert audit.queue.cancel(running[0]) is Cancelled.ASKED
    overdue(audit.queue, running[1])
    found = {k: audit.result(k) for k in (*running, *queued[:2])}
    assert [found[k].status for k in running] == [ResultStatus.CANCELLED, ResultStatus.EXPIRED]
    assert [found[k].status for k in queued[:2]] == [ResultStatus.CANCELLED, ResultStatus.EXPIRED]
    told = [[(v.reward, v.error_code) for v in found[k].results] for k in (*running, *queued[:2])]
    assert told == [
        [(1.0, None), (None, "cancelled")],
        [(1.0, None), (None, "expired")],
        [(None, "cancelled")] * 2,
        [(None, "expired")] * 2,
    ]
    assert {k: found[k].attempts for k in queued[:2]} == dict.fromkeys(queued[:2], 0)
    assert audit.rewards(queued[2]) == [1.0, 0.0]
    assert started.events("batch_claimed", k=queued[0]) == started.events("batch_claimed", k=queued[1]) == []
    until(lambda: sessions_of(daemon, running[0]) == set(), "a cancelled batch's session stayed")
    assert [audit.queue.cancel(k) for k in (*running, *queued)] == [Cancelled.DONE] * 5
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)


def test_cancel_run_leaves_other_runs_alone(node: StartNode, audit: Audit, redis_url: str) -> None:
    started = node(processes=2, slots=8, timing=HASTY)
    other = audit.submit([RIGHT, slow(2)], run="other")
    with Producer(redis_url, run="run", name="trainer") as producer:
        handles = [producer.submit(template="py", candidates=[RIGHT, slow(15)], spec=SPEC) for _ in range(6)]
        started.wait_for("candidate_graded", k=handles[0].k)
        assert producer.cancel_run() == 6
        statuses = {handle.result(PATIENCE_S).status for handle in handles}
        assert statuses == {ResultStatus.CANCELLED}
        assert producer.cancel_run() == 0
    assert audit.rewards(other) == [1.0, 1.0]
    assert started.stop() == 0
    check_nothing_is_left(audit.queue.client)


def test_while_batches_wait_and_run_every_key_has_an_owner_or_a_lifetime(node: StartNode, audit: Audit) -> None:
    """Not only at the end: at no moment is there a key of a batch, or an rq job, that nobody would ever remove."""
    started = node(processes=1, slots=4)
    ks = [audit.submit([RIGHT, slow(0.6), WRONG], recovery=how) for how in ("attach", "rerun", "attach", "rerun")]
    client = audit.queue.client
    held = {keys.pending("grade"), keys.inflight("run"), keys.owned("n1"), keys.rq_queue("grade")}
    held |= {keys.rq_intermediate("grade"), "rq:workers", "rq:workers:grade", "rq:wip:grade"}
    looks, seen = 0, set()
    while not all(audit.queue.result(k) for k in ks):
        found = set(without_lifetime(client)) - held
        # A look between a job's first write and its EXPIRE, or a registry's, is settled by another.
        seen = found & seen if looks % 2 else found
        assert not (looks % 2 and seen), sorted(seen)
        looks += 1
    assert looks > 3
    assert started.stop() == 0
    check_nothing_is_left(client)
