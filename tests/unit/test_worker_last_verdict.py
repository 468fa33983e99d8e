"""A batch's last verdict brings its answer: in one call where nothing is left to be done before, and told once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import worker.verdict_writer
from collimate_rl.errors import CollimateError
from tests.fixtures.queue_batches import passed, state, take
from tests.fixtures.scripted_grading import GOOD, World, failing, scripted_world
from worker import metrics


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with scripted_world(tmp_path, monkeypatch) as made:
        yield made


class Sent:
    """What a batch's owner sends to the queue for verdicts and answers, in order; `before` is called before each."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.before: Callable[[str], None] = lambda _name: None
        writer = worker.verdict_writer
        for where, name in ((writer, "write_together"), (world.queue, "publish"), (writer, "end_with")):
            monkeypatch.setattr(where, name, self._noted(name, getattr(where, name)))

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            self.names.append(name)
            self.before(name)
            return call(*args, **options)

        return noted


@pytest.fixture
def sent(world: World, monkeypatch: pytest.MonkeyPatch) -> Sent:
    sent = Sent(world, monkeypatch)
    world.queue.verdict(take(world.queue, world.put(k=1)).hold, passed(0))  # the server learns the scripts
    world.queue.publish(take(world.queue, world.put(k=1)).hold, fill="cancelled")
    sent.names.clear()
    return sent


def test_the_last_verdict_and_the_answer_go_together(world: World, sent: Sent) -> None:
    k = world.put(k=3)
    assert world.ring(k) == "OK"
    assert sent.names == ["write_together", "write_together", "end_with"]
    assert world.codes(k) == [1.0] * 3


def test_a_batch_with_something_flagged_is_published_by_itself(world: World, sent: Sent) -> None:
    k = world.put(k=2)
    world.script = failing(CollimateError("off", 400, "bad_request"), None)
    assert world.ring(k) == "OK"
    assert sent.names == ["write_together", "publish"]
    assert world.codes(k) == ["bad_request", 1.0]


def test_a_verdict_that_is_still_under_way_is_waited_for_before_the_answer(world: World, sent: Sent) -> None:
    """Two threads write at once: whoever began last asks for the answer, and is told who is missing."""
    k = world.put(k=2)
    ended = threading.Event()

    def script(index: int, answer: Callable[[Any], None], stop: threading.Event) -> None:
        if index == 0:
            first = threading.Thread(target=answer, args=(GOOD,))
            threads.append(first)
            first.start()
            assert begun.wait(60)
        else:
            answer(GOOD)
            ended.set()
            threads[0].join(60)

    threads: list[threading.Thread] = []
    begun = threading.Event()

    def hold_up(name: str) -> None:
        if name == "write_together":
            begun.set()
            assert ended.wait(60)

    sent.before, world.script = hold_up, script
    assert world.ring(k) == "OK"
    assert sent.names == ["write_together", "end_with", "publish"]
    assert world.codes(k) == [1.0, 1.0]


def test_an_answer_that_came_with_the_last_verdict_is_told_once_whatever_stops_the_batch_then(
    world: World, sent: Sent
) -> None:
    """Its lease is gone with the answer: a renewal that hears of it must not take the batch for somebody else's."""
    tally = world.bench.tally

    def script(index: int, answer: Callable[[Any], None], stop: threading.Event) -> None:
        answer(GOOD)
        world.host.stopping = 100.0
        assert stop.wait(60)

    k, world.script = world.put(k=1), script
    assert world.ring(k) == "OK"
    assert sent.names == ["end_with"]
    assert tally.read(metrics.BATCHES_PUBLISHED)["graded"] == [1.0]
    assert tally.read(metrics.BATCHES_FENCED) == {"": [0.0]}
    assert {code: count for code, count in tally.read(metrics.CANDIDATES_FLAGGED).items() if count != [0.0]} == {}


def test_a_last_verdict_that_comes_after_the_batch_was_given_back_answers_nothing(world: World, sent: Sent) -> None:
    k = world.put(k=1)
    world.script = world.usurped(k)
    assert world.ring(k) == "FENCED"
    assert sent.names == ["end_with"]
    assert (state(world.queue.client, k)["owner"], world.queue.result(k)) == ("other", None)
