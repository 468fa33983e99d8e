"""A candidate that costs its workers their lives is found out among others that never had a verdict before it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.protocol import ResultStatus, keys
from tests.fixtures.acl_users import as_user
from tests.fixtures.leftovers import check_nothing_is_left
from tests.fixtures.worker_batches import Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

StartNode = Callable[..., Node]


@pytest.mark.parametrize("recovery", ["rerun", "attach"])
def test_suspects_run_alone_and_last_and_the_innocent_are_graded(node: StartNode, audit: Audit, recovery: str) -> None:
    """Two owners die before there is any verdict, so everybody is blamed twice. The third shows whose fault it is."""
    started = node(slots=8, timing=HASTY)
    client = audit.queue.client
    killer = 1
    # Long enough that nobody has a verdict when the first two owners die.
    k = audit.submit([slow(4), slow(25), slow(4)], recovery=recovery, timeout_seconds=40)
    flight = keys.BatchKeys(k).flight

    def marked() -> set[int]:
        found: Any = client.hkeys(flight)
        return {int(index) for index in found}

    started.wait_for("batch_claimed", k=k)
    kill_owner(started, k, 1)
    started.wait_for("batch_claimed", count=2, k=k)
    until(lambda: marked() == {0, 1, 2}, "not all were marked as started")
    kill_owner(started, k, 2)
    assert audit.state(k, "losses") in ("1", "2")
    started.wait_for("batch_claimed", count=3, k=k)
    at_once: list[set[int]] = []

    def killer_is_alone() -> bool:
        at_once.append(marked())
        return at_once[-1] == {killer}

    until(killer_is_alone, f"it never ran alone: {at_once[-5:]}")
    assert max(map(len, at_once)) == 1
    assert {0} in at_once  # one after the other, in order
    kill_owner(started, k, 3)
    result = audit.result(k)
    assert [(v.reward, v.error_code) for v in result.results] == [(1.0, None), (None, "quarantined"), (1.0, None)]
    assert result.status is ResultStatus.QUARANTINED
    assert [audit.state(k, f"blame:{index}") for index in range(3)] == ["2", "3", "2"]
    entries: Any = client.xrange(keys.QUARANTINE)
    assert [(fields[b"k"].decode(), int(fields[b"index"])) for _, fields in entries] == [(k, killer)]
    assert audit.queue.client.get(keys.BatchKeys(k).payload) is not None
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(client)


def looked(*words: str, redis_url: str) -> str:
    """What `python -m worker …` says."""
    command = [sys.executable, "-m", "worker", *words, "--redis-url", as_user(redis_url, "operator")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def kill_owner(started: Node, k: str, turn: int) -> None:
    """kill -9 of the batch's owner number `turn`, and wait until it is buried."""
    worker = started.wait_for("batch_claimed", count=turn, k=k)[turn - 1]["worker"]
    os.kill(started.child_pids()[worker], signal.SIGKILL)
    started.wait_for("buried", buried=worker)


def test_quarantined_by_three_deaths_and_graded_once_released(node: StartNode, audit: Audit, redis_url: str) -> None:
    started = node(slots=8, timing=HASTY)
    k = audit.submit([slow(8)], timeout_seconds=40)
    for turn in (1, 2, 3):
        started.wait_for("batch_claimed", count=turn, k=k)
        if turn > 1:
            until(lambda: audit.queue.client.hexists(keys.BatchKeys(k).flight, "0"), "its start was not marked")
        kill_owner(started, k, turn)
    result = audit.result(k)
    assert [(v.reward, v.error_code) for v in result.results] == [(None, "quarantined")]
    assert len(started.events("batch_claimed", k=k)) == 3
    assert k in looked("quarantine", "list", redis_url=redis_url)
    assert "time.sleep(8)" in looked("quarantine", "show", k, redis_url=redis_url)
    again = json.loads(looked("--json", "quarantine", "release", k, redis_url=redis_url))["k"]
    assert "nothing is in quarantine" in looked("quarantine", "list", redis_url=redis_url)
    assert audit.rewards(again) == [1.0]
    assert "0 unanswered batches" in looked("status", redis_url=redis_url)
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)
