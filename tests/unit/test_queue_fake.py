"""The scripts' logic on fakeredis: quick, no server. What crashes and blocking reads do is for real servers."""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest

from collimate_rl.protocol import ResultStatus, infra_verdict, keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.codec import unpack_batch
from collimate_rl.queue.janitor import QueueJanitor
from collimate_rl.queue.replies import Buried, Cancelled, Claimed, Mended, Mode, Published, Renewed, Submitted, Written
from tests.fixtures.queue_batches import bells, lapse, make_batch, overdue, passed, put, settle, take, warp


@pytest.fixture
def queue() -> Iterator[BatchQueue]:
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    yield BatchQueue(client)
    client.close()


def test_from_submit_to_answer(queue: BatchQueue) -> None:
    batch = make_batch(k=3)
    k = put(queue, batch)
    put(queue, batch, Submitted.SAME)
    grant = take(queue, k)
    assert unpack_batch(grant.payload) == batch
    assert queue.claim(k, "o2", "w2", "n2").word is Claimed.BUSY
    assert queue.renew(grant.hold).word is Renewed.OK
    assert queue.verdict(grant.hold, passed(0)) is Written.ACCEPTED
    assert queue.publish(grant.hold).word is Published.MISSING
    queue.verdict(grant.hold, passed(1, 0.5))
    assert queue.publish(grant.hold, [infra_verdict(2, "draining")]).word is Published.OK
    result = queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.PARTIAL
    assert result.rewards("none") == [1.0, 0.5, None]
    put(queue, batch, Submitted.DONE)


def test_a_lost_owner_is_taken_over_and_fenced(queue: BatchQueue) -> None:
    k = put(queue, make_batch())
    first = take(queue, k)
    lapse(queue, k)
    assert queue.mend(k) is Mended.SETTLING
    settle(queue)
    assert queue.mend(k) is Mended.RELEASED
    second = take(queue, k, "o2", "w2")
    assert queue.verdict(first.hold, passed(0)) is Written.FENCED
    assert second.cautious
    assert queue.bury("n1", "w2").word is Buried.RELEASED


def test_releases_and_endings(queue: BatchQueue) -> None:
    k = put(queue, make_batch())
    queue.release(take(queue, k).hold, Mode.LATER)
    assert queue.mend(k) is Mended.WAITING
    warp(queue, 30_001, k)
    assert queue.mend(k) is Mended.RUNG
    overdue(queue, k)
    assert queue.mend(k) is Mended.ANSWERED
    assert queue.cancel(k) is Cancelled.DONE
    assert queue.cancel(put(queue, make_batch())) is Cancelled.ANSWERED


def test_a_janitors_pass_bumps_what_is_listed_and_mends_the_rest(queue: BatchQueue) -> None:
    listed, lost, owned = (put(queue, make_batch()) for _ in range(3))
    take(queue, owned)
    queue.client.lrem(keys.rq_queue("grade"), 0, f"{lost}-1")
    warp(queue, 15_000, listed, lost, owned)
    queue.client.lrem(keys.rq_queue("grade"), 0, f"{owned}-1")
    janitor = QueueJanitor(queue, "j1", clock=lambda: 0.0)
    done = janitor.run_once()
    assert (done.led, done.bumped, dict(done.mended)) == (True, 1, {Mended.LOOK: 1, Mended.SETTLING: 1})
    assert not QueueJanitor(queue, "j2").run_once().led
    janitor.resign()
    warp(queue, 5_000, lost, owned)
    settle(queue)
    done = QueueJanitor(queue, "j2").run_once()
    assert dict(done.mended) == {Mended.RUNG: 1, Mended.RELEASED: 1}
    assert set(bells(queue.client)) == {f"{listed}-1", f"{lost}-2", f"{owned}-2"}


def test_one_broken_batch_does_not_stop_the_janitor(queue: BatchQueue) -> None:
    broken, fine = put(queue, make_batch()), put(queue, make_batch())
    queue.client.delete(keys.BatchKeys(broken).state, keys.rq_queue("grade"))
    queue.client.set(keys.BatchKeys(broken).state, "not ours")
    queue.client.zadd(keys.pending("grade"), {broken: 1, fine: 2})
    done = QueueJanitor(queue, "j").run_once()
    assert (done.broken, dict(done.mended)) == (1, {Mended.LOOK: 1})
    assert QueueJanitor(queue, "j").run_once().broken == 0  # not again at once
