"""claim, renew, note, mark, verdict, cases, publish, release on both servers: the owner's contract table."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from collimate_rl.errors import UnknownVersion
from collimate_rl.protocol import ResultStatus, Verdict, infra_verdict, keys
from collimate_rl.queue import codec, lua
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.endings import Packed, end_with, write_together
from collimate_rl.queue.replies import (
    Claimed,
    Hold,
    Mended,
    Mode,
    Published,
    Released,
    Renewed,
    Submitted,
    Written,
)
from tests.fixtures.queue_batches import (
    bells,
    lapse,
    make_batch,
    overdue,
    passed,
    put,
    settle,
    state,
    take,
    warp,
)


def result_of(queue: BatchQueue, k: str) -> list[tuple[float | None, str | None]]:
    result = queue.result(k)
    assert result is not None
    return [(v.reward, v.error_code) for v in result.results]


# claim


def test_a_claim_hands_out_what_there_is(each_queue: BatchQueue) -> None:
    batch = make_batch(deadline_s=50.0)
    k = put(each_queue, batch)
    warp(each_queue, 2_000, k)
    grant = take(each_queue, k, "o1", "w1", "n1")
    assert grant.hold == Hold(k, "o1", 1)
    assert codec.unpack_batch(grant.payload) == batch
    assert grant.lease_s == 12.0
    assert 0 < grant.deadline_in_s <= 48.0
    assert grant.queue_ms >= 2_000
    assert (grant.verdicts, grant.ledger, grant.blame) == ({}, {}, {})
    assert (grant.cautious, grant.losses, grant.errors, grant.passes) == (False, 0, 0, 0)
    assert each_queue.owned("n1") == {"w1": k}


def test_the_same_owner_gets_the_same_answer_again(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    first = take(each_queue, k)
    each_queue.verdict(first.hold, passed(1))
    again = take(each_queue, k)
    assert again.hold == first.hold
    assert set(again.verdicts) == {1}
    assert codec.unpack_verdict(again.verdicts[1]) == passed(1)


def test_a_living_lease_is_busy_for_others_also_of_the_same_worker(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    take(each_queue, k, "o1", "w1")
    for owner, worker in (("o2", "w1"), ("o3", "w3")):
        reply = each_queue.claim(k, owner, worker, "n1")
        assert reply.word is Claimed.BUSY
        assert 0 < reply.busy_ms <= 12_000
    assert state(each_queue.client, k)["owner"] == "o1"


def test_an_expired_lease_is_busy_until_the_clock_is_settled_then_taken(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    first = take(each_queue, k, "o1", "w1")
    lapse(each_queue, k)
    assert each_queue.claim(k, "o2", "w2", "n2").word is Claimed.BUSY
    settle(each_queue)
    second = take(each_queue, k, "o2", "w2", "n2")
    assert second.hold.fence == first.hold.fence + 1
    assert second.losses == 1
    assert each_queue.owned("n1") == {}
    assert each_queue.owned("n2") == {"w2": k}


def test_an_owner_that_lost_its_lease_can_claim_again_as_a_new_fence(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    take(each_queue, k, "o1")
    lapse(each_queue, k)
    settle(each_queue)
    assert take(each_queue, k, "o1").hold.fence == 2


def test_what_is_unknown_is_gone(each_queue: BatchQueue) -> None:
    assert each_queue.claim("f" * 32, "o", "w", "n").word is Claimed.GONE


def test_a_lost_payload_is_handed_out_empty(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    each_queue.client.delete(keys.BatchKeys(k).payload)
    assert take(each_queue, k).payload == b""


def test_a_payload_that_is_no_message_can_still_be_answered(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    each_queue.client.set(keys.BatchKeys(k).payload, b"\xc1 no msgpack")
    grant = take(each_queue, k)
    assert each_queue.publish(grant.hold, fill="bad_request", detail="the payload cannot be read").word is Published.OK
    result = each_queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.FAILED
    assert [(v.error_code, v.detail) for v in result.results] == [("bad_request", "the payload cannot be read")] * 2


# renew


def test_renew_prolongs_even_late_while_nobody_took_over(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    lapse(each_queue, k)
    reply = each_queue.renew(hold)
    assert (reply.word, reply.lease_s, reply.cancelled) == (Renewed.OK, 12.0, False)
    assert each_queue.claim(k, "o2", "w2", "n2").word is Claimed.BUSY


def test_renew_is_fenced_after_a_takeover_and_by_any_other_fence(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    assert each_queue.renew(Hold(k, "o1", hold.fence + 1)).word is Renewed.FENCED
    assert each_queue.renew(Hold(k, "o2", hold.fence)).word is Renewed.FENCED
    lapse(each_queue, k)
    settle(each_queue)
    take(each_queue, k, "o2", "w2")
    assert each_queue.renew(hold).word is Renewed.FENCED


def test_renew_is_refused_thirty_seconds_past_the_deadline(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    overdue(each_queue, k, 20_000)
    reply = each_queue.renew(hold)
    assert reply.word is Renewed.OK
    assert reply.deadline_in_s < 0
    overdue(each_queue, k, 30_001)
    assert each_queue.renew(hold).word is Renewed.OVERDUE


# verdict


def test_a_verdict_is_written_once(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    assert each_queue.verdict(hold, passed(0, 0.5)) is Written.ACCEPTED
    assert each_queue.verdict(hold, passed(0, 0.5)) is Written.ACCEPTED
    assert each_queue.verdict(hold, passed(0, 1.0)) is Written.STANDS
    assert codec.unpack_verdict(take(each_queue, k).verdicts[0]).reward == 0.5


def test_a_fenced_owner_writes_no_verdict_but_may_repeat_one_that_stands(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    each_queue.verdict(hold, passed(0))
    lapse(each_queue, k)
    settle(each_queue)
    second = take(each_queue, k, "o2", "w2")
    assert each_queue.verdict(hold, passed(1)) is Written.FENCED
    assert each_queue.verdict(hold, passed(0)) is Written.ACCEPTED
    assert each_queue.verdict(hold, passed(0, 0.0)) is Written.STANDS
    assert set(second.verdicts) == {0}
    assert each_queue.verdict(second.hold, passed(1)) is Written.ACCEPTED


def test_a_verdict_late_after_release_or_answer_is_fenced(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    each_queue.release(hold, Mode.CLEAN)
    assert each_queue.verdict(hold, passed(0)) is Written.FENCED
    each_queue.cancel(k)
    assert each_queue.verdict(hold, passed(0)) is Written.FENCED
    assert each_queue.verdict(Hold("e" * 32, "o", 1), passed(0)) is Written.FENCED
    assert result_of(each_queue, k) == [(None, "cancelled")] * 2


def test_an_index_beyond_the_group_and_an_infra_answer_are_no_verdicts(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    with pytest.raises(ValueError, match="beyond the last candidate"):
        each_queue.verdict(hold, passed(2))
    with pytest.raises(ValueError, match="no verdict"):
        each_queue.verdict(hold, infra_verdict(0, "at_capacity"))


def test_of_verdicts_that_come_together_each_is_told_and_none_is_written_where_one_is_none(
    each_queue: BatchQueue,
) -> None:
    k = put(each_queue, make_batch(k=4))
    hold = take(each_queue, k).hold
    each_queue.verdict(hold, passed(1, 0.5))
    with pytest.raises(ValueError, match="beyond the last candidate"):
        write_together(each_queue, hold, packed(0, 4))
    assert each_queue.client.hkeys(keys.BatchKeys(k).verdicts) == [b"1"]
    assert write_together(each_queue, hold, packed(2, 1, 0)) == [Written.ACCEPTED, Written.STANDS, Written.ACCEPTED]
    lapse(each_queue, k)
    settle(each_queue)
    second = take(each_queue, k, owner="other")
    assert write_together(each_queue, hold, packed(0, 3)) == [Written.ACCEPTED, Written.FENCED]
    assert set(second.verdicts) == {0, 1, 2}


# note, mark, cases


def test_a_note_replaces_and_tells_what_it_replaced(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    assert each_queue.note(hold, 1, b"session-a")[:2] == (True, None)
    assert each_queue.note(hold, 1, b"session-a")[:2] == (True, None)
    assert each_queue.note(hold, 1, b"session-b")[:2] == (True, b"session-a")
    assert take(each_queue, k).ledger == {1: b"session-b"}
    each_queue.release(hold, Mode.CLEAN)
    assert each_queue.note(hold, 1, b"session-c")[:2] == (False, None)
    assert take(each_queue, k, "o2").ledger == {1: b"session-b"}


def test_a_refused_note_tells_whether_the_session_was_noted_before(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    assert each_queue.note(hold, 0, b"entry-a", "a", "n1") == (True, None, True)
    assert each_queue.note(hold, 0, b"entry-b", "b", "n1") == (True, b"entry-a", True)
    each_queue.release(hold, Mode.CLEAN)
    assert each_queue.note(hold, 0, b"entry-b", "b", "n1") == (False, None, True)
    assert each_queue.note(hold, 0, b"entry-c", "c", "n1") == (False, None, False)
    assert each_queue.note(hold, 0, b"entry-b", "b", "n2") == (False, None, False)
    sessions = keys.sessions("n1")
    assert each_queue.client.zrange(sessions, 0, -1) == [b"a", b"b"]
    assert each_queue.client.pttl(sessions) > 0
    with pytest.raises(ValueError, match="session and its node"):
        each_queue.note(hold, 0, b"entry", "s", "no node")


def test_marks_are_kept_in_cautious_batches_only_and_end_with_a_verdict(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    assert each_queue.mark(hold, 0)
    assert each_queue.client.hgetall(keys.BatchKeys(k).flight) == {}
    each_queue.bury("n1", "w1")
    second = take(each_queue, k, "o2")
    assert second.cautious
    assert each_queue.mark(second.hold, 0)
    assert each_queue.mark(second.hold, 0)
    assert set(each_queue.client.hgetall(keys.BatchKeys(k).flight)) == {b"0"}
    each_queue.verdict(second.hold, passed(0))
    assert each_queue.mark(second.hold, 0)
    assert each_queue.client.hgetall(keys.BatchKeys(k).flight) == {}
    assert not each_queue.mark(hold, 1)


def test_cases_are_stored_once(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    assert each_queue.stored_cases(k) is None
    assert each_queue.cases(hold, b"made first") == b"made first"
    assert each_queue.cases(hold, b"made later") == b"made first"
    each_queue.release(hold, Mode.CLEAN)
    assert each_queue.cases(hold, b"too late") is None
    assert each_queue.stored_cases(k) == b"made first"
    assert each_queue.cases(take(each_queue, k, "o2").hold, b"by the next") == b"made first"


# publish


def test_publish_needs_every_candidate(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=4))
    hold = take(each_queue, k).hold
    each_queue.verdict(hold, passed(2))
    assert each_queue.publish(hold, [infra_verdict(0, "draining")]) == (Published.MISSING, (1, 3))
    assert each_queue.result(k) is None
    assert each_queue.depth() == 1


def test_publish_once_and_for_all(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    verdicts = [
        passed(0, 0.25, seed="ab" * 32, seed_ack="off", node="n1", attempt=1, detail="é\ud800", output_tail=b"\xff\0"),
        Verdict(index=1, reward=0.0, outcome="timeout", flags=("slow",), truncated=True, exec_time_ms=2000.5),
    ]
    for verdict in verdicts:
        each_queue.verdict(hold, verdict)
    assert each_queue.publish(hold).word is Published.OK
    assert each_queue.publish(hold).word is Published.ALREADY
    result = each_queue.result(k)
    assert result is not None
    assert list(result.results) == verdicts
    assert (result.run, result.status, result.attempts, result.worker) == ("run", ResultStatus.GRADED, 1, "w1")
    assert result.submitted_at == 1_700_000_000.25
    assert result.claimed_at is not None
    assert result.claimed_at <= result.finished_at
    assert codec.unpack_result(codec.pack_result(result)) == result
    kept = state(each_queue.client, k)
    assert (kept["status"], kept["owner"], kept["fence"]) == ("done", "", "2")
    assert each_queue.owned("n1") == {}
    assert (each_queue.depth(), each_queue.inflight("run")) == (0, [])
    entries = each_queue.client.xrange(keys.results("run", "p"))
    assert [(f[b"k"], f[b"status"], f[b"epoch"]) for _, f in entries] == [(k.encode(), b"graded", b"0")]  # type: ignore[union-attr]
    assert [f[b"done"] for _, f in entries] == [each_queue.client.get(keys.BatchKeys(k).done)]  # type: ignore[union-attr]


@pytest.mark.parametrize("carried", [True, False])
def test_a_result_of_up_to_16_kib_goes_along_in_its_entry(each_queue: BatchQueue, carried: bool) -> None:
    k = put(each_queue, make_batch(k=4))
    hold = take(each_queue, k).hold
    for index in range(4):
        each_queue.verdict(hold, dataclasses.replace(passed(index), detail="x" * (3500 if carried else 4096)))
    each_queue.publish(hold)
    done: Any = each_queue.client.get(keys.BatchKeys(k).done)
    [(_, entry)] = each_queue.client.xrange(keys.results("run", "p"))  # type: ignore[misc]
    assert (len(done) <= 16_384) is carried
    assert entry.get(b"done") == (done if carried else None)


def test_infra_answers_make_it_partial_and_never_replace_a_verdict(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=3))
    hold = take(each_queue, k).hold
    each_queue.verdict(hold, passed(1))
    infra = [infra_verdict(i, "sandbox_lost", "gone", node="n1") for i in range(3)]
    assert each_queue.publish(hold, infra).word is Published.OK
    result = each_queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.PARTIAL
    assert list(result.results) == [infra[0], passed(1), infra[2]]


@pytest.mark.parametrize(
    ("fill", "status"),
    [
        ("expired", ResultStatus.EXPIRED),
        ("cancelled", ResultStatus.CANCELLED),
        ("internal", ResultStatus.FAILED),
        ("bad_request", ResultStatus.FAILED),
    ],
)
def test_fill_answers_the_rest(each_queue: BatchQueue, fill: str, status: ResultStatus) -> None:
    k = put(each_queue, make_batch(k=3))
    hold = take(each_queue, k).hold
    each_queue.verdict(hold, passed(0))
    assert each_queue.publish(hold, [infra_verdict(1, "draining")], fill=fill, detail="why").word is Published.OK
    result = each_queue.result(k)
    assert result is not None
    assert result.status is status
    assert [(v.reward, v.error_code) for v in result.results] == [(1.0, None), (None, "draining"), (None, fill)]
    assert result.results[2].detail == "why"


def test_publish_is_fenced(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    each_queue.verdict(hold, passed(0))
    lapse(each_queue, k)
    settle(each_queue)
    second = take(each_queue, k, "o2", "w2").hold
    each_queue.verdict(second, passed(1))
    assert each_queue.publish(hold).word is Published.FENCED
    assert each_queue.publish(second).word is Published.OK
    assert each_queue.publish(hold).word is Published.ALREADY
    assert each_queue.client.xlen(keys.results("run", "p")) == 1
    assert each_queue.publish(Hold("d" * 32, "o", 1)).word is Published.FENCED


def packed(*indices: int) -> list[Packed]:
    return [Packed.of(passed(index)) for index in indices]


def test_a_last_verdict_answers_the_batch_in_the_same_round_trip(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=2))
    hold = take(each_queue, k).hold
    each_queue.client.script_flush()  # as after a restart: the server knows neither script
    assert end_with(each_queue, hold, packed(0)) == ([Written.ACCEPTED], (Published.MISSING, (1,)))
    with pytest.raises(ValueError, match="no verdict"):
        Packed.of(infra_verdict(1, "draining"))
    with pytest.raises(ValueError, match="beyond the last candidate"):
        end_with(each_queue, hold, packed(1, 2))
    assert each_queue.result(k) is None
    for answered in (Published.OK, Published.ALREADY):  # sent again when the reply was lost
        assert end_with(each_queue, hold, packed(0, 1)) == ([Written.ACCEPTED] * 2, (answered, ()))
    assert result_of(each_queue, k) == [(1.0, None)] * 2
    assert each_queue.client.xlen(keys.results("run", "p")) == 1


def test_a_fenced_owners_last_verdict_answers_nothing(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=1))
    late = take(each_queue, k).hold
    lapse(each_queue, k)
    settle(each_queue)
    take(each_queue, k, owner="other")
    assert end_with(each_queue, late, packed(0)) == ([Written.FENCED], (Published.FENCED, ()))
    assert each_queue.result(k) is None


def test_a_result_of_a_later_version_is_told_apart(each_queue: BatchQueue) -> None:
    import msgpack

    k = "1" * 32
    each_queue.client.set(keys.BatchKeys(k).done, msgpack.packb({"v": 2}))
    with pytest.raises(UnknownVersion):
        each_queue.result(k)


# release


def test_a_clean_release_rings_at_the_front_and_counts_nothing(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    other = put(each_queue, make_batch())
    each_queue.client.delete(keys.rq_queue("grade"))
    each_queue.client.rpush(keys.rq_queue("grade"), f"{other}-1")
    hold = take(each_queue, k).hold
    assert each_queue.release(hold, Mode.CLEAN).word is Released.RELEASED
    assert bells(each_queue.client) == [f"{k}-2", f"{other}-1"]
    assert each_queue.owned("n1") == {}
    assert each_queue.renew(hold).word is Renewed.FENCED
    grant = take(each_queue, k, "o2", "w2")
    assert (grant.losses, grant.errors, grant.passes, grant.cautious) == (0, 0, 0, False)


def test_a_release_sent_again_answers_the_same_and_rings_once(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=3))
    hold = take(each_queue, k).hold
    for index in range(3):
        each_queue.note(hold, index, b"s%d:\0" % index)
    each_queue.verdict(hold, passed(1))
    first = each_queue.release(hold, Mode.CLEAN, drop=True)
    again = each_queue.release(hold, Mode.CLEAN, drop=True)
    assert first == again
    assert first.dropped == {0: b"s0:\0", 2: b"s2:\0"}
    assert len(bells(each_queue.client)) == 2
    grant = take(each_queue, k, "o2")
    assert grant.ledger == {1: b"s1:\0"}
    assert each_queue.release(hold, Mode.CLEAN).word is Released.FENCED
    assert each_queue.client.hget(keys.BatchKeys(k).state, "owner") == b"o2"


def test_a_fenced_release_touches_nothing(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    each_queue.note(hold, 0, b"s")
    before = state(each_queue.client, k)
    reply = each_queue.release(Hold(k, "o1", 7), Mode.ERROR, drop=True)
    assert (reply.word, reply.dropped) == (Released.FENCED, {})
    assert state(each_queue.client, k) == before
    assert take(each_queue, k).ledger == {0: b"s"}


@pytest.mark.parametrize(("mode", "after", "front"), [(Mode.LATER, 30_000, False), (Mode.PASS, 2_000, False)])
def test_later_and_pass_ring_no_bell_until_their_time_then_at_the_back(
    each_queue: BatchQueue, mode: Mode, after: int, front: bool
) -> None:
    k, other = put(each_queue, make_batch()), put(each_queue, make_batch())
    each_queue.client.lpop(keys.rq_queue("grade"))
    hold = take(each_queue, k).hold
    each_queue.release(hold, mode)
    assert bells(each_queue.client) == [f"{other}-1"]
    assert each_queue.mend(k) is Mended.WAITING
    warp(each_queue, after - 500, k)
    assert each_queue.mend(k) is Mended.WAITING
    warp(each_queue, 501, k)
    assert each_queue.mend(k) is Mended.RUNG
    assert bells(each_queue.client) == [f"{other}-1", f"{k}-2"]
    grant = take(each_queue, k, "o2")
    assert (grant.passes, grant.errors) == (1 if mode is Mode.PASS else 0, 0)


def test_the_third_error_in_a_row_without_a_verdict_is_answered(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    for attempt in (1, 2):
        hold = take(each_queue, k, f"o{attempt}").hold
        assert each_queue.release(hold, Mode.ERROR).word is Released.RELEASED
        assert each_queue.release(hold, Mode.ERROR).word is Released.RELEASED  # sent again: not counted twice
        assert each_queue.mend(k) is Mended.WAITING
        warp(each_queue, 2_000 * attempt, k)
        assert each_queue.mend(k) is Mended.RUNG
        assert bells(each_queue.client)[0] == f"{k}-{attempt + 1}"
    hold = take(each_queue, k, "o3").hold
    each_queue.verdict(hold, passed(0))  # ends the row
    each_queue.release(hold, Mode.ERROR)
    for attempt in (4, 5):
        hold = take(each_queue, k, f"o{attempt}").hold
        reply = each_queue.release(hold, Mode.ERROR, detail="KeyError: 'x'")
    assert reply.word is Released.ANSWERED
    assert each_queue.release(hold, Mode.ERROR).word is Released.ANSWERED
    result = each_queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.FAILED
    assert [(v.reward, v.error_code, v.detail) for v in result.results] == [
        (1.0, None, None),
        (None, "internal", "KeyError: 'x'"),
    ]
    assert not take_blame(each_queue, k)


def take_blame(queue: BatchQueue, k: str) -> dict[str, str]:
    return {name: value for name, value in state(queue.client, k).items() if name.startswith("blame:")}


@pytest.mark.parametrize("mode", list(Mode))
def test_releasing_what_is_cancelled_or_overdue_answers_it(each_queue: BatchQueue, mode: Mode) -> None:
    for spoil, code in ((each_queue.cancel, "cancelled"), (lambda k: overdue(each_queue, k), "expired")):
        k = put(each_queue, make_batch())
        hold = take(each_queue, k).hold
        each_queue.note(hold, 0, b"s")
        spoil(k)
        reply = each_queue.release(hold, mode, drop=True)
        assert (reply.word, reply.dropped) == (Released.ANSWERED, {0: b"s"})
        assert result_of(each_queue, k) == [(None, code)] * 2
        assert each_queue.depth() == 0


def test_a_release_of_an_unknown_kind_is_a_mistake(each_queue: BatchQueue) -> None:
    run = lua.Bound(each_queue.client, "release", each_queue.timing)
    with pytest.raises(ValueError, match="none of clean"):
        run("0" * 32, "o", 1, "whenever", 0, 0, "")


def test_resubmission_while_owned_is_the_same_batch(each_queue: BatchQueue) -> None:
    batch = make_batch()
    k = put(each_queue, batch)
    hold = take(each_queue, k).hold
    put(each_queue, batch, Submitted.SAME)
    assert each_queue.renew(hold).word is Renewed.OK
