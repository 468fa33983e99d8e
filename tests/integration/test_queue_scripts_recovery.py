"""bury, mend, beat, bump, lease on both servers: who counts as lost, who is blamed, and how bells come back."""

from __future__ import annotations

import pytest

from collimate_rl.protocol import ResultStatus, keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Buried, Claimed, Mended, Mode, Published, Renewed
from tests.fixtures.queue_batches import (
    bells,
    lapse,
    make_batch,
    now_ms,
    overdue,
    passed,
    put,
    settle,
    state,
    take,
    warp,
)


def silence(queue: BatchQueue) -> None:
    """All bells are lost."""
    queue.client.delete(keys.rq_queue(queue.queue))


def blame(queue: BatchQueue, k: str) -> list[int]:
    kept = state(queue.client, k)
    return [int(kept.get(f"blame:{i}", 0)) for i in range(int(kept["n"]))]


# bury


def test_bury_gives_back_at_once_and_counts_a_loss(each_queue: BatchQueue) -> None:
    k, other = put(each_queue, make_batch()), put(each_queue, make_batch())
    each_queue.alive({"w1": "boot pid start"})
    hold = take(each_queue, k, "o1", "w1", "n1").hold
    assert each_queue.bury("n1", "w1") == (Buried.RELEASED, k)
    assert bells(each_queue.client) == [f"{k}-2", f"{k}-1", f"{other}-1"]
    assert not each_queue.client.exists(keys.alive("w1"))
    assert each_queue.renew(hold).word is Renewed.FENCED
    assert each_queue.bury("n1", "w1") == (Buried.NONE, None)
    grant = take(each_queue, k, "o2", "w2")
    assert (grant.losses, grant.cautious, grant.blame) == (1, True, {0: 1, 1: 1})


def test_a_worker_that_the_server_was_away_from_is_buried_uncounted(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k, "o1", "w1", "n1").hold
    assert each_queue.bury("n1", "w1", counts=False) == (Buried.RELEASED, k)
    grant = take(each_queue, k, "o2", "w2")
    assert (grant.losses, grant.cautious, blame(each_queue, k)) == (0, False, [0, 0])
    for index in (0, 1):
        each_queue.verdict(grant.hold, passed(index))
    assert each_queue.bury("n1", "w2", counts=False) == (Buried.ANSWERED, k)
    assert each_queue.renew(hold).word is Renewed.FENCED


def test_bury_of_an_idle_or_unknown_worker(each_queue: BatchQueue) -> None:
    each_queue.alive({"w1": "boot pid start"})
    assert each_queue.bury("n1", "w1").word is Buried.NONE
    assert not each_queue.client.exists(keys.alive("w1"))


