"""The inline Grader's own part: rounds, deadline, cancelling, and execs in flight. Grading itself is replaced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from collimate_rl import UnitTestReward
from collimate_rl.errors import CollimateError
from collimate_rl.grading import inline
from collimate_rl.grading.grader import GroupRequest
from collimate_rl.grading.inline import InlineGrader, jittered_pause
from collimate_rl.grading.result import GradeResult

SPEC = UnitTestReward([{"input": [2], "expected": 4}])
PASSED = GradeResult(reward=1.0, outcome="passed")
NO_ROOM = CollimateError("no room", 503, "at_capacity")


def request(count: int, deadline_s: float = 60.0) -> GroupRequest:
    candidates = tuple(f"candidate {n}" for n in range(count))
    return GroupRequest(template="py", spec=SPEC, candidates=candidates, seeds=(None,) * count, deadline_s=deadline_s)


class Rounds:
    """Stands for `grade_group`: `answer(round, index)` is a grade; records what was skipped in each round."""

    def __init__(self, answer: Callable[[int, int], GradeResult | CollimateError]) -> None:
        self.answer = answer
        self.skipped: list[set[int]] = []

    def __call__(self, execute: Any, spec: Any, candidates: Sequence[str], **options: Any) -> list[Any]:
        self.skipped.append(set(options["skip"]))
        number = len(self.skipped)
        for index in range(len(candidates)):
            if index not in options["skip"] and not options["stop"].is_set():
                options["on_grade"](index, self.answer(number, index))
        return []


def grader(monkeypatch: pytest.MonkeyPatch, rounds: Any, **options: Any) -> InlineGrader:
    monkeypatch.setattr(inline, "grade_group", rounds)
    return InlineGrader(None, pause=lambda attempt: 0.0, **options)  # type: ignore[arg-type]


def test_infra_trouble_is_tried_again_for_those_alone_that_met_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(lambda number, index: NO_ROOM if index == 1 and number < 3 else PASSED)
    scores = asyncio.run(grader(monkeypatch, rounds).grade_group(request(3)))
    assert [score.reward for score in scores] == [1.0] * 3
    assert rounds.skipped == [set(), {0, 2}, {0, 2}]


def test_after_three_rounds_the_failure_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(lambda number, index: NO_ROOM)
    scores = asyncio.run(grader(monkeypatch, rounds).grade_group(request(1)))
    assert [score.failure for score in scores] == [NO_ROOM]
    assert len(rounds.skipped) == 3


def test_a_misconfigured_run_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = CollimateError("no template", 404, "no_template")
    rounds = Rounds(lambda number, index: unknown)
    scores = asyncio.run(grader(monkeypatch, rounds).grade_group(request(2)))
    assert [score.failure for score in scores] == [unknown, unknown]
    assert len(rounds.skipped) == 1


def test_a_fault_of_the_spec_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(number: int, index: int) -> GradeResult:
        raise ValueError("its own reference does not pass")

    with pytest.raises(ValueError, match="reference"):
        asyncio.run(grader(monkeypatch, Rounds(fault)).grade_group(request(1)))


def test_verdicts_that_stand_at_the_deadline_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    stopped = threading.Event()

    def slow(execute: Any, spec: Any, candidates: Sequence[str], **options: Any) -> list[Any]:
        options["on_grade"](0, PASSED)
        assert options["stop"].wait(30)
        stopped.set()
        options["on_grade"](1, PASSED)
        end.set()
        return []

    scores = asyncio.run(grader(monkeypatch, slow).grade_group(request(2, deadline_s=0.05)))
    assert scores[0].reward == 1.0
    assert scores[1].failure is not None
    assert scores[1].failure.error_code == "expired"
    assert stopped.wait(30)
    assert end.wait(30)


def test_a_cancelled_task_stops_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    began, stopped = threading.Event(), threading.Event()

    def endless(execute: Any, spec: Any, candidates: Sequence[str], **options: Any) -> list[Any]:
        began.set()
        if options["stop"].wait(30):
            stopped.set()
        return []

    async def run() -> None:
        task = asyncio.ensure_future(grader(monkeypatch, endless).grade_group(request(1)))
        while not began.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert stopped.wait(30)


def test_execs_in_flight_are_bounded_over_all_groups() -> None:
    inside, most, lock = 0, 0, threading.Lock()
    gate = threading.Event()

    class Client:
        def exec_once(self, template: str, **body: Any) -> dict[str, Any]:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
                if inside == 2:
                    gate.set()
            assert gate.wait(30)
            with lock:
                inside -= 1
            raise CollimateError("no template", 404, "no_template")

    limited = InlineGrader(Client(), concurrency=2)  # type: ignore[arg-type]

    async def run() -> None:
        await asyncio.gather(*(limited.grade_group(request(4)) for _ in range(3)))

    asyncio.run(run())
    assert most == 2
    limited.close()


def test_pauses_grow_and_are_bounded() -> None:
    assert all(0.5 <= jittered_pause(attempt) <= 2.0 * 2**attempt for attempt in range(3) for _ in range(50))
