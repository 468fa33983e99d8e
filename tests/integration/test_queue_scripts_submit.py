"""submit and cancel, on both servers: identity, room, askers, what an unanswered batch leaves behind."""

from __future__ import annotations

import dataclasses

import pytest

from collimate_rl.errors import QueueError
from collimate_rl.protocol import ResultStatus, content_hash, infra_verdict, keys
from collimate_rl.queue import codec
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Cancelled, Claimed, Published, Submitted
from tests.fixtures.queue_batches import (
    bells,
    key_of,
    lapse,
    make_batch,
    now_ms,
    overdue,
    passed,
    put,
    state,
    take,
    warp,
)


def finish(queue: BatchQueue, k: str) -> None:
    grant = take(queue, k)
    for index in range(codec.unpack_batch(grant.payload).candidates.__len__()):
        queue.verdict(grant.hold, passed(index))
    assert queue.publish(grant.hold).word is Published.OK


def test_a_batch_is_stored_pending_and_rung_in_one_step(each_queue: BatchQueue) -> None:
    queue, batch = each_queue, make_batch(k=3)
    k = put(queue, batch)
    assert codec.unpack_batch(queue.client.get(keys.BatchKeys(k).payload)) == batch  # type: ignore[arg-type]
    assert bells(queue.client) == [f"{k}-1"]
    assert queue.depth() == 1
    assert queue.inflight("run") == [k]
    assert queue.client.smembers(keys.BatchKeys(k).askers) == {b"p"}
    kept = state(queue.client, k)
    assert (kept["status"], kept["n"], kept["fence"], kept["rings"]) == ("open", "3", "0", "1")
    assert queue.client.sismember("rq:queues", "rq:queue:grade")


def test_a_bell_is_an_rq_job_that_rq_reads(each_queue: BatchQueue) -> None:
    from rq.job import Job

    from collimate_rl.queue.rq_edge import JOB_FUNCTION, MsgpackSerializer

    k = put(each_queue, make_batch(id="x-1"))
    job = Job.fetch(f"{k}-1", connection=each_queue.client, serializer=MsgpackSerializer)
    assert (job.func_name, job.args, job.kwargs) == (JOB_FUNCTION, [k], {})
    assert (job.timeout, job.result_ttl, job.failure_ttl, job.origin) == (-1, 60, 3600, "grade")
    assert job.description == "run/x-1 #1"
    assert 0 < each_queue.client.ttl(f"rq:job:{k}-1") <= 86400


def test_bells_ring_at_the_back_first_come_first_served(each_queue: BatchQueue) -> None:
    ks = [put(each_queue, make_batch()) for _ in range(3)]
    assert bells(each_queue.client) == [f"{k}-1" for k in ks]


def test_the_same_batch_again_changes_nothing_and_keeps_the_stored_seeds(each_queue: BatchQueue) -> None:
    first = make_batch(id="same", seed_mode="crn", seeds=("ab" * 32,) * 2)
    k = put(each_queue, first)
    again = dataclasses.replace(first, seeds=("cd" * 32,) * 2, deadline_s=5.0, tags={"try": "2"}, recovery="rerun")
    put(each_queue, again, Submitted.SAME)
    assert bells(each_queue.client) == [f"{k}-1"]
    assert codec.unpack_batch(take(each_queue, k).payload).seeds == ("ab" * 32,) * 2


def test_same_tells_the_stored_deadline(each_queue: BatchQueue) -> None:
    batch = make_batch(deadline_s=100.0)
    k = put(each_queue, batch)
    warp(each_queue, 40_000, k)
    reply = each_queue.submit(k, batch, content_hash(batch))
    assert reply.word is Submitted.SAME
    assert 0 < reply.number <= 60_000


