"""A node that starts as many worker processes as its slots need: batches that wait for their slowest candidate hold
no other up, and are none the less safe."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from collimate_rl.protocol import ResultStatus
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]


def test_batches_that_wait_for_their_slowest_hold_no_other_up(node: StartNode, audit: Audit) -> None:
    started = node(processes=0, slots=4, timing=HASTY)
    started.wait_for("worker_ready", count=2)
    stuck = [audit.submit([RIGHT, slow(300)], timeout_seconds=400) for _ in range(2)]
    quick = audit.submit([RIGHT, WRONG])
    assert audit.rewards(quick) == [1.0, 0.0]
    assert [audit.queue.result(k) for k in stuck] == [None] * 2
    owners = until(lambda: len(held := audit.queue.owned("n1")) == 2 and held, "not all of them are owned")
    assert sorted(owners.values()) == sorted(stuck)
    assert 3 <= len(started.child_pids()) <= 6

    # One of those at a last candidate dies: its batch goes to another, with the verdict that stands.
    lost, k = next(iter(owners.items()))
    os.kill(started.child_pids()[lost], signal.SIGKILL)
    claims = started.wait_for("batch_claimed", count=2, k=k)
    assert [(claim["fence"], claim["judged"]) for claim in claims] == [(1, 0), (2, 1)]
    assert audit.rewards(audit.submit([RIGHT])) == [1.0]

    for one in stuck:
        audit.queue.cancel(one)
    for one in stuck:
        result = audit.result(one)
        assert result.status is ResultStatus.CANCELLED
        assert [verdict.reward for verdict in result.results] == [1.0, None]
    audit.check_each_answered_once()
    assert started.stop() == 0
    assert started.events("batch_error") == []


def test_a_stop_gives_back_what_waits_for_its_slowest(node: StartNode, audit: Audit) -> None:
    started = node(processes=0, slots=2, timing=HASTY, grace=2)
    ks = [audit.submit([RIGHT, slow(300)], timeout_seconds=400) for _ in range(3)]
    # Whose slow one gets which slot is open; the third is claimed as all of one batch have begun.
    started.wait_for("batch_claimed", count=3)
    assert started.stop() == 0
    assert audit.queue.owned("n1") == {}
    assert {audit.state(k, "status") for k in ks} == {"open"}
