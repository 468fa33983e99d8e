"""The trainer dies, comes back, starts a new epoch, runs in four ranks: each gets its own answers, and nothing runs
twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import batch_key, keys
from collimate_rl.queue.purging import purge_run
from tests.fixtures.leftovers import check_nothing_is_left
from tests.fixtures.recovery import all_sessions
from tests.fixtures.trainers import Trainer
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]
StartTrainer = Callable[..., Trainer]


def graded(started: Node, id: str, epoch: int = 0) -> Counter[int]:
    """How often each candidate of a batch came to a verdict."""
    events = started.events("candidate_graded", k=batch_key("run", epoch, id))
    return Counter(event["index"] for event in events)


def claims(started: Node, id: str, epoch: int = 0) -> int:
    return len(started.events("batch_claimed", k=batch_key("run", epoch, id)))


def test_a_killed_trainer_gets_what_it_missed_and_nothing_runs_again(
    node: StartNode, trainer: StartTrainer, audit: Audit, daemon: CollimateClient
) -> None:
    """With the product's own timing: the dead one's name is leased for 15 s more."""
    started = node(processes=2, slots=8)
    batches = {f"b{n}": [RIGHT, slow(1.0), WRONG] for n in range(6)}
    first = trainer("rank0", batches, recovery="attach", timeout_seconds=30)
    first.wait_for("submitted", 6)
    first.wait_for("answered", 2)
    first.kill()
    seen = first.rewards()
    assert 2 <= len(seen) < 6
    # What it asked for is answered, whether it lives or not.
    ks = [batch_key("run", 0, id) for id in batches]
    assert [audit.rewards(k) for k in ks] == [[1.0, 1.0, 0.0]] * 6
    again = trainer("rank0", batches, recovery="attach", timeout_seconds=30)
    assert again.finish() == {id: [1.0, 1.0, 0.0] for id in batches}
    for id in batches:
        assert graded(started, id) == {0: 1, 1: 1, 2: 1}
        assert claims(started, id) == 1
        assert audit.result(batch_key("run", 0, id)).attempts == 1
    assert started.stop() == 0
    check_nothing_is_left(audit.queue.client)


def test_a_trainer_that_comes_back_in_the_middle_waits_for_what_runs(
    node: StartNode, trainer: StartTrainer, audit: Audit
) -> None:
    started = node(processes=2, slots=8, timing=HASTY)
    batches = {"held": [RIGHT, slow(6)], "next": [RIGHT, slow(6)]}
    first = trainer("rank0", batches, timing=HASTY)
    started.wait_for("candidate_graded", 2)
    first.kill()
    again = trainer("rank0", {**batches, "more": [WRONG]}, timing=HASTY)
    assert again.finish() == {"held": [1.0, 1.0], "next": [1.0, 1.0], "more": [0.0]}
    assert [claims(started, id) for id in ("held", "next", "more")] == [1, 1, 1]
    assert started.stop() == 0


def test_a_new_epoch_takes_no_answer_to_an_older_lifes_question(
    node: StartNode, trainer: StartTrainer, audit: Audit
) -> None:
    started = node(processes=1, slots=8, timing=HASTY)
    old = {f"b{n}": [RIGHT, slow(0.8)] for n in range(4)}
    first = trainer("rank0", old, timing=HASTY)
    first.wait_for("submitted", 4)
    first.wait_for("answered", 1)
    first.kill()
    # The old life's batches are graded on, and their answers come into the stream that the new life reads.
    later = trainer("rank0", {id: [WRONG, RIGHT, WRONG] for id in old}, epoch=1, timing=HASTY)
    assert later.finish() == {id: [0.0, 1.0, 0.0] for id in old}
    assert {answer["epoch"] for answer in later.lines("answered")} == {1}
    for id in old:
        assert audit.rewards(batch_key("run", 0, id)) == [1.0, 1.0]
        assert audit.result(batch_key("run", 0, id)).epoch == 0
        assert (claims(started, id), claims(started, id, 1)) == (1, 1)
    assert started.stop() == 0


def own_pattern(rank: int, n: int) -> list[str]:
    """Candidates whose rewards tell rank and batch apart."""
    return [RIGHT if (4 * n + rank) >> bit & 1 else WRONG for bit in range(5)]


def rewards_of(candidates: list[str]) -> list[float | None]:
    return [1.0 if candidate == RIGHT else 0.0 for candidate in candidates]


def test_four_ranks_of_a_run_get_each_its_own_answers(
    node: StartNode, trainer: StartTrainer, audit: Audit, daemon: CollimateClient
) -> None:
    """Real processes that share the run's window; one of them is killed and comes back."""
    started = node(processes=2, slots=8, timing=HASTY)
    window = 6
    shared = {f"shared{n}": [RIGHT, WRONG, RIGHT] for n in range(2)}
    wanted = {rank: {**shared, **{f"r{rank}-{n}": own_pattern(rank, n) for n in range(6)}} for rank in range(4)}
    ranks = {rank: trainer(f"rank{rank}", wanted[rank], window=window, timing=HASTY) for rank in range(4)}
    ranks[2].wait_for("answered", 2)
    ranks[2].kill()
    ranks[2] = trainer("rank2", wanted[2], window=window, timing=HASTY)
    most = 0
    while any(rank.process.poll() is None for rank in ranks.values()):
        most = max(most, len(audit.queue.inflight("run")))
        time.sleep(0.01)
    for rank, process in ranks.items():
        assert process.finish() == {id: rewards_of(list(codes)) for id, codes in wanted[rank].items()}
    assert 0 < most <= window
    ids = {id for batches in wanted.values() for id in batches}
    assert {id: claims(started, id) for id in ids} == dict.fromkeys(ids, 1)
    for rank in range(4):
        # Read and acknowledged to the last: nobody else's are in there, or they would still be.
        assert audit.queue.client.xlen(keys.results("run", f"rank{rank}")) == 0
    assert started.stop() == 0
    check_nothing_is_left(audit.queue.client)


