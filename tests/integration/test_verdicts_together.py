"""Verdicts that wait to be written together, on a real server: no batch ends before its own are written."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import worker.group_work
from collimate_rl.errors import CollimateError
from collimate_rl.grading.result import SpecFault
from collimate_rl.protocol import keys
from collimate_rl.queue.clients import connect_commands
from tests.fixtures.queue_batches import lapse, passed, settle, state, take
from tests.fixtures.scripted_grading import GOOD, World, scripted_world
from tests.fixtures.worker_nodes import until
from worker import metrics

LONG_S = 3600.0
Answer = Callable[[Any], None]


@pytest.fixture
def world(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A worker's batch job on a real server, with two slots, where verdicts wait until something makes them go."""
    monkeypatch.setattr(worker.group_work, "HELD_S", LONG_S)
    with scripted_world(tmp_path, monkeypatch, client=connect_commands(redis_url), slots=2) as made:
        yield made


class Judged:
    """A script that answers each candidate, and before the last one does `then`."""

    def __init__(self, world: World, k: int, then: Callable[[Answer, threading.Event], None]) -> None:
        self.k = world.put(k=k)
        self._last = k - 1
        self._then = then

    def __call__(self, index: int, answer: Answer, stop: threading.Event) -> None:
        if index == self._last:
            self._then(answer, stop)
        else:
            answer(GOOD)


def written(world: World, k: str) -> int:
    return int(world.queue.client.hlen(keys.BatchKeys(k).verdicts))


def graded(world: World) -> float:
    """How many verdicts the process has counted."""
    return sum(world.bench.tally.read(metrics.CANDIDATES_GRADED).get("passed", [0.0]))


def called(world: World) -> Counter[str]:
    stats: Any = world.queue.client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): counts["calls"] for name, counts in stats.items()})


def test_a_batch_of_sixteen_is_claimed_and_answered_in_three_calls(world: World) -> None:
    world.ring(world.put(k=1))  # the server learns the scripts
    k = world.put(k=16)
    before = called(world)
    assert world.ring(k) == "OK"
    assert (called(world) - before)["evalsha"] == 3  # the claim; all verdicts, and with them the answer
    assert world.codes(k) == [1.0] * 16
    assert graded(world) == 17


def test_a_server_that_forgot_the_scripts_gets_all_of_them(world: World) -> None:
    def forgotten(answer: Answer, _stop: threading.Event) -> None:
        world.queue.client.script_flush()
        answer(GOOD)

    world.script = script = Judged(world, 3, forgotten)
    assert world.ring(script.k) == "OK"
    assert world.codes(script.k) == [1.0] * 3


@pytest.mark.parametrize(
    ("error", "left"),
    [(KeyError("ours"), None), (SpecFault("the reference fails"), "bad_request")],
    ids=["ours", "the spec's"],
)
def test_what_breaks_the_grading_off_loses_none(world: World, error: Exception, left: str | None) -> None:
    def breaks_off(_answer: Answer, _stop: threading.Event) -> None:
        raise error

    world.script = script = Judged(world, 3, breaks_off)
    assert world.ring(script.k) == "OK"
    if left is None:
        assert (written(world, script.k), state(world.queue.client, script.k)["errors"]) == (2, "1")
    else:
        assert world.codes(script.k) == [1.0, 1.0, left]
    assert graded(world) == 2


def test_a_stopping_worker_writes_them_before_it_gives_the_batch_back(world: World) -> None:
    def stopping(_answer: Answer, stop: threading.Event) -> None:
        world.host.stopping = 100.0
        assert stop.wait(60)

    world.script = script = Judged(world, 3, stopping)
    assert world.ring(script.k) == "OK"
    found = state(world.queue.client, script.k)
    assert (found["status"], found.get("losses"), written(world, script.k)) == ("open", None, 2)


