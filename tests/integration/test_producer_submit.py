"""The producer against a real server: submit, wait in every way, room, refusals."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from collimate_rl.errors import (
    BatchConflict,
    BatchGone,
    QueueError,
    QueueFull,
    RedisUnavailable,
    RunMisconfigured,
    Ungraded,
    UnsuitableServer,
)
from collimate_rl.protocol import GradeBatch, Timing, Verdict, infra_verdict, keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.codec import unpack_batch
from collimate_rl.queue.replies import Cancelled
from collimate_rl.queue.server import LocalRedis
from producer import BatchHandle, Producer, as_completed
from tests.fixtures.queue_batches import passed
from tests.fixtures.tiny_worker import TinyWorker, all_pass

WAIT_S = 60.0
SPEC = {"type": "unit_test", "tests": []}


@pytest.fixture
def producer(redis_url: str) -> Iterator[Producer]:
    with Producer(redis_url, run="run") as opened:
        yield opened


def send(producer: Producer, id: str | None = None, k: int = 2, **options: Any) -> BatchHandle:
    given: dict[str, Any] = {"template": "py", "candidates": [f"x = {i}\n" for i in range(k)], "spec": SPEC, "id": id}
    return producer.submit(**{**given, **options})


def test_submit_and_wait(producer: Producer, redis_url: str) -> None:
    with TinyWorker(redis_url):
        handle = send(producer, "one", 3)
        result = handle.result(WAIT_S)
    assert result.rewards() == [1.0, 1.0, 1.0]
    assert (result.run, result.id) == ("run", "one")
    assert handle.done()
    assert handle.result(0) is result


def test_a_result_that_came_along_is_not_asked_for(
    producer: Producer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger one is, from where it stands."""

    def wordy(batch: GradeBatch) -> list[Verdict]:
        words = "x" * 4096 if batch.id == "large" else ""
        return [replace(verdict, detail=words) for verdict in all_pass(batch)]

    def ask(k: str) -> Any:
        asked.append(k)
        return standing(k)

    asked: list[str] = []
    standing = producer.queue.result
    monkeypatch.setattr(producer.queue, "result", ask)
    with TinyWorker(redis_url, wordy):
        small, large = send(producer, "small"), send(producer, "large", 5)
        assert [len(handle.result(WAIT_S).rewards()) for handle in (small, large)] == [2, 5]
        assert asked == [large.k]


def test_the_batch_travels_whole(producer: Producer, redis_url: str) -> None:
    seen: list[GradeBatch] = []

    def answer(batch: GradeBatch) -> list[Verdict]:
        seen.append(batch)
        return all_pass(batch)

    with TinyWorker(redis_url, answer):
        send(
            producer,
            "whole",
            2,
            seed_mode="crn",
            base_seed="ab" * 32,
            timeout_seconds=7,
            case_timeout_s=1.5,
            egress={"mode": "none"},
            recovery="rerun",
            deadline_s=90.0,
            tags={"step": "3"},
        ).result(WAIT_S)
    (batch,) = seen
    assert (batch.seeds, batch.seed_mode, batch.base_seed) == (("ab" * 32,) * 2, "crn", "ab" * 32)
    assert (batch.timeout_seconds, batch.case_timeout_s, batch.deadline_s) == (7, 1.5, 90.0)
    assert (batch.egress, batch.recovery, batch.tags) == ({"mode": "none"}, "rerun", {"step": "3"})
    assert batch.producer == producer.name


def test_as_completed_yields_each_once_as_it_finishes(producer: Producer, redis_url: str) -> None:
    handles = [send(producer, f"b{n}") for n in range(40)]
    with TinyWorker(redis_url):
        finished = list(as_completed([*handles, handles[0]], timeout=WAIT_S))
    assert len(finished) == 40
    assert set(finished) == set(handles)


def test_as_completed_times_out_and_says_how_many(producer: Producer) -> None:
    with pytest.raises(TimeoutError, match="1 of 1 batches"):
        list(as_completed([send(producer)], timeout=0.05))


def test_a_wait_that_runs_out_leaves_the_batch_alone(producer: Producer, redis_url: str) -> None:
    handle = send(producer)
    with pytest.raises(TimeoutError, match=r"not answered within 0\.05"):
        handle.result(0.05)
    with TinyWorker(redis_url):
        assert handle.result(WAIT_S).rewards() == [1.0, 1.0]


