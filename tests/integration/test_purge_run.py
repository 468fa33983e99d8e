"""A purged run leaves nothing behind, and touches no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from collimate_rl.errors import BatchGone
from collimate_rl.protocol import infra_verdict, keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.purging import PurgedRun, purge_run
from collimate_rl.queue.replies import Buried, Claimed, Mode, Purged, Renewed, Submitted, Written
from producer import Producer
from tests.fixtures.model_store import Dump
from tests.fixtures.queue_batches import key_of, make_batch, passed, put, take

SPEC = {"type": "unit_test", "tests": []}
SHARED = {"rq:queues", keys.rounds("grade"), keys.rounds("other")}
"""What is kept of the queue itself."""


def everything(queue: BatchQueue) -> dict[str, Any]:
    """Every key that holds anything, with what it holds, in an order of its own."""
    values = Dump(queue.client).values
    return {
        name: sorted(map(repr, value)) if isinstance(value, list) else value
        for name, value in values.items()
        if name not in SHARED and value != []
    }


def fill(queue: BatchQueue, run: str) -> list[str]:
    """Batches of the run in every state, on two queues and in two epochs; returns their ks."""
    other = BatchQueue(queue.client, "other")

    def make(id: str, at: BatchQueue = queue, **fields: Any) -> str:
        return put(at, make_batch(id=id, run=run, **fields))

    ks = [make("open"), make("elsewhere", other), make("epoch", epoch=3)]
    ks.append(make("done"))
    grant = take(queue, ks[-1], worker=f"{run}-w1")
    queue.verdict(grant.hold, passed(0))
    queue.publish(grant.hold, [infra_verdict(1, "draining")])
    ks.append(make("released"))
    grant = take(queue, ks[-1], worker=f"{run}-w2")
    queue.note(grant.hold, 0, b"session")
    queue.cases(grant.hold, b"cases")
    queue.release(grant.hold, Mode.LATER)
    ks.append(make("poison", k=1))
    for turn in range(3):
        grant = take(queue, ks[-1], owner=f"o{turn}", worker=f"{run}-w3")
        queue.mark(grant.hold, 0)
        assert queue.bury("n1", f"{run}-w3").word in (Buried.RELEASED, Buried.ANSWERED)
    queue.client.set(keys.cursor(run, "p"), "0-1")
    return ks


def test_nothing_is_left_of_it_and_no_other_run_is_touched(each_queue: BatchQueue) -> None:
    fill(each_queue, "kept")
    kept = everything(each_queue)
    ks = fill(each_queue, "gone")
    held = put(each_queue, make_batch(id="running", run="gone"))
    grant = take(each_queue, held, worker="gone-w4")
    each_queue.client.lrem(keys.rq_queue("grade"), 1, f"{held}-1")
    each_queue.client.lpush(keys.rq_intermediate("grade"), f"{held}-1")
    assert each_queue.purge(held, "kept") is Purged.OTHER
    purged = purge_run(each_queue, "gone", wait_s=0.0)
    assert purged == PurgedRun(batches=len(ks) + 1, streams=2, cut_short=1)
    assert everything(each_queue) == kept
    for name in ("grade", "other"):
        told = b" ".join(each_queue.client.hvals(keys.rounds(name)))  # type: ignore[arg-type]
        assert not [k for k in (*ks, held) if k.encode() in told]
    assert each_queue.renew(grant.hold).word is Renewed.FENCED
    assert each_queue.verdict(grant.hold, passed(0)) is Written.FENCED
    assert each_queue.claim(held, "o", "w", "n").word is Claimed.GONE
    assert each_queue.purge(held, "gone") is Purged.GONE
    assert purge_run(each_queue, "gone", wait_s=0.0) == PurgedRun(batches=0, streams=0, cut_short=0)
    batch = make_batch(id="open", run="gone")
    assert put(each_queue, batch, Submitted.NEW) == key_of(batch)


def test_an_owner_may_stop_first(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(id="running", run="gone"))
    grant = take(each_queue, k)
    pauses: list[float] = []

    def owner_stops(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            assert each_queue.renew(grant.hold).cancelled
            each_queue.publish(grant.hold, fill="cancelled")

    purged = purge_run(each_queue, "gone", wait_s=60.0, sleep=owner_stops)
    assert purged == PurgedRun(batches=1, streams=1, cut_short=0)
    assert len(pauses) == 2
    assert everything(each_queue) == {}


@pytest.fixture
def producer(redis_url: str) -> Iterator[Producer]:
    with Producer(redis_url, run="run", name="rank0") as opened:
        yield opened


def test_a_producer_purges_its_own_run(producer: Producer, redis_url: str) -> None:
    client = connect_commands(redis_url)
    queue = BatchQueue(client)

    def send(id: str) -> Any:
        return producer.submit(template="py", candidates=["x = 1"], spec=SPEC, id=id)

    answered, waiting, owned = send("answered"), send("waiting"), send("owned")
    grant = take(queue, answered.k)
    queue.verdict(grant.hold, passed(0))
    queue.publish(grant.hold)
    assert answered.result(60).rewards() == [1.0]
    take(queue, owned.k, worker="w2")
    threads = threading.active_count()
    assert producer.purge_run(wait_s=1.0).batches == 3
    assert threading.active_count() == threads
    assert waiting.result(0).status.value == "cancelled"
    with pytest.raises(BatchGone, match="purged"):
        owned.result(0)
    assert set(everything(queue)) == {"col:lease:producer:run:rank0"}
    again = send("answered")
    grant = take(queue, again.k)
    queue.verdict(grant.hold, passed(0, 0.5))
    queue.publish(grant.hold)
    assert again.result(60).rewards() == [0.5]
    client.close()
