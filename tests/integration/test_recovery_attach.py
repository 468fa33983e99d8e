"""A worker dies in the middle of a batch: what ran is read, what runs is waited for, and nothing starts over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import keys
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import Node, until
from worker.ledger import LedgerEntry, SessionLabel

StartNode = Callable[..., Node]
CHECKED = {"type": "assert", "test": "def check(f):\n    assert f(1) == 2\n    assert f(41) == 42\n", "entry": "solve"}


@pytest.fixture
def daemon(daemon_socket: str) -> Iterator[CollimateClient]:
    with CollimateClient(unix_socket=daemon_socket) as client:
        before = {session["session_id"] for session in client.list_sessions()}
        yield client
        left = {session["session_id"] for session in client.list_sessions()} - before
        assert left == set(), "sessions were left behind"


def owner_pid(started: Node, k: str) -> int:
    """The pid of the worker process that claimed the batch last."""
    claims = started.wait_for("batch_claimed", k=k)
    return started.child_pids()[claims[-1]["worker"]]


def ledger(audit: Audit, k: str) -> dict[int, LedgerEntry]:
    raw: Any = audit.queue.client.hgetall(keys.BatchKeys(k).ledger)
    entries = {int(index): LedgerEntry.unpack(blob) for index, blob in raw.items()}
    return {index: entry for index, entry in entries.items() if entry is not None}


def execs(daemon: CollimateClient, k: str) -> dict[int, int]:
    """Per candidate of the batch, how many execs its session has seen."""
    found = {}
    for session in daemon.list_sessions():
        label = SessionLabel.parse(session.get("label"))
        if label is not None and label.k == k and label.index is not None:
            found[label.index] = session["exec_count"]
    return found


def test_running_candidates_are_waited_for(node: StartNode, audit: Audit, daemon: CollimateClient) -> None:
    started = node(processes=2, slots=8)
    k = audit.submit([RIGHT, WRONG, slow(6), slow(6)], recovery="attach")
    started.wait_for("candidate_graded", count=2, k=k)
    until(lambda: execs(daemon, k) == {2: 1, 3: 1}, "the slow ones never started")
    os.kill(owner_pid(started, k), signal.SIGKILL)
    result = audit.result(k)
    assert [(v.reward, v.attempt) for v in result.results] == [(1.0, 1), (0.0, 1), (1.0, 2), (1.0, 2)]
    assert [v.recovered for v in result.results] == ["none", "none", "waited", "waited"]
    assert [event["reply"] for event in started.events("session_found", k=k)] == ["attached"] * 2
    assert started.stop() == 0
    audit.check_each_answered_once()
