"""Every honest but awkward way to write a right function or program gets 1.0, without a flag, wherever it is graded:
under each type of spec that it fits, in a fresh fork, in a session that others used before, and through the queue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading.execute import Executor, OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.rewards import AssertReward, PropertyReward, StdioReward, UnitTestReward
from collimate_rl.specs import RewardSpec, TestFileReward
from tests.fixtures import honest
from tests.fixtures.pooled_sessions import PooledSessions
from tests.fixtures.worker_batches import Audit
from tests.fixtures.worker_nodes import Node, delete_probes

OF_FUNCTIONS: dict[str, RewardSpec] = {
    "unit_test": UnitTestReward([{"input": n, "expected": n * n} for n in (2, 3, 4)]),
    "property": PropertyReward(reference="    return x * x", generator="random.randint(2, 4)", k=3),
    "assert": AssertReward("for n in (2, 3, 4):\n    assert solve(n) == n * n\n", entry="solve"),
    "test_file": TestFileReward("from solution import solve\ndef test_it():\n    assert solve(3) == 9\n"),
}
OF_PROGRAMS = StdioReward([{"stdin": "3\n1 2 3\n", "stdout": "6\n"}, {"stdin": "2\n5 5\n", "stdout": "10\n"}])
BATCH = 8
"""Candidates of one batch: small enough that a loaded machine answers it while a test waits."""
OF_THE_MACHINE = {"timeout_starved", "timeout_retried"}
"""Flags that tell of a loaded machine, not of a candidate."""


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


def faults(names: Iterable[str], grades: Iterable[Any]) -> dict[str, Any]:
    """The grades and verdicts that are not what honest work is to get."""
    return {
        name: told
        for name, told in zip(names, grades, strict=True)
        if getattr(told, "reward", None) != 1.0 or told.outcome != "passed" or set(told.flags) - OF_THE_MACHINE
    }


def graded(execute: Executor, spec: RewardSpec, corpus: dict[str, str]) -> dict[str, Any]:
    seeds = [None] * len(corpus)
    codes = list(corpus.values())
    return faults(corpus, grade_group(execute, spec, codes, seeds=seeds, timeout_seconds=60, concurrency=4))


@pytest.mark.parametrize("name", sorted(set(OF_FUNCTIONS) - {"unit_test"}))
def test_in_fresh_forks_under_the_other_types_of_spec(client: CollimateClient, name: str) -> None:
    assert graded(OneShotExecutor(client, "py"), OF_FUNCTIONS[name], honest.FUNCTIONS) == {}


@pytest.mark.parametrize("name", ["unit_test", "assert", "stdio"])
def test_in_sessions_that_others_used_before(client: CollimateClient, name: str) -> None:
    sessions = PooledSessions(client)
    spec, corpus = (OF_PROGRAMS, honest.PROGRAMS) if name == "stdio" else (OF_FUNCTIONS[name], honest.FUNCTIONS)
    assert graded(sessions, spec, corpus) == {}
    assert sum(sessions.runs.values()) == len(corpus)
    assert len(sessions.runs) <= 4
    sessions.close()


@pytest.fixture
def queue(shared_server: str, shared_node: Node, daemon_socket: str) -> Iterator[Audit]:
    made = Audit(shared_server)
    yield made
    made.check_each_answered_once()
    made.queue.client.close()
    delete_probes(daemon_socket)


def test_through_the_queue(queue: Audit) -> None:
    told: dict[str, Any] = {}
    asked = []
    for spec, corpus in ((OF_PROGRAMS, honest.PROGRAMS), (OF_FUNCTIONS["unit_test"], honest.FUNCTIONS)):
        for start in range(0, len(corpus), BATCH):
            part = dict(list(corpus.items())[start : start + BATCH])
            k = queue.submit(list(part.values()), spec=json.dumps(spec.to_wire()), timeout_seconds=60)
            asked.append((k, part))
    for k, part in asked:
        told |= faults(part, queue.result(k).results)
    assert told == {}