def test_bury_leaves_what_is_anothers_by_now(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    take(each_queue, k, "o1", "w1", "n1")
    lapse(each_queue, k)
    settle(each_queue)
    hold = take(each_queue, k, "o2", "w2", "n1").hold
    each_queue.client.hset(keys.owned("n1"), "w1", k)  # a stale entry, as if the takeover had not seen it
    assert each_queue.bury("n1", "w1").word is Buried.NONE
    assert each_queue.renew(hold).word is Renewed.OK
    assert each_queue.owned("n1") == {"w2": k}


@pytest.mark.parametrize("code", ["cancelled", "expired"])
def test_bury_answers_what_is_cancelled_or_overdue(each_queue: BatchQueue, code: str) -> None:
    k = put(each_queue, make_batch())
    take(each_queue, k)
    each_queue.cancel(k) if code == "cancelled" else overdue(each_queue, k)
    assert each_queue.bury("n1", "w1") == (Buried.ANSWERED, k)
    result = each_queue.result(k)
    assert result is not None
    assert result.status.value == code


# mend


def test_a_living_batch_is_looked_at_again_when_its_lease_ends(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    take(each_queue, k)
    assert each_queue.mend(k) is Mended.LIVE
    score = each_queue.client.zscore(keys.pending("grade"), k)
    assert score == float(state(each_queue.client, k)["lease_until"])


def test_an_expired_lease_waits_for_the_clock_then_is_counted_and_rung_at_the_front(each_queue: BatchQueue) -> None:
    k, other = put(each_queue, make_batch()), put(each_queue, make_batch())
    take(each_queue, k)
    lapse(each_queue, k)
    assert each_queue.mend(k) is Mended.SETTLING
    assert state(each_queue.client, k)["status"] == "running"
    settle(each_queue)
    assert each_queue.mend(k) is Mended.RELEASED
    assert bells(each_queue.client) == [f"{k}-2", f"{k}-1", f"{other}-1"]
    assert each_queue.owned("n1") == {}
    assert take(each_queue, k, "o2").losses == 1


def test_after_an_outage_a_late_owner_renews_before_anybody_takes_over(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    settle(each_queue)
    clock = keys.clock("grade")
    t = now_ms(each_queue)  # the server was away for a minute: nobody beat, nobody renewed
    each_queue.client.hset(clock, mapping={"last": t - 60_000, "since": t - 120_000})
    warp(each_queue, 60_000, k)
    assert not each_queue.beat().settled
    assert each_queue.mend(k) is Mended.SETTLING
    assert each_queue.renew(hold).word is Renewed.OK
    settle(each_queue)
    assert each_queue.mend(k) is Mended.LIVE


def test_a_loss_does_not_count_while_the_worker_is_alive(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    each_queue.alive({"w1": "boot pid start"})
    take(each_queue, k)
    lapse(each_queue, k)
    settle(each_queue)
    assert each_queue.mend(k) is Mended.RELEASED
    grant = take(each_queue, k, "o2", "w2")
    assert (grant.losses, grant.cautious) == (0, False)


@pytest.mark.parametrize("code", ["cancelled", "expired"])
def test_mend_answers_what_is_cancelled_or_overdue(each_queue: BatchQueue, code: str) -> None:
    k = put(each_queue, make_batch())
    hold = take(each_queue, k).hold
    each_queue.verdict(hold, passed(0))
    each_queue.cancel(k) if code == "cancelled" else overdue(each_queue, k)
    assert each_queue.mend(k) is Mended.LIVE  # its owner answers it, or falls silent
    lapse(each_queue, k)
    assert each_queue.mend(k) is Mended.ANSWERED
    assert each_queue.mend(k) is Mended.FORGOT
    result = each_queue.result(k)
    assert result is not None
    assert result.status.value == code
    assert [(v.reward, v.error_code) for v in result.results] == [(1.0, None), (None, code)]
    assert each_queue.publish(hold, fill="internal").word is Published.ALREADY


def test_a_lost_bell_is_rung_when_it_was_missing_twice(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    silence(each_queue)
    assert each_queue.mend(k) is Mended.LOOK
    assert each_queue.mend(k) is Mended.LOOK
    warp(each_queue, 4_000, k)
    assert each_queue.mend(k) is Mended.RUNG
    assert bells(each_queue.client) == [f"{k}-2"]
    silence(each_queue)
    assert each_queue.mend(k) is Mended.LOOK  # a bell was rung since: the count begins anew


def test_a_listed_bell_starts_the_look_anew(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    assert each_queue.mend(k) is Mended.LOOK
    assert each_queue.mend(k, listed=True) is Mended.LISTED
    warp(each_queue, 4_000, k)
    assert each_queue.mend(k) is Mended.LOOK


def test_a_claim_starts_the_look_anew(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    assert each_queue.mend(k) is Mended.LOOK
    warp(each_queue, 4_000, k)
    each_queue.release(take(each_queue, k).hold, Mode.PASS)
    assert each_queue.mend(k) is Mended.WAITING


def test_a_claim_before_a_set_ring_unsets_it(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    each_queue.release(take(each_queue, k).hold, Mode.LATER)
    hold = take(each_queue, k, "o2").hold
    each_queue.release(hold, Mode.CLEAN)
    silence(each_queue)
    assert each_queue.mend(k) is Mended.LOOK


def test_what_is_unknown_or_answered_is_forgotten(each_queue: BatchQueue) -> None:
    ghost = "9" * 32
    each_queue.client.zadd(keys.pending("grade"), {ghost: 1})
    assert each_queue.mend(ghost) is Mended.FORGOT
    k = put(each_queue, make_batch())
    each_queue.cancel(k)
    each_queue.client.zadd(keys.pending("grade"), {k: 1})
    assert each_queue.mend(k) is Mended.FORGOT
    assert each_queue.depth() == 0


def test_bump_moves_pending_batches_only(each_queue: BatchQueue) -> None:
    ks = [put(each_queue, make_batch()) for _ in range(3)]
    warp(each_queue, 60_000, *ks)
    assert each_queue.bump([*ks[:2], "a" * 32]) == 2
    assert each_queue.depth() == 3
    due = each_queue.client.zrangebyscore(keys.pending("grade"), "-inf", now_ms(each_queue))
    assert due == [ks[2].encode()]
    assert each_queue.bump([]) == 0


# beat, lease


def test_the_clock_settles_after_beats_without_a_gap(each_queue: BatchQueue) -> None:
    clock = keys.clock("grade")
    assert each_queue.beat() == (False, 0)
    t = now_ms(each_queue)
    each_queue.client.hset(clock, mapping={"last": t - 5_900, "since": t - 11_000})
    assert not each_queue.beat().settled
    each_queue.client.hset(clock, "since", t - 12_001)
    assert each_queue.beat().settled
    each_queue.client.hset(clock, "last", now_ms(each_queue) - 6_001)
    reply = each_queue.beat()
    assert (reply.settled, reply.for_ms) == (False, 0)


def test_a_clock_that_was_set_back_is_a_gap(each_queue: BatchQueue) -> None:
    t = now_ms(each_queue)
    each_queue.client.hset(keys.clock("grade"), mapping={"last": t + 50_000, "since": t - 50_000})
    assert not each_queue.beat().settled


def test_a_beat_carries_the_nodes_heartbeat(each_queue: BatchQueue) -> None:
    each_queue.beat("n1", {"templates": ["py"], "slots": 4})
    each_queue.beat("n2", {"templates": []})
    each_queue.beat()
    assert each_queue.nodes() == {"n1": {"templates": ["py"], "slots": 4}, "n2": {"templates": []}}
    each_queue.client.delete(keys.node("n1"))
    assert set(each_queue.nodes()) == {"n2"}
    each_queue.client.zadd(keys.nodes("grade"), {"n2": now_ms(each_queue) - 1})
    assert each_queue.nodes() == {}


def test_a_lease_is_one_holders(each_queue: BatchQueue) -> None:
    assert each_queue.lease("janitor:grade", "a", 6_000) == (True, 6_000)
    taken = each_queue.lease("janitor:grade", "b", 6_000)
    assert not taken.mine
    assert 0 < taken.ms <= 6_000
    assert each_queue.lease("janitor:grade", "b", 0).mine  # gives back what it doesn't hold: no harm
    assert each_queue.lease("janitor:grade", "a", 6_000).mine
    assert each_queue.lease("janitor:grade", "a", 0).mine
    assert each_queue.lease("janitor:grade", "b", 6_000).mine


# poison


def lose(queue: BatchQueue, k: str, n: int, *marked: int) -> Buried:
    """The n-th owner marks these starts and dies."""
    hold = take(queue, k, f"owner{n}", f"worker{n}").hold
    for index in marked:
        assert queue.mark(hold, index)
    return queue.bury("n1", f"worker{n}").word


def test_the_first_loss_blames_everybody_unjudged_later_ones_what_was_marked(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=4))
    hold = take(each_queue, k, "owner0", "worker0").hold
    each_queue.verdict(hold, passed(3))
    each_queue.bury("n1", "worker0")
    assert blame(each_queue, k) == [1, 1, 1, 0]
    lose(each_queue, k, 1, 0, 2)
    assert blame(each_queue, k) == [2, 1, 2, 0]
    lose(each_queue, k, 2)  # nothing was marked: everybody unjudged
    assert blame(each_queue, k) == [3, 2, 3, 0]
    grant = take(each_queue, k, "owner3", "worker3")
    assert grant.quarantined == {0, 2}
    assert grant.losses == 3


def test_a_verdict_ends_the_exposure(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=2))
    lose(each_queue, k, 1)
    hold = take(each_queue, k, "owner2", "worker2").hold
    each_queue.mark(hold, 0)
    each_queue.mark(hold, 1)
    each_queue.verdict(hold, passed(0))
    each_queue.bury("n1", "worker2")
    assert blame(each_queue, k) == [1, 2]


def test_marks_do_not_outlive_their_owner(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=2))
    lose(each_queue, k, 1)
    hold = take(each_queue, k, "owner2", "worker2").hold
    each_queue.mark(hold, 0)
    each_queue.release(hold, Mode.CLEAN)
    lose(each_queue, k, 3, 1)
    assert blame(each_queue, k) == [1, 2]


def test_a_quarantined_candidate_is_answered_by_publish_itself_with_evidence_kept(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=2))
    for n in (1, 2, 3):
        lose(each_queue, k, n, 1)
    grant = take(each_queue, k, "owner4", "worker4")
    assert grant.quarantined == {1}
    assert each_queue.publish(grant.hold) == (Published.MISSING, (0,))
    each_queue.verdict(grant.hold, passed(0))
    assert each_queue.publish(grant.hold).word is Published.OK
    result = each_queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.QUARANTINED
    assert [(v.reward, v.error_code) for v in result.results] == [(1.0, None), (None, "quarantined")]
    evidence = each_queue.client.xrange(keys.QUARANTINE)
    assert [(f[b"k"], f[b"index"], f[b"worker"]) for _, f in evidence] == [(k.encode(), b"1", b"worker3")]  # type: ignore[union-attr]
    assert each_queue.client.ttl(keys.BatchKeys(k).payload) > 86_400


def test_when_nothing_may_run_any_more_the_batch_is_answered(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch(k=2))
    assert lose(each_queue, k, 1) is Buried.RELEASED
    assert lose(each_queue, k, 2) is Buried.RELEASED
    assert lose(each_queue, k, 3) is Buried.ANSWERED
    result = each_queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.QUARANTINED
    assert [v.error_code for v in result.results] == ["quarantined"] * 2
    assert each_queue.claim(k, "o", "w", "n").word is Claimed.DONE


def test_the_same_by_way_of_claim_and_of_mend(each_queue: BatchQueue) -> None:
    for last in ("claim", "mend"):
        k = put(each_queue, make_batch(k=1))
        lose(each_queue, k, 1)
        lose(each_queue, k, 2)
        take(each_queue, k, "owner3", "worker3")
        lapse(each_queue, k)
        settle(each_queue)
        if last == "claim":
            assert each_queue.claim(k, "o", "w", "n").word is Claimed.DONE
        else:
            assert each_queue.mend(k) is Mended.ANSWERED
        result = each_queue.result(k)
        assert result is not None
        assert result.status is ResultStatus.QUARANTINED


@pytest.mark.parametrize("way", ["claim", "mend", "bury"])
def test_a_batch_whose_owner_died_before_publishing_is_answered_with_what_is_judged(
    each_queue: BatchQueue, way: str
) -> None:
    k = put(each_queue, make_batch(k=2))
    hold = take(each_queue, k).hold
    each_queue.verdict(hold, passed(0))
    each_queue.verdict(hold, passed(1, 0.5))
    lapse(each_queue, k)
    settle(each_queue)
    if way == "claim":
        assert each_queue.claim(k, "o2", "w2", "n2").word is Claimed.DONE
    elif way == "mend":
        assert each_queue.mend(k) is Mended.ANSWERED
    else:
        assert each_queue.bury("n1", "w1").word is Buried.ANSWERED
    result = each_queue.result(k)
    assert result is not None
    assert (result.status, result.rewards()) == (ResultStatus.GRADED, [1.0, 0.5])
    assert state(each_queue.client, k).get("losses") is None


def test_clean_releases_never_count(each_queue: BatchQueue) -> None:
    k = put(each_queue, make_batch())
    for n in range(5):
        each_queue.release(take(each_queue, k, f"o{n}").hold, Mode.CLEAN)
    grant = take(each_queue, k, "last")
    assert (grant.losses, grant.errors, grant.cautious) == (0, 0, False)