def test_awaiting_in_loops_that_come_and_go(producer: Producer, redis_url: str) -> None:
    handle = send(producer)

    async def impatient() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_get(handle), 0.05)

    async def patient() -> list[float | None]:
        first, second = await asyncio.gather(_get(handle), _get(handle))
        assert first is second
        return (await handle).rewards()

    async def _get(handle: BatchHandle) -> Any:
        return await handle

    asyncio.run(impatient())
    asyncio.run(impatient())
    with TinyWorker(redis_url):
        assert asyncio.run(patient()) == [1.0, 1.0]
    assert asyncio.run(patient()) == [1.0, 1.0]


def test_a_loop_that_is_closed_under_a_waiting_handle_harms_nobody(producer: Producer, redis_url: str) -> None:
    handle = send(producer)
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        await handle

    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()  # with the task still in it
    with TinyWorker(redis_url):
        assert handle.result(WAIT_S).rewards() == [1.0, 1.0]
        assert send(producer).result(WAIT_S).rewards() == [1.0, 1.0]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_submitting_from_a_loop_waits_elsewhere(redis_url: str) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    async def main(producer: Producer, worker: TinyWorker) -> None:
        ticking = asyncio.create_task(tick())
        handles = [await producer.submit_async(template="py", candidates=["a"], spec=SPEC)]
        waiting = asyncio.create_task(producer.submit_async(template="py", candidates=["b"], spec=SPEC))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        worker.go()
        handles.append(await waiting)
        for handle in handles:
            assert (await handle).rewards() == [1.0]
        ticking.cancel()

    with Producer(redis_url, run="run", window=1) as producer, TinyWorker(redis_url, held=True) as worker:
        asyncio.run(main(producer, worker))
    assert ticks > 5


# identity


def test_the_same_id_twice_is_one_batch(producer: Producer, redis_url: str) -> None:
    first = send(producer, "same")
    assert send(producer, "same") is first
    with TinyWorker(redis_url) as worker:
        first.result(WAIT_S)
        again = send(producer, "same")
        assert again.done()
        assert again.result(0) == first.result(0)
        assert worker.graded == [("same", 0)]


def test_the_same_id_with_other_content_is_a_conflict(producer: Producer, redis_url: str) -> None:
    handle = send(producer, "same")
    with pytest.raises(BatchConflict, match="another id"):
        send(producer, "same", 3)
    with Producer(redis_url, run="run") as other, pytest.raises(BatchConflict):
        send(other, "same", 3)
    with TinyWorker(redis_url):
        assert handle.result(WAIT_S).rewards() == [1.0, 1.0]
    with pytest.raises(BatchConflict):
        send(producer, "same", 3)


def test_a_new_epoch_grades_anew(producer: Producer, redis_url: str) -> None:
    with TinyWorker(redis_url) as worker:
        send(producer, "x").result(WAIT_S)
        with Producer(redis_url, run="run", epoch=1) as later:
            assert send(later, "x", 3).result(WAIT_S).epoch == 1
        assert worker.graded == [("x", 0), ("x", 1)]


def test_two_producers_of_a_run_share_a_batch(producer: Producer, redis_url: str) -> None:
    with Producer(redis_url, run="run") as other:
        handles = [send(producer, "shared"), send(other, "shared")]
        with TinyWorker(redis_url) as worker:
            for handle in handles:
                assert handle.result(WAIT_S).rewards() == [1.0, 1.0]
            assert worker.graded == [("shared", 0)]


# room


def test_the_window_blocks_or_raises(redis_url: str) -> None:
    with Producer(redis_url, run="run", window=2) as producer, Producer(redis_url, run="run", window=2) as other:
        first = [send(producer), send(other)]
        for one in (producer, other):
            with pytest.raises(QueueFull, match="its window is 2"):
                send(one, block=False)
        got: list[BatchHandle] = []
        thread = threading.Thread(target=lambda: got.append(send(producer)))
        thread.start()
        time.sleep(0.1)
        assert not got
        with TinyWorker(redis_url):
            thread.join(WAIT_S)
            for handle in [*first, *got]:
                handle.result(WAIT_S)
        assert len(got) == 1


