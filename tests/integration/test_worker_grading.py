"""A node at its daily work: real server, real daemon, real worker processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import RunMisconfigured
from collimate_rl.protocol import ResultStatus, keys
from collimate_rl.specs import UnitTestReward
from producer import Producer, as_completed
from tests.fixtures.worker_batches import CRASH, ENDLESS, RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]


def test_a_batch_is_graded_end_to_end(node: StartNode, redis_url: str, daemon_socket: str) -> None:
    started = node(processes=1)
    spec = UnitTestReward(tests=SPEC["tests"])  # type: ignore[arg-type]
    with Producer(redis_url, run="r") as producer:
        handle = producer.submit(
            template="py", candidates=[RIGHT, WRONG, CRASH, ENDLESS], spec=spec, timeout_seconds=2, id="one"
        )
        result = handle.result(timeout=60)
    assert result.status is ResultStatus.GRADED
    assert [v.reward for v in result.results] == [1.0, 0.0, 0.0, 0.0]
    assert [v.outcome for v in result.results] == ["passed", "wrong_answer", "runtime_error", "timeout"]
    assert {v.node for v in result.results} == {"n1"}
    assert {(v.attempt, v.recovered, v.infra_error) for v in result.results} == {(1, "none", False)}
    assert all(len(v.seed) == 64 for v in result.results)
    assert result.worker.startswith("n1-0-")
    assert CollimateClient(unix_socket=daemon_socket).list_sessions() == []
    assert started.stop() == 0


def test_fifty_batches_by_two_processes_are_each_answered_once(node: StartNode, audit: Audit) -> None:
    for number in range(50):
        audit.submit([RIGHT, WRONG, RIGHT], id=f"b{number}")
    started = node(processes=2)
    results = audit.results()
    assert [[v.reward for v in r.results] for r in results] == [[1.0, 0.0, 1.0]] * 50
    assert {r.attempts for r in results} == {1}
    assert len({r.worker for r in results}) == 2
    assert started.stop() == 0
    audit.check_each_answered_once()
    client = audit.queue.client
    assert (client.llen(keys.rq_queue("grade")), client.llen(keys.rq_intermediate("grade"))) == (0, 0)


def test_producers_and_completion_order(node: StartNode, redis_url: str) -> None:
    node(processes=2)
    with Producer(redis_url, run="r") as producer:
        handles = [producer.submit(template="py", candidates=[RIGHT], spec=SPEC, id=f"h{n}") for n in range(10)]
        assert {handle.id for handle in as_completed(handles, timeout=60)} == {f"h{n}" for n in range(10)}


def test_an_unknown_template_is_refused_at_submit_and_flagged_behind_it(
    node: StartNode, audit: Audit, redis_url: str
) -> None:
    started = node()
    until(audit.queue.nodes, "no heartbeat came")
    with Producer(redis_url, run="r") as producer, pytest.raises(RunMisconfigured, match="nowhere"):
        producer.submit(template="nowhere", candidates=[RIGHT], spec=SPEC)
    k = audit.submit([RIGHT, WRONG], template="nowhere")
    result = audit.result(k)
    assert [(v.reward, v.infra_error, v.error_code) for v in result.results] == [(None, True, "no_template")] * 2
    assert result.attempts == 1
    assert started.events("candidate_retried") == []
    with pytest.raises(RunMisconfigured):
        result.rewards(on_infra="drop")


def test_a_payload_that_is_no_message_is_answered(node: StartNode, audit: Audit) -> None:
    ks = [audit.submit() for _ in range(2)]
    audit.queue.client.set(keys.BatchKeys(ks[0]).payload, b"\xc1 no msgpack")
    audit.queue.client.delete(keys.BatchKeys(ks[1]).payload)
    node()
    for k in ks:
        result = audit.result(k)
        assert result.status is ResultStatus.FAILED
        assert [v.reward for v in result.results] == [None, None]
        assert all(v.infra_error and v.detail for v in result.results)
    assert [v.error_code for v in audit.result(ks[0]).results] == ["bad_request"] * 2


def test_a_payload_of_a_later_version_is_left_to_a_worker_that_knows_it(node: StartNode, audit: Audit) -> None:
    import msgpack

    k = audit.submit()
    key = keys.BatchKeys(k).payload
    ours = audit.queue.client.get(key)
    assert isinstance(ours, bytes)
    audit.queue.client.set(key, msgpack.packb({**msgpack.unpackb(ours), "v": 2}))
    started = node(timing=HASTY)
    started.wait_for("batch_released", count=2, reason="later")
    assert (audit.state(k, "status"), audit.state(k, "errors"), audit.state(k, "losses")) == ("open", "", "")
    audit.queue.client.set(key, ours)
    assert audit.rewards(k) == [1.0, 0.0]
    audit.check_each_answered_once()


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "no_such_spec"},
        {"type": "unit_test", "tests": "none"},
        {"type": "registered", "name": "nobody.registered.this", "arguments": {}},
    ],
)
def test_a_spec_that_is_off_flags_every_candidate(node: StartNode, audit: Audit, spec: object) -> None:
    started = node()
    result = audit.result(audit.submit([RIGHT, WRONG, CRASH], spec=spec))
    assert [(v.reward, v.error_code) for v in result.results] == [(None, "bad_request")] * 3
    assert all(v.detail for v in result.results)
    assert result.attempts == 1
    with pytest.raises(RunMisconfigured):
        result.rewards(on_infra="none")
    started.wait_for("batch_misconfigured")


def test_a_cancelled_batch_keeps_its_verdicts_and_stops(node: StartNode, audit: Audit) -> None:
    started = node(slots=8)
    k = audit.submit([RIGHT, WRONG, slow(15), slow(15)])
    started.wait_for("candidate_graded", count=2, k=k)
    audit.queue.cancel(k)
    result = audit.result(k)
    assert result.status is ResultStatus.CANCELLED
    assert [(v.reward, v.error_code) for v in result.results] == [
        (1.0, None),
        (0.0, None),
        (None, "cancelled"),
        (None, "cancelled"),
    ]
    audit.check_each_answered_once()


def test_past_its_deadline_a_batch_is_answered_expired(node: StartNode, audit: Audit) -> None:
    node(slots=8)
    k = audit.submit([RIGHT, slow(15)], deadline_s=3.0)
    result = audit.result(k)
    assert result.status is ResultStatus.EXPIRED
    assert [v.error_code for v in result.results] == [None, "expired"]
    audit.check_each_answered_once()


def test_the_next_batch_is_taken_after_one_that_was_cut_short(node: StartNode, audit: Audit) -> None:
    node()
    cut = audit.submit([slow(3)], deadline_s=1.0)
    assert audit.result(cut).status is ResultStatus.EXPIRED
    assert audit.rewards(audit.submit()) == [1.0, 0.0]


def test_a_batch_that_nobody_takes_is_answered_at_its_deadline(node: StartNode, audit: Audit) -> None:
    k = audit.submit(deadline_s=1.0)
    node(backend="unix:/nowhere/serve.sock", timing=HASTY)
    assert audit.result(k).status is ResultStatus.EXPIRED
    audit.check_each_answered_once()


def test_stray_doubled_bells_change_nothing(node: StartNode, audit: Audit) -> None:
    ks = [audit.submit([slow(0.3), RIGHT]) for _ in range(3)]
    for k in ks * 3:
        audit.queue.client.rpush(keys.rq_queue("grade"), f"{k}-1")
    started = node(processes=2)
    assert [audit.rewards(k) for k in ks] == [[1.0, 1.0]] * 3
    until(lambda: audit.queue.client.llen(keys.rq_queue("grade")) == 0, "the bells were not taken")
    assert started.stop() == 0
    audit.check_each_answered_once()
    assert {result.attempts for result in audit.results()} == {1}


def test_a_deleted_job_and_an_emptied_list_are_rung_again(node: StartNode, audit: Audit) -> None:
    ks = [audit.submit() for _ in range(4)]
    audit.queue.client.delete(keys.rq_job(f"{ks[0]}-1"))
    audit.queue.client.lrem(keys.rq_queue("grade"), 0, f"{ks[1]}-1")
    node(timing=HASTY)
    assert [audit.rewards(k) for k in ks] == [[1.0, 0.0]] * 4
    more = audit.submit([slow(1.0)])
    later = audit.submit()
    audit.queue.client.delete(keys.rq_queue("grade"))
    assert (audit.rewards(more), audit.rewards(later)) == ([1.0], [1.0, 0.0])
    audit.check_each_answered_once()


def test_what_is_no_bell_of_ours_is_refused_and_runs_nothing(node: StartNode, audit: Audit) -> None:
    from rq import Queue

    from collimate_rl.queue.rq_edge import MsgpackSerializer

    started = node()
    queue = Queue("grade", connection=audit.queue.client, serializer=MsgpackSerializer)
    job = queue.enqueue("os.getpid")
    until(lambda: job.get_status() == "failed", "the foreign job was not refused")
    assert audit.rewards(audit.submit()) == [1.0, 0.0]
    assert started.stop() == 0
