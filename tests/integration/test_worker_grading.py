"""A node at its daily work: real server, real daemon, real worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgpack
import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import RunMisconfigured
from collimate_rl.protocol import ResultStatus, keys
from collimate_rl.specs import UnitTestReward
from producer import Producer, as_completed
from tests.fixtures.queue_batches import overdue
from tests.fixtures.recovery import all_sessions
from tests.fixtures.worker_batches import CRASH, ENDLESS, RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]


@pytest.fixture
def calm(shared_server: str, shared_node: Node) -> Iterator[Audit]:
    """The queue of the node that this module's tests share."""
    audit = Audit(shared_server)
    yield audit
    audit.queue.client.close()
    print(shared_node.words())


def test_a_batch_is_graded_end_to_end(calm: Audit, shared_server: str, shared_node: Node, daemon_socket: str) -> None:
    client = CollimateClient(unix_socket=daemon_socket)
    before = all_sessions(client)
    spec = UnitTestReward(tests=SPEC["tests"])  # type: ignore[arg-type]
    with Producer(shared_server, run="r") as producer:
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
    assert result.worker in shared_node.child_pids()
    assert all_sessions(client) - before == set()


def test_fifty_batches_by_two_processes_are_each_answered_once(calm: Audit) -> None:
    for number in range(50):
        calm.submit([RIGHT, WRONG, RIGHT], id=f"fifty-{number}")
    results = calm.results()
    assert [[v.reward for v in r.results] for r in results] == [[1.0, 0.0, 1.0]] * 50
    assert {r.attempts for r in results} == {1}
    assert len({r.worker for r in results}) == 2
    calm.check_each_answered_once()
    client = calm.queue.client
    until(lambda: client.llen(keys.rq_intermediate("grade")) == 0, "a bell stayed on the intermediate list")
    assert client.llen(keys.rq_queue("grade")) == 0


def test_handles_come_back_as_they_are_completed(calm: Audit, shared_server: str) -> None:
    with Producer(shared_server, run="r") as producer:
        handles = [producer.submit(template="py", candidates=[RIGHT], spec=SPEC, id=f"h{n}") for n in range(10)]
        assert {handle.id for handle in as_completed(handles, timeout=60)} == {f"h{n}" for n in range(10)}


def test_an_unknown_template_is_refused_at_submit_and_flagged_behind_it(
    calm: Audit, shared_server: str, shared_node: Node
) -> None:
    until(calm.queue.nodes, "no heartbeat came")
    with Producer(shared_server, run="r") as producer, pytest.raises(RunMisconfigured, match="nowhere"):
        producer.submit(template="nowhere", candidates=[RIGHT], spec=SPEC)
    k = calm.submit([RIGHT, WRONG], template="nowhere")
    result = calm.result(k)
    assert [(v.reward, v.infra_error, v.error_code) for v in result.results] == [(None, True, "no_template")] * 2
    assert result.attempts == 1
    assert shared_node.events("candidate_retried", k=k) == []
    with pytest.raises(RunMisconfigured):
        result.rewards(on_infra="drop")


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "no_such_spec"},
        {"type": "unit_test", "tests": "none"},
        {"type": "registered", "name": "nobody.registered.this", "arguments": {}},
    ],
)
def test_a_spec_that_is_off_flags_every_candidate(calm: Audit, shared_node: Node, spec: object) -> None:
    k = calm.submit([RIGHT, WRONG, CRASH], spec=spec)
    result = calm.result(k)
    assert [(v.reward, v.error_code) for v in result.results] == [(None, "bad_request")] * 3
    assert all(v.detail for v in result.results)
    assert result.attempts == 1
    with pytest.raises(RunMisconfigured):
        result.rewards(on_infra="none")
    shared_node.wait_for("batch_misconfigured", k=k)


def test_a_spec_whose_reference_fails_is_at_fault_not_its_candidates(calm: Audit) -> None:
    spec = {"type": "property", "reference": "    return 1 // 0", "generator": "3", "k": 2, "entry": "solve"}
    result = calm.result(calm.submit([RIGHT], spec=spec))
    assert [(v.reward, v.error_code) for v in result.results] == [(None, "bad_request")]