@pytest.mark.parametrize(
    "change",
    [
        {"candidates": ("x = 1\n", "x = 2\n")},
        {"spec": '{"type": "unit_test", "tests": [1]}'},
        {"template": "python"},
        {"timeout_seconds": 31},
        {"case_timeout_s": 1.0},
        {"seed_mode": "crn"},
        {"seed_mode": "crn", "base_seed": "ab" * 32},
        {"egress": {"mode": "none"}},
    ],
)
def test_other_content_under_the_same_id_is_a_conflict_and_writes_nothing(
    each_queue: BatchQueue, change: dict[str, object]
) -> None:
    batch = make_batch(id="one")
    k = put(each_queue, batch)
    before = state(each_queue.client, k)
    put(each_queue, make_batch(id="one", **change), Submitted.CONFLICT)
    assert state(each_queue.client, k) == before
    finish(each_queue, k)
    put(each_queue, make_batch(id="one", **change), Submitted.CONFLICT)


def test_explicit_seeds_are_content_and_drawn_ones_are_not(each_queue: BatchQueue) -> None:
    seeds = ("ab" * 32, "cd" * 32)
    batch = make_batch(id="seeded", seeds=seeds)
    k = key_of(batch)
    assert each_queue.submit(k, batch, content_hash(batch, seeds)).word is Submitted.NEW
    assert each_queue.submit(k, batch, content_hash(batch, seeds)).word is Submitted.SAME
    other = make_batch(id="seeded", seeds=seeds[::-1])
    assert each_queue.submit(k, other, content_hash(other, seeds[::-1])).word is Submitted.CONFLICT


def test_a_new_epoch_is_a_new_life(each_queue: BatchQueue) -> None:
    old = put(each_queue, make_batch(id="e", epoch=1))
    finish(each_queue, old)
    new = put(each_queue, make_batch(id="e", epoch=2, candidates=("other",), seeds=(None,)))
    assert new != old
    assert each_queue.result(new) is None
    finish(each_queue, new)
    result = each_queue.result(new)
    assert result is not None
    assert (result.epoch, len(result.results)) == (2, 1)


def test_done_is_told_and_the_result_waits(each_queue: BatchQueue) -> None:
    batch = make_batch()
    k = put(each_queue, batch)
    finish(each_queue, k)
    put(each_queue, batch, Submitted.DONE)
    result = each_queue.result(k)
    assert result is not None
    assert result.rewards() == [1.0, 1.0]
    assert bells(each_queue.client) == [f"{k}-1"]
    assert each_queue.depth() == 0


def test_every_asker_gets_the_result_once(each_queue: BatchQueue) -> None:
    batch = make_batch(id="shared")
    k = put(each_queue, batch)
    for name in ("p", "q", "q"):
        put(each_queue, dataclasses.replace(batch, producer=name), Submitted.SAME)
    finish(each_queue, k)
    for name in ("p", "q"):
        entries = each_queue.client.xrange(keys.results("run", name))
        assert [fields[b"k"] for _, fields in entries] == [k.encode()]  # type: ignore[union-attr]
        assert 0 < each_queue.client.ttl(keys.results("run", name)) <= 86400


def test_full_by_the_queues_depth_and_window_by_the_runs(each_queue: BatchQueue) -> None:
    first = make_batch()
    put(each_queue, first, depth=1)
    assert put(each_queue, make_batch(), Submitted.FULL, depth=1)
    put(each_queue, make_batch(), Submitted.WINDOW, window=1)
    assert each_queue.depth() == 1
    put(each_queue, first, Submitted.SAME, depth=1, window=1)  # what is known needs no room
    put(each_queue, make_batch(run="other"), window=1)
    finish(each_queue, key_of(first))
    put(each_queue, make_batch(), window=1)
    assert each_queue.depth() == 2


def test_the_window_forgets_batches_whose_keys_have_expired(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    each_queue.client.zadd(keys.inflight("run"), {k: now_ms(each_queue) - 1})
    put(each_queue, make_batch(), window=1)


def test_nothing_expires_before_the_deadline_and_a_day(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(deadline_s=100.0))
    names = keys.BatchKeys(k)
    for key in (names.payload, names.state, names.askers):
        assert 86_400 < each_queue.client.ttl(key) <= 86_500
    finish(each_queue, k)
    for key in (names.payload, names.state, names.verdicts, names.done, names.askers):
        assert 86_000 < each_queue.client.ttl(key) <= 86_400


def test_the_largest_group(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=1024))
    grant = take(each_queue, k)
    infra = [infra_verdict(index, "at_capacity") for index in range(1, 1024)]
    each_queue.verdict(grant.hold, passed(0))
    assert each_queue.publish(grant.hold, infra).word is Published.OK
    result = each_queue.result(k)
    assert result is not None
    assert [v.index for v in result.results] == list(range(1024))


