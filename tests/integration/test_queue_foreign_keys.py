"""What others left under our names on the server (other types, halves of things, bytes that are no text) hides nothing
but itself from those who look, and breaks none of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from collimate_rl.cli.app import app
from collimate_rl.protocol import keys
from collimate_rl.queue.batch_list import list_batches
from collimate_rl.queue.batch_view import read_batch
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.counts import SLOT_S
from collimate_rl.queue.numbers import DAY, HOUR, Numbers, read_numbers
from collimate_rl.queue.tally import AnswerCounter
from tests.fixtures.queue_batches import make_batch, passed, put, take

NO_TEXT = b"\xff\xfe\x00[/red]"
GRADE = "grade"


@pytest.fixture
def queue(redis_url: str) -> Any:
    """One answered batch of run `mine` that was counted, one that waits."""
    client = connect_commands(redis_url)
    made = BatchQueue(client)
    grant = take(made, put(made, make_batch(run="mine", id="answered", k=2)))
    for index in range(2):
        made.verdict(grant.hold, passed(index))
    made.publish(grant.hold)
    made.lease(f"janitor:{GRADE}", "leader", 60_000)
    assert AnswerCounter(made, "leader").round() == 1
    put(made, make_batch(run="mine", id="waits"))
    yield made
    client.close()


def now() -> int:
    return int(time.time())


def a_state(client: Any) -> None:
    client.zadd(keys.pending(GRADE), {"a" * 32: 1, NO_TEXT: 2, "b" * 32: 3})
    client.set(keys.BatchKeys("a" * 32).state, "no hash")
    client.hset(keys.BatchKeys("b" * 32).state, mapping={"status": "open", "created_at": NO_TEXT, "n": "many"})


def a_run(client: Any) -> None:
    client.zadd(keys.runs(GRADE), {"theirs": float("inf"), NO_TEXT: 1e30, "<script>": 5, "halves": 6})
    client.set(keys.run(GRADE, "theirs"), "x")
    client.set(keys.inflight("theirs"), "x")
    client.set(keys.suspects("theirs", "tampered"), "x")
    client.hset(keys.run(GRADE, "halves"), mapping={"graded": "-3", "reward": "9" * 5000, NO_TEXT: "1", "wait:x": "1"})
    for series in (HOUR, DAY):
        for block in series.blocks(now()):
            client.set(keys.series(GRADE, "theirs", series.step_s, block), "x")
            client.hset(
                keys.series(GRADE, "halves", series.step_s, block), mapping={"x:reward": 1, "::": 1, NO_TEXT: 1}
            )


def a_slot(client: Any) -> None:
    slot = now() // SLOT_S
    client.set(keys.tally_slot(GRADE, slot - 2), "x")
    client.hset(
        keys.tally_slot(GRADE, slot - 1), mapping={"recovered:[/red]": 1, "code:\x1b[2J": 1, NO_TEXT: "1", "wait:": 1}
    )


def a_node(client: Any) -> None:
    client.zadd(keys.nodes(GRADE), {"text": 1e15, "list": float("inf"), NO_TEXT: 1e15, "odd": 1e15})
    client.set(keys.node("text"), NO_TEXT)
    client.rpush(keys.node("list"), "x")
    client.set(
        keys.node("odd"), json.dumps({"slots": "many", "up": "yes", "templates": [1, None], "reason": ["[/red]"]})
    )
    client.set(keys.owned("odd"), "x")


def a_clock(client: Any) -> None:
    client.delete(keys.clock(GRADE))
    client.hset(keys.clock(GRADE), mapping={"last": "soon", "since": NO_TEXT})
    client.hset(keys.tally(GRADE), mapping={NO_TEXT: 1, "batches:": "x"})


def entries(client: Any) -> None:
    client.xadd(keys.recent(GRADE), {"told": NO_TEXT})
    client.xadd(keys.recent(GRADE), {NO_TEXT: "x"})
    client.xadd(keys.recent(GRADE), {"told": "[" * 5000})


PLANTS = (a_state, a_run, a_slot, a_node, a_clock, entries)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_what_is_foreign_hides_nothing_but_itself(
    queue: BatchQueue, redis_url: str, plant: Callable[[Any], None]
) -> None:
    plant(queue.client)
    for series in (HOUR, DAY):
        numbers = read_numbers(queue, series=series)
        assert isinstance(numbers, Numbers)
        mine = next(run for run in numbers.runs if run.name == "mine")
        assert (mine.counts.graded, mine.counts.mean_reward, mine.unanswered) == (2, 1.0, 1)
        assert numbers.total.graded == 2
        json.dumps(numbers.as_json_data())
    lines = {(line.run, line.id, line.status) for line in list_batches(queue)}
    assert lines >= {("mine", "answered", "graded"), ("mine", "waits", "open")}
    shown = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["top", "--once", "--redis", redis_url])
    assert (shown.exit_code, "mine" in shown.stdout, "\x1b[2J" in shown.stdout) == (0, True, False)


def test_a_batch_of_halves_is_shown_as_far_as_it_can_be_read(queue: BatchQueue) -> None:
    k = "c" * 32
    at, client = keys.BatchKeys(k), queue.client
    client.hset(
        at.state, mapping={"run": NO_TEXT, "id": "<b>", "n": "2", "created_at": "x", "blame:0": "y", "story": NO_TEXT}
    )
    client.hset(at.verdicts, mapping={"x": b"1", "0": b"\x00", NO_TEXT: b"", "9" * 5000: b""})
    client.hset(at.flight, mapping={"x": "1", "0": "soon", "1": "1500"})
    client.rpush(at.done, "x")
    client.set(at.payload, NO_TEXT)
    view = read_batch(queue, k)
    assert view is not None
    assert (view.n, view.id, [one.marked_at for one in view.candidates]) == (2, "<b>", [None, 1.5])
    assert len(view.notes) == 3
    json.dumps(view.as_json_data())


def test_a_result_with_an_impossible_reward_holds_up_no_other(queue: BatchQueue) -> None:
    """A double that is no number, put where a verdict's reward was."""
    k = put(queue, make_batch(run="mine", id="odd"))
    grant = take(queue, k, owner="o3", worker="w3")
    queue.verdict(grant.hold, passed(0))
    queue.verdict(grant.hold, passed(1))
    queue.publish(grant.hold)
    whole: Any = queue.client.get(keys.BatchKeys(k).done)
    one, not_a_number = bytes.fromhex("cb3ff0000000000000"), bytes.fromhex("cb7ff8000000000000")
    assert one in whole
    queue.client.set(keys.BatchKeys(k).done, whole.replace(one, not_a_number, 1))
    assert AnswerCounter(queue, "leader").round() == 1
    total = read_numbers(queue).total
    assert (total.graded, total.unread, total.unread_graded, total.mean_reward) == (4, 1, 2, 1.0)


def test_counting_goes_on_where_a_server_was_emptied_and_its_clock_set_back(queue: BatchQueue) -> None:
    counter = AnswerCounter(queue, "leader")
    assert counter.round() == 0
    queue.client.delete(keys.answers(GRADE), keys.tally(GRADE))
    entry: Any = {"k": "d" * 32, "run": "mine", "id": "late", "status": "graded", "n": "1", "flagged": "0"}
    queue.client.xadd(keys.answers(GRADE), entry, id="1000-0")
    assert (counter.round(), counter.round()) == (1, 0)
    assert read_numbers(queue).total.unread == 1