def test_waiting_for_room_ends_at_the_batchs_deadline(redis_url: str) -> None:
    with Producer(redis_url, run="run", window=1) as producer:
        send(producer)
        with pytest.raises(TimeoutError, match=r"no room came within 0\.2 s"):
            send(producer, deadline_s=0.2)


def test_a_full_queue_is_told(redis_url: str) -> None:
    with Producer(redis_url, run="run", depth=1) as producer:
        send(producer)
        with pytest.raises(QueueFull, match="1 unanswered batches"):
            send(producer)


# refusals


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"candidates": []}, "1 to 1,024 candidates, not 0"),
        ({"candidates": ["x"] * 10_000}, "not 10,000"),
        ({"candidates": ["x" * ((1 << 20) + 1)]}, "candidate 0 has 1,048,577 bytes"),
        ({"seed_mode": "crn", "base_seed": "short"}, "64 hex"),
        ({"seeds": ["zz", None]}, "no seed"),
        ({"spec": "no JSON"}, "spec is not JSON"),
        ({"spec": {"type": object()}}, "not plain JSON"),
        ({"spec": {"kind": "x"}}, '"type" is needed'),
        ({"id": "no name!"}, "is no name"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"template": ""}, "template is empty"),
    ],
)
def test_what_is_out_of_bounds_is_refused_before_anything_is_sent(
    producer: Producer, redis_url: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        send(producer, **options)
    assert told in str(caught.value)
    client = connect_commands(redis_url)
    assert client.keys("*") == []
    client.close()


def test_a_template_that_no_living_node_has_is_refused_and_the_list_told(producer: Producer, redis_url: str) -> None:
    client = connect_commands(redis_url)
    queue = BatchQueue(client)
    queue.beat("n1", {"templates": ["py", "python"]})
    queue.beat("n2", {"templates": ["numpy"]})
    queue.beat("n3", {"failed_templates": {"cobol": "no module named cobol"}})
    send(producer, template="numpy")
    failed = r"\(on node n3 it failed: no module named cobol\); there are: numpy, py, python"
    with pytest.raises(RunMisconfigured, match=failed) as caught:
        send(producer, template="cobol")
    assert caught.value.error_code == "no_template"
    queue.beat("n4", {"templates": ["cobol"]})
    send(producer, template="cobol")
    client.close()


def test_without_heartbeats_any_template_is_taken(producer: Producer) -> None:
    send(producer, template="whatever")


def test_redis_down_at_submit_is_told_within_a_bounded_time() -> None:
    with Producer("unix:/nowhere/redis.sock", run="run") as producer, pytest.raises(RedisUnavailable):
        send(producer)
    with Producer("redis://127.0.0.1:1/0", run="run") as producer, pytest.raises(RedisUnavailable):
        send(producer)


def test_an_evicting_server_is_refused_at_submit() -> None:
    with (
        LocalRedis(options=(("maxmemory-policy", "allkeys-lru"),)) as server,
        Producer(server.url, run="run") as producer,
        pytest.raises(UnsuitableServer, match="noeviction"),
    ):
        send(producer)


# endings


def test_cancel(producer: Producer, redis_url: str) -> None:
    handle = send(producer)
    assert handle.cancel() is Cancelled.ANSWERED
    result = handle.result(WAIT_S)
    assert [v.error_code for v in result.results] == ["cancelled"] * 2
    handles = [send(producer), send(producer)]
    assert producer.cancel_run() == 2
    for handle in handles:
        with pytest.raises(Ungraded):
            handle.result(WAIT_S).rewards()


def test_infra_answers_and_their_resubmission(producer: Producer, redis_url: str) -> None:
    failing = True

    def answer(batch: GradeBatch) -> list[Verdict]:
        return [
            infra_verdict(i, "sandbox_lost") if (failing and "1" in code) or (failing and "3" in code) else passed(i)
            for i, code in enumerate(batch.candidates)
        ]

    with TinyWorker(redis_url, answer) as worker:
        handle = send(producer, "flaky", 4, seed_mode="crn")
        assert handle.result(WAIT_S).rewards("none") == [1.0, None, 1.0, None]
        failing = False
        again = producer.resubmit(handle)
        assert again.result(WAIT_S).rewards() == [1.0, 1.0]
        assert again.batch.candidates == (handle.batch.candidates[1], handle.batch.candidates[3])
        assert again.batch.seeds == (handle.batch.seeds[1], handle.batch.seeds[3])
        assert producer.resubmit(handle).id == again.id
        assert len(worker.graded) == 2
        assert producer.resubmit(handle, infra_only=False, id="all").result(WAIT_S).rewards() == [1.0] * 4
        with pytest.raises(ValueError, match="no infra-flagged candidate"):
            producer.resubmit(again)


def test_an_overdue_batch_is_answered_without_any_worker_or_janitor(redis_url: str) -> None:
    with Producer(redis_url, run="run") as producer:
        result = send(producer, deadline_s=0.2).result(WAIT_S)
    assert [v.error_code for v in result.results] == ["expired"] * 2
    assert result.status.value == "expired"


def test_a_result_that_is_gone_is_told(producer: Producer, redis_url: str) -> None:
    client = connect_commands(redis_url)
    with TinyWorker(redis_url):
        handle = send(producer, "old")
        handle.result(WAIT_S)
    client.delete(keys.BatchKeys(handle.k).done)
    with pytest.raises(BatchGone, match="its result is gone"):
        send(producer, "old").result(WAIT_S)
    client.set(keys.BatchKeys(handle.k).done, b"\xc1")
    with pytest.raises(QueueError):
        send(producer, "old").result(WAIT_S)
    client.close()


def test_a_closed_producer_lets_nobody_wait(redis_url: str) -> None:
    producer = Producer(redis_url, run="run")
    handle = send(producer)
    producer.close()
    producer.close()
    with pytest.raises(QueueError, match="closed"):
        handle.result(WAIT_S)
    with pytest.raises(QueueError, match="closed"):
        send(producer)
    assert not [t for t in threading.enumerate() if t.name.startswith("producer-")]


def test_payloads_are_messages(producer: Producer, redis_url: str) -> None:
    handle = send(producer, "payload")
    client = connect_commands(redis_url)
    raw = client.get(keys.BatchKeys(handle.k).payload)
    assert unpack_batch(raw) == handle.batch  # type: ignore[arg-type]
    client.close()


QUICK = Timing(producer_lease_ms=900)


def test_a_restarted_producer_waits_for_its_name_and_takes_up_where_it_stopped(redis_url: str) -> None:
    first = Producer(redis_url, run="run", name="rank0", timing=QUICK)
    handle = send(first, "kept")
    reader = first._reader
    assert reader is not None
    reader.stop()  # as a crash would: no lease is given back
    with TinyWorker(redis_url) as worker:
        with Producer(redis_url, run="run", name="rank0", timing=QUICK) as second:
            assert send(second, "kept").result(WAIT_S).rewards() == [1.0, 1.0]
        assert worker.graded == [("kept", 0)]
    assert not handle.done()
    first.close()


def test_a_name_that_lives_is_refused(redis_url: str) -> None:
    with Producer(redis_url, run="run", name="rank0", timing=QUICK) as first:
        send(first)
        with (
            Producer(redis_url, run="run", name="rank0", timing=QUICK) as second,
            pytest.raises(QueueError, match="a living process holds the producer name"),
        ):
            send(second)


def test_a_producer_that_lost_its_name_stops(redis_url: str) -> None:
    client = connect_commands(redis_url)
    with Producer(redis_url, run="run", name="rank0", timing=QUICK) as producer:
        handle = send(producer)
        client.set(keys.lease("producer:run:rank0"), "somebody else")
        with pytest.raises(QueueError, match="another process took the producer name"):
            handle.result(WAIT_S)
        with pytest.raises(QueueError, match="another process took the producer name"):
            send(producer)
    client.close()


def test_read_results_are_acknowledged_and_trimmed(producer: Producer, redis_url: str) -> None:
    client = connect_commands(redis_url)
    with TinyWorker(redis_url):
        for _ in range(3):
            send(producer).result(WAIT_S)
    stream, end = keys.results("run", producer.name), time.monotonic() + WAIT_S
    while client.xlen(stream):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert client.get(keys.cursor("run", producer.name)) is not None
    client.close()