def test_cancel_of_an_unowned_batch_answers_it(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    assert each_queue.cancel(k) is Cancelled.ANSWERED
    assert each_queue.cancel(k) is Cancelled.DONE
    result = each_queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.CANCELLED
    assert [(v.reward, v.error_code) for v in result.results] == [(None, "cancelled")] * 2
    assert result.claimed_at is None
    assert each_queue.claim(k, "o", "w", "n").word is Claimed.DONE
    assert each_queue.client.xlen(keys.results("run", "p")) == 1


def test_cancel_of_an_owned_batch_asks_and_keeps_what_is_judged(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    grant = take(each_queue, k)
    each_queue.verdict(grant.hold, passed(1))
    assert each_queue.cancel(k) is Cancelled.ASKED
    assert each_queue.cancel(k) is Cancelled.ASKED
    assert each_queue.renew(grant.hold).cancelled
    assert each_queue.publish(grant.hold, fill="cancelled").word is Published.OK
    result = each_queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.CANCELLED
    assert [(v.reward, v.error_code) for v in result.results] == [(None, "cancelled"), (1.0, None)]


def test_cancel_when_the_owner_is_silent_answers_at_once(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    grant = take(each_queue, k)
    lapse(each_queue, k)
    assert each_queue.cancel(k) is Cancelled.ANSWERED
    assert each_queue.publish(grant.hold, fill="internal").word is Published.ALREADY


def test_cancel_of_an_unknown_batch(each_queue: BatchQueue) -> None:
    assert each_queue.cancel("0" * 32) is Cancelled.GONE


def test_a_claim_after_the_deadline_answers(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    overdue(each_queue, k)
    assert each_queue.claim(k, "o", "w", "n").word is Claimed.DONE
    result = each_queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.EXPIRED


def test_a_script_refuses_bad_arguments_before_it_writes(each_queue: BatchQueue) -> None:

    from collimate_rl.queue import lua

    before = each_queue.client.keys("*")
    for name in lua.SCRIPTS:
        run = lua.Bound(each_queue.client, name, each_queue.timing)
        with pytest.raises(ValueError, match="argument"):
            run()
        with pytest.raises(ValueError, match="argument"):
            run(*["\n bad \0"] * 14)
    with pytest.raises(ValueError, match="from 1 to 1024"):
        lua.Bound(each_queue.client, "submit", each_queue.timing)(
            "0" * 32, "q", "r", "i", 0, "p", "0" * 64, 1025, 1, "1.0", 1, 1, "", "x"
        )
    assert each_queue.client.keys("*") == before


@pytest.mark.parametrize("broken", ["state", "verdicts", "pending", "results", "list"])
def test_a_key_of_another_type_is_refused_before_any_write(each_queue: BatchQueue, broken: str) -> None:
    queue = each_queue
    k = put(queue, make_batch())
    grant = take(queue, k)
    names = keys.BatchKeys(k)
    key = {
        "state": names.state,
        "verdicts": names.verdicts,
        "pending": keys.pending("grade"),
        "results": keys.results("run", "p"),
        "list": keys.rq_queue("grade"),
    }[broken]
    queue.client.delete(key)
    queue.client.set(key, "not ours") if broken != "state" else queue.client.rpush(key, "x")
    before = {raw: queue.client.dump(raw) for raw in queue.client.keys("*")}
    for call in (
        lambda: queue.publish(grant.hold, fill="internal"),
        lambda: queue.claim(k, "o2", "w2", "n2"),
        lambda: queue.mend(k),
        lambda: queue.cancel(k),
    ):
        with pytest.raises(QueueError, match="not as this program writes them"):
            call()
    assert {raw: queue.client.dump(raw) for raw in queue.client.keys("*")} == before
