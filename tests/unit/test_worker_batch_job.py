"""From bell to answer, with grading scripted: every way out ends published, released, or left to its lease."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import worker.group_work
from collimate_rl.errors import CollimateError, RedisUnavailable, UnreachableError
from collimate_rl.grading.execute import Executor
from collimate_rl.grading.result import GradeResult, SpecFault
from collimate_rl.protocol import ResultStatus, keys
from collimate_rl.queue.replies import Mode
from tests.fixtures.queue_batches import lapse, overdue, passed, settle, state, take
from tests.fixtures.scripted_grading import GOOD, Script, World, failing, scripted_world
from worker.case_store import QueueCaseStore
from worker.keeper import Fenced


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with scripted_world(tmp_path, monkeypatch) as made:
        yield made


def test_every_verdict_is_written_and_the_batch_published(world: World) -> None:
    k = world.put(k=3)
    assert world.ring(k) == "OK"
    assert world.codes(k) == [1.0, 1.0, 1.0]
    assert world.ring(k) == "DONE"
    assert world.ring("0" * 32) == "GONE"
    assert world.queue.owned("n1") == {}


def test_somebody_elses_batch_is_left_alone(world: World) -> None:
    k = world.put()
    take(world.queue, k)
    assert world.ring(k) == "BUSY"
    assert world.rounds == []


def test_verdicts_that_stand_are_not_graded_again(world: World) -> None:
    k = world.put(k=3)
    grant = take(world.queue, k)
    world.queue.verdict(grant.hold, passed(1))
    world.queue.release(grant.hold, Mode.CLEAN)
    assert world.ring(k) == "OK"
    assert world.rounds == [[0, 2]]


def test_infrastructure_errors_are_passed_on_and_then_answered(world: World) -> None:
    k = world.put(k=2)
    world.script = failing(None, UnreachableError("refused"))
    for passes in ("1", "2"):
        assert world.ring(k) == "OK"
        assert (state(world.queue.client, k)["status"], state(world.queue.client, k)["passes"]) == ("open", passes)
    assert world.ring(k) == "OK"
    assert world.codes(k) == [1.0, "unreachable"]
    assert world.rounds == [[0, 1], [1], [1]]
    assert world.host.failures == ["unreachable"] * 3
    result = world.queue.result(k)
    assert result is not None
    assert result.status is ResultStatus.PARTIAL
    assert "daemon of node n1" in str(result.results[1].detail)


def test_an_infrastructure_answer_is_no_verdict(world: World) -> None:
    k = world.put(k=1)
    world.script = failing(UnreachableError("refused"))
    world.ring(k)
    world.script = failing(None)
    assert world.ring(k) == "OK"
    assert world.codes(k) == [1.0]


def test_what_is_misconfigured_is_answered_at_once(world: World) -> None:
    nowhere = CollimateError("no such template", 404, "no_template")
    world.script = failing(nowhere, nowhere)
    k = world.put(k=2)
    assert world.ring(k) == "OK"
    assert world.codes(k) == ["no_template"] * 2
    world.script = failing(None, CollimateError("off", 400, "bad_request"))
    mixed = world.put(k=2)
    assert world.ring(mixed) == "OK"
    assert world.codes(mixed) == [1.0, "bad_request"]
    assert world.host.failures == []


def raising(error: Exception) -> Script:
    def script(index: int, answer: Callable[[Any], None], stop: threading.Event) -> None:
        raise error

    return script


@pytest.mark.parametrize("error", [SpecFault("the reference fails"), ValueError("impossible")])
def test_a_fault_of_the_spec_flags_every_open_candidate(world: World, error: Exception) -> None:
    world.script = raising(error)
    k = world.put(k=2)
    assert world.ring(k) == "OK"
    assert world.codes(k) == ["bad_request"] * 2
    result = world.queue.result(k)
    assert result is not None
    assert [v.detail for v in result.results] == [str(error)] * 2


def test_a_fault_of_ours_is_tried_again_and_the_third_is_answered(world: World) -> None:
    world.script = raising(KeyError("ours"))
    k = world.put(k=1)
    for errors in ("1", "2"):
        assert world.ring(k) == "OK"
        assert (state(world.queue.client, k)["status"], state(world.queue.client, k)["errors"]) == ("open", errors)
    assert world.ring(k) == "OK"
    assert world.codes(k) == ["internal"]
    result = world.queue.result(k)
    assert result is not None
    assert "KeyError" in str(result.results[0].detail)


def test_a_grade_that_cannot_be_written_is_a_fault_of_ours_not_the_specs(world: World) -> None:
    world.script = lambda index, answer, stop: answer(GradeResult(reward=None, infra_error=True, error_code="x"))
    k = world.put(k=1)
    world.ring(k)
    assert state(world.queue.client, k)["errors"] == "1"


def test_a_fenced_owner_writes_nothing(world: World) -> None:
    k = world.put(k=2)
    world.script = world.usurped(k)
    assert world.ring(k) == "FENCED"
    assert world.queue.client.hlen(keys.BatchKeys(k).verdicts) == 0
    assert state(world.queue.client, k)["owner"] == "other"


def test_a_stopping_worker_publishes_what_is_complete_and_releases_the_rest(world: World) -> None:
    def stopping(index: int, answer: Callable[[Any], None], stop: threading.Event) -> None:
        if index == last:
            world.host.stopping = 100.0
            assert stop.wait(30)
        answer(GOOD)

    world.script = stopping
    last = 1
    complete = world.put(k=2)
    assert world.ring(complete) == "OK"
    assert world.codes(complete) == [1.0, 1.0]
    last, world.host.stopping = 0, None
    rest = world.put(k=2)
    assert world.ring(rest) == "OK"
    found = state(world.queue.client, rest)
    assert (found["status"], found.get("losses"), found.get("errors")) == ("open", None, None)
    assert world.queue.client.hkeys(keys.BatchKeys(rest).verdicts) == [b"0"]


def test_the_last_chance_is_taken_alone_and_the_poisonous_are_left_out(world: World) -> None:
    k = world.put(k=4)
    world.queue.client.hset(keys.BatchKeys(k).state, mapping={"cautious": 1, "blame:0": 2, "blame:1": 3, "blame:2": 1})
    assert world.ring(k) == "OK"
    assert world.rounds == [[2, 3], [0]]
    assert world.codes(k) == [1.0, "quarantined", 1.0, 1.0]


def test_a_claim_whose_reply_was_lost_is_sent_again_by_the_same_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = world.put(k=1)
    claim, owners = world.queue.claim, []

    def lossy(k: str, owner: str, worker: str, node: str) -> Any:
        owners.append(owner)
        reply = claim(k, owner, worker, node)
        if len(owners) == 1:
            raise RedisUnavailable("the reply was lost")
        return reply

    monkeypatch.setattr(world.queue, "claim", lossy)
    assert world.ring(k) == "OK"
    assert len(owners) == 2
    assert len(set(owners)) == 1
    assert world.codes(k) == [1.0]


def test_cases_are_kept_once_for_whoever_takes_over(world: World) -> None:
    k = world.put()
    first = take(world.queue, k)
    store = QueueCaseStore(world.queue, first.hold)
    assert store.get() is None
    assert store.put(b"one") == b"one"
    assert store.put(b"two") == b"one"
    lapse(world.queue, k)
    settle(world.queue)
    take(world.queue, k, owner="other")
    assert store.get() == b"one"
    with pytest.raises(Fenced):
        store.put(b"three")


def test_a_batchs_own_case_limit_goes_into_its_spec(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    inner = world._grade_group

    def watch(execute: Executor, spec: Any, candidates: Sequence[str], **more: Any) -> None:
        seen.append(spec.case_timeout_s)
        inner(execute, spec, candidates, **more)

    monkeypatch.setattr(worker.group_work, "grade_group", watch)
    spec = json.dumps({"type": "unit_test", "tests": [{"input": 1, "expected": 1}], "case_timeout_s": 9.0})
    for case_timeout_s in (None, 2.5):
        world.ring(world.put(k=1, spec=spec, case_timeout_s=case_timeout_s))
    assert seen == [9.0, 2.5]


def test_a_batch_past_its_deadline_stops_and_is_answered(world: World) -> None:
    def endless(index: int, answer: Callable[[Any], None], stop: threading.Event) -> None:
        assert stop.wait(30)

    world.script = endless
    k = world.put(k=1, deadline_s=1.0)
    assert world.ring(k) == "OK"
    assert world.codes(k) == ["expired"]
    assert world.details(k) == ["the deadline of 1 s passed while others of its batch were being graded on node n1"]


def test_who_gave_it_back_and_why_is_told_when_nobody_takes_it_again(world: World) -> None:
    k = world.put(k=1)
    world.script = failing(UnreachableError("unix:/run/x.sock: refused"))
    assert world.ring(k) == "OK"
    overdue(world.queue, k)
    assert world.ring(k) == "DONE"
    assert world.codes(k) == ["expired"]
    assert str(world.details(k)[0]).endswith(
        " while it waited to be taken again: node n1 gave it back: the sandbox daemon of node n1 could not be reached: "
        "unix:/run/x.sock: refused (unreachable, 1 try)"
    )


def test_a_batch_that_no_node_took_says_so_and_what_the_node_said_meanwhile(world: World) -> None:
    unserved, away, busy = (world.put(k=1, id=name) for name in ("a", "b", "c"))
    overdue(world.queue, unserved)
    assert world.ring(unserved) == "DONE"
    world.queue.beat("n1", {"up": True})
    overdue(world.queue, busy)
    assert world.ring(busy) == "DONE"
    world.queue.beat("n1", {"up": False, "reason": "unix:/run/x.sock: cannot connect\nis it running?"})
    overdue(world.queue, away)
    assert world.ring(away) == "DONE"
    told = [str(world.details(k)[0]).partition(" passed ")[2] for k in (unserved, busy, away)]
    waited = "while it waited in the queue: "
    taken = "the node that served it did not take it"
    assert told[:2] == [f"{waited}no node serves queue grade", waited + taken]
    assert re.fullmatch(
        rf"{waited}{taken}; node n1 said \d+ s after the submit: unix:/run/x.sock: cannot connect is it running\?",
        told[2],
    )