def test_a_batch_that_two_ranks_ask_for_is_answered_to_both_even_when_one_comes_late(
    node: StartNode, trainer: StartTrainer, audit: Audit
) -> None:
    started = node(processes=1, slots=8, timing=HASTY)
    batch = {"same": [RIGHT, slow(3)]}
    early = trainer("rank0", batch, timing=HASTY)
    started.wait_for("batch_claimed")
    meanwhile = trainer("rank1", batch, timing=HASTY)
    assert early.finish() == meanwhile.finish() == {"same": [1.0, 1.0]}
    assert trainer("rank2", batch, timing=HASTY).finish() == {"same": [1.0, 1.0]}
    assert claims(started, "same") == 1
    assert started.stop() == 0


def test_a_run_is_cancelled_and_purged_under_its_owners(
    node: StartNode, trainer: StartTrainer, audit: Audit, daemon: CollimateClient
) -> None:
    """Owners stop, sandboxes go, nothing of the run is left, and the next batch of another run is graded."""
    before = all_sessions(daemon)
    started = node(processes=2, slots=8, timing=HASTY)
    batches = {f"b{n}": [RIGHT, slow(25)] for n in range(5)}
    ranks = [trainer(f"rank{rank}", batches, timing=HASTY, recovery="attach") for rank in range(2)]
    started.wait_for("candidate_graded", 2)
    held = set(audit.queue.owned("n1").values())
    assert len(held) == 2
    for rank in ranks:
        rank.wait_for("submitted", 5)
    for k in audit.queue.inflight("run"):
        audit.queue.cancel(k)
    for rank in ranks:
        answers = rank.finish()
        assert sorted(answers) == sorted(batches)
        for id, rewards in answers.items():
            judged = batch_key("run", 0, id) in held
            assert rewards == [1.0 if judged else None, None]
    purged = purge_run(audit.queue, "run", wait_s=0.0)
    assert (purged.batches, purged.cut_short) == (5, 0)
    assert purge_run(audit.queue, "run", wait_s=0.0).batches == 0
    until(lambda: all_sessions(daemon) <= before, "sandboxes of the purged run stayed")
    other: Any = audit.submit(run="another")
    assert audit.rewards(other) == [1.0, 0.0]
    assert started.stop() == 0
    check_nothing_is_left(audit.queue.client)


def test_a_purge_that_cuts_owners_short_leaves_them_fenced_and_no_sandbox(
    node: StartNode, audit: Audit, daemon: CollimateClient
) -> None:
    before = all_sessions(daemon)
    started = node(processes=2, slots=8, timing=HASTY)
    ks = [audit.submit([RIGHT, slow(12)], id=f"b{n}", recovery=how) for n, how in enumerate(("attach", "rerun"))]
    for k in ks:
        started.wait_for("candidate_graded", k=k)
    purged = purge_run(audit.queue, "run", wait_s=0.0)
    assert (purged.batches, purged.cut_short) == (2, 2)
    for k in ks:
        started.wait_for("batch_fenced", k=k)
    until(lambda: all_sessions(daemon) <= before, "sandboxes of the purged run stayed")
    assert [audit.queue.result(k) for k in ks] == [None, None]
    again = audit.submit([WRONG, RIGHT], id="b0")
    assert again == ks[0]
    assert audit.rewards(again) == [0.0, 1.0]
    assert started.events("batch_error") == []
    assert started.stop() == 0
    check_nothing_is_left(audit.queue.client)
