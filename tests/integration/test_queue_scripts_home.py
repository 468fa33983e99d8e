"""A batch whose sessions only one node reaches is kept for that node first, on both servers; and never for long."""

from __future__ import annotations

import pytest
from rq.exceptions import DequeueTimeout

from collimate_rl.protocol import keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_rq
from collimate_rl.queue.replies import Buried, Claimed, Hold, Mended, Mode, Released
from collimate_rl.queue.rq_edge import BellQueue, Gate
from tests.fixtures.queue_batches import bells, make_batch, passed, put, state, take, warp


def own_bells(queue: BatchQueue, node: str = "n1") -> list[str]:
    """The job ids on a node's own list, front first."""
    return [raw.decode() for raw in queue.client.lrange(keys.homed("grade", node), 0, -1)]  # type: ignore[union-attr]


def noted(queue: BatchQueue, *indices: int) -> tuple[str, Hold]:
    """A batch of two that `w1` of `n1` owns, with sessions for these candidates."""
    k = put(queue, make_batch())
    hold = take(queue, k, "o1", "w1", "n1").hold
    queue.client.delete(keys.rq_queue("grade"))
    for index in indices:
        assert queue.note(hold, index, b"entry", f"s{index}", "n1").accepted
    return k, hold


def test_a_buried_batch_is_kept_for_the_node_that_has_its_sessions(each_queue: BatchQueue) -> None:
    k, _ = noted(each_queue, 1)
    assert each_queue.bury("n1", "w1", home=True) == (Buried.RELEASED, k)
    # The shared list wakes an idle process of the node; its own list is there for one that is busy or not started yet.
    assert bells(each_queue.client) == [f"{k}-2"]
    assert own_bells(each_queue) == [f"{k}-3"]
    assert 0 < each_queue.client.pttl(keys.homed("grade", "n1")) <= each_queue.timing.bell_ms
    reply = each_queue.claim(k, "o2", "w2", "n2")
    assert reply.word is Claimed.BUSY
    assert 0 < reply.busy_ms <= each_queue.timing.home_ms
    grant = take(each_queue, k, "o3", "w3", "n1")
    assert (grant.losses, sorted(grant.ledger)) == (1, [1])
    # Its later bells find it owned; they change nothing.
    assert each_queue.claim(k, "o4", "w4", "n1").word is Claimed.BUSY


def test_it_is_anybodys_when_its_node_does_not_come(each_queue: BatchQueue) -> None:
    k, _ = noted(each_queue, 0)
    each_queue.bury("n1", "w1", home=True)
    each_queue.client.delete(keys.rq_queue("grade"))
    assert each_queue.mend(k) is Mended.WAITING
    warp(each_queue, each_queue.timing.home_ms + 1, k)
    assert each_queue.mend(k) is Mended.RUNG
    assert bells(each_queue.client) == [f"{k}-4"]
    assert take(each_queue, k, "o2", "w2", "n2").ledger == {0: b"entry"}
    assert state(each_queue.client, k)["home_until"] == "0"


@pytest.mark.parametrize(("judged", "home"), [((0, 1), True), ((), False)])
def test_without_a_session_to_go_back_to_or_where_others_reach_it_anybody_may(
    each_queue: BatchQueue, judged: tuple[int, ...], home: bool
) -> None:
    k, hold = noted(each_queue, 1)
    for index in judged[1:]:
        each_queue.verdict(hold, passed(index))
    each_queue.bury("n1", "w1", home=home)
    assert own_bells(each_queue) == []
    take(each_queue, k, "o2", "w2", "n2")


def test_a_release_that_leaves_sessions_is_kept_for_its_node_one_that_drops_them_is_not(each_queue: BatchQueue) -> None:
    k, hold = noted(each_queue, 0)
    assert each_queue.release(hold, Mode.CLEAN, home=True).word is Released.RELEASED
    assert each_queue.release(hold, Mode.CLEAN, home=True).word is Released.RELEASED  # its reply was lost
    assert own_bells(each_queue) == [f"{k}-3"]
    assert each_queue.claim(k, "o2", "w2", "n2").word is Claimed.BUSY
    again = take(each_queue, k, "o3", "w3", "n1").hold
    assert each_queue.release(again, Mode.CLEAN, drop=True, home=True).dropped == {0: b"entry"}
    take(each_queue, k, "o4", "w4", "n2")


def test_a_purge_leaves_nothing_on_a_nodes_own_list(each_queue: BatchQueue) -> None:
    k, _ = noted(each_queue, 0)
    other, hold = noted(each_queue, 0)
    each_queue.bury("n1", "w1", home=True)
    each_queue.release(hold, Mode.CLEAN, home=True)
    kept = [job for job in own_bells(each_queue) if not job.startswith(other)]
    assert each_queue._run("purge", other, "run")[0] == b"PURGED"
    assert own_bells(each_queue) == kept
    assert state(each_queue.client, k)["status"] in ("open", "running")


def test_a_worker_looks_at_its_nodes_own_list_first_and_puts_back_what_it_may_not_take(redis_url: str) -> None:
    client = connect_rq(redis_url)
    shared, own = keys.rq_queue("grade"), keys.homed("grade", "n1")
    client.rpush(shared, "anybodys")
    client.rpush(own, "first", "second")
    answers = [Gate.WAIT, Gate.GO, Gate.GO, Gate.GO]

    class OfNode(BellQueue):
        gate = staticmethod(answers.pop)
        homed = own

    assert OfNode.lmove(client, shared, 1) == (shared, b"first")
    assert client.lrange(keys.rq_intermediate("grade"), 0, -1) == [b"first"]
    with pytest.raises(DequeueTimeout):
        OfNode.lmove(client, shared, 1)
    assert client.lrange(own, 0, -1) == [b"second"]
    assert client.lrange(keys.rq_intermediate("grade"), 0, -1) == [b"first"]
    answers[:] = [Gate.GO] * 4
    assert [OfNode.lmove(client, shared, 1)[1] for _ in range(2)] == [b"second", b"anybodys"]
    client.close()