def test_a_cancelled_batch_keeps_its_verdicts_and_stops(calm: Audit, shared_node: Node) -> None:
    k = calm.submit([RIGHT, WRONG, slow(4), slow(4)])
    shared_node.wait_for("candidate_graded", count=2, k=k)
    calm.queue.cancel(k)
    result = calm.result(k)
    assert result.status is ResultStatus.CANCELLED
    assert [(v.reward, v.error_code) for v in result.results] == [
        (1.0, None),
        (0.0, None),
        (None, "cancelled"),
        (None, "cancelled"),
    ]
    calm.check_each_answered_once()


def test_past_its_deadline_a_batch_is_answered_expired_and_keeps_its_verdicts(calm: Audit, shared_node: Node) -> None:
    k = calm.submit([RIGHT, slow(4)])
    shared_node.wait_for("candidate_graded", k=k)
    overdue(calm.queue, k)
    result = calm.result(k)
    assert result.status is ResultStatus.EXPIRED
    assert [(v.reward, v.error_code) for v in result.results] == [(1.0, None), (None, "expired")]
    assert calm.rewards(calm.submit()) == [1.0, 0.0]
    calm.check_each_answered_once()


def test_stray_doubled_bells_change_nothing(calm: Audit) -> None:
    ks = [calm.submit([slow(0.3), RIGHT]) for _ in range(3)]
    for k in ks * 3:
        calm.queue.client.rpush(keys.rq_queue("grade"), f"{k}-1")
    assert [calm.rewards(k) for k in ks] == [[1.0, 1.0]] * 3
    until(lambda: calm.queue.client.llen(keys.rq_queue("grade")) == 0, "the bells were not taken")
    calm.check_each_answered_once()
    assert {result.attempts for result in calm.results()} == {1}


def test_an_emptied_list_is_rung_again(calm: Audit) -> None:
    busy = [calm.submit([slow(1.0)]) for _ in range(2)]
    waiting = [calm.submit() for _ in range(2)]
    calm.queue.client.delete(keys.rq_queue("grade"))
    assert [calm.rewards(k) for k in busy + waiting] == [[1.0]] * 2 + [[1.0, 0.0]] * 2
    calm.check_each_answered_once()


def test_what_is_no_bell_of_ours_is_refused_and_runs_nothing(calm: Audit) -> None:
    from rq import Queue

    from collimate_rl.queue.rq_edge import MsgpackSerializer

    queue = Queue("grade", connection=calm.queue.client, serializer=MsgpackSerializer)
    job = queue.enqueue("os.getpid")
    until(lambda: job.get_status() == "failed", "the foreign job was not refused")
    assert calm.rewards(calm.submit()) == [1.0, 0.0]


def test_payloads_and_jobs_that_were_damaged_before_a_node_came(node: StartNode, audit: Audit) -> None:
    junk, lost, later, unbelled, deleted = (audit.submit() for _ in range(5))
    client = audit.queue.client
    client.set(keys.BatchKeys(junk).payload, b"\xc1 no msgpack")
    client.delete(keys.BatchKeys(lost).payload)
    ours = client.get(keys.BatchKeys(later).payload)
    assert isinstance(ours, bytes)
    client.set(keys.BatchKeys(later).payload, msgpack.packb({**msgpack.unpackb(ours), "v": 2}))
    client.lrem(keys.rq_queue("grade"), 0, f"{unbelled}-1")
    client.delete(keys.rq_job(f"{deleted}-1"))
    started = node(timing=HASTY)
    for k in (junk, lost):
        result = audit.result(k)
        assert result.status is ResultStatus.FAILED
        assert all(v.reward is None and v.infra_error and v.detail for v in result.results)
    assert [v.error_code for v in audit.result(junk).results] == ["bad_request"] * 2
    assert [v.error_code for v in audit.result(lost).results] == ["internal"] * 2
    # A worker that knows the version may come yet: until then it is uncounted, and nobody's.
    started.wait_for("batch_released", count=2, k=later, reason="later")
    assert [audit.state(later, field) for field in ("errors", "losses", "passes")] == ["", "", ""]
    client.set(keys.BatchKeys(later).payload, ours)
    assert [audit.rewards(k) for k in (later, unbelled, deleted)] == [[1.0, 0.0]] * 3
    audit.check_each_answered_once()


def test_a_batch_that_nobody_takes_is_answered_at_its_deadline(node: StartNode, audit: Audit) -> None:
    k = audit.submit(deadline_s=1.0)
    node(backend="unix:/nowhere/serve.sock", timing=HASTY)
    assert audit.result(k).status is ResultStatus.EXPIRED
    audit.check_each_answered_once()