def test_they_are_written_before_a_batch_is_closed_over_an_exec_that_does_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper closes it, while the job's own thread is still at a candidate."""

    def hangs(_answer: Answer, stop: threading.Event) -> None:
        asked.set()
        assert stop.wait(60)
        until(lambda: world.queue.result(script.k), "nobody closed the batch")

    asked = threading.Event()
    monkeypatch.setattr(world.host, "cancel_asked", asked.is_set)
    world.script = script = Judged(world, 3, hangs)
    assert world.ring(script.k) == "OK"
    assert world.codes(script.k) == [1.0, 1.0, "cancelled"]


def test_an_infrastructure_error_is_answered_beside_them(world: World) -> None:
    world.script = script = Judged(world, 3, lambda answer, _: answer(CollimateError("off", 400, "bad_request")))
    assert world.ring(script.k) == "OK"
    assert world.codes(script.k) == [1.0, 1.0, "bad_request"]


def test_one_that_waits_is_written_although_no_other_comes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.group_work, "HELD_S", 0.05)

    def waits(answer: Answer, _stop: threading.Event) -> None:
        until(lambda: graded(world) == 2, "what waited was not written and counted")
        assert written(world, script.k) == 2
        answer(GOOD)

    world.script = script = Judged(world, 3, waits)
    assert world.ring(script.k) == "OK"
    assert world.codes(script.k) == [1.0] * 3


def test_whose_batch_is_taken_over_meanwhile_writes_none_of_them(world: World) -> None:
    def usurped(answer: Answer, _stop: threading.Event) -> None:
        lapse(world.queue, script.k)
        settle(world.queue)
        take(world.queue, script.k, owner="other")
        answer(GOOD)

    world.script = script = Judged(world, 3, usurped)
    assert world.ring(script.k) == "FENCED"
    assert (written(world, script.k), state(world.queue.client, script.k)["owner"]) == (0, "other")
    assert graded(world) == 0


def test_what_another_has_judged_meanwhile_is_neither_counted_nor_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def answered(answer: Answer, _stop: threading.Event) -> None:
        lapse(world.queue, script.k)
        settle(world.queue)
        other = take(world.queue, script.k, owner="other").hold
        for index in range(3):
            world.queue.verdict(other, passed(index, 0.5))
        world.queue.publish(other)
        answer(GOOD)

    caplog.set_level(logging.DEBUG, logger="collimate.worker")
    world.script = script = Judged(world, 3, answered)
    assert world.ring(script.k) == "DONE"
    assert world.codes(script.k) == [0.5] * 3
    assert graded(world) == 0
    events = [getattr(record, "event", "") for record in caplog.records]
    assert ("batch_skipped" in events, "candidate_graded" in events) == (True, False)


@pytest.mark.parametrize("refusal", ["full", "read-only", "alone"])
def test_a_server_that_takes_no_writes_for_a_while_gets_all_of_them_then(world: World, refusal: str) -> None:
    client: Any = world.queue.client
    world.ring(world.put(k=1))  # the server learns the scripts
    threads: list[threading.Thread] = []

    def last(answer: Answer, _stop: threading.Event) -> None:
        refused = failures(client)
        if refusal == "full":
            client.config_set("maxmemory", 1)
        elif refusal == "alone":
            client.config_set("min-replicas-to-write", 1)
        else:
            client.replicaof("127.0.0.1", 1)
        threads.append(threading.Thread(target=accept, args=(refused,)))
        threads[0].start()
        answer(GOOD)

    def accept(refused: int) -> None:
        try:
            until(lambda: failures(client) > refused, "nothing was refused")
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("min-replicas-to-write", 0)
            client.replicaof("NO", "ONE")

    world.script = script = Judged(world, 3, last)
    try:
        assert world.ring(script.k) == "OK"
    finally:
        threads[0].join(60)
    assert world.codes(script.k) == [1.0] * 3
    assert state(client, script.k).get("errors", "0") == "0"
    assert graded(world) == 4


def failures(client: Any) -> int:
    """How many calls of scripts were refused or broke off."""
    counts = client.info("commandstats").get("cmdstat_evalsha", {})
    return int(counts.get("rejected_calls", 0)) + int(counts.get("failed_calls", 0))
