"""The queued Grader, over a producer of the test's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import pytest

from collimate_rl import UnitTestReward
from collimate_rl.errors import QueueFull
from collimate_rl.grading.grader import GroupRequest
from collimate_rl.protocol import BatchResult, ResultStatus, Verdict, infra_verdict
from producer.grader import ROOM, QueuedGrader, parts_of, score_of

SPEC = UnitTestReward([{"input": [2], "expected": 4}])


def request(*candidates: str, seeds: tuple[str | None, ...] | None = None) -> GroupRequest:
    return GroupRequest(template="py", spec=SPEC, candidates=candidates, seeds=seeds or (None,) * len(candidates))


def result(*verdicts: Verdict) -> BatchResult:
    return BatchResult(
        run="r",
        id="b",
        epoch=0,
        status=ResultStatus.GRADED,
        results=verdicts,
        submitted_at=0.0,
        claimed_at=1.0,
        finished_at=2.0,
        attempts=1,
        worker="w",
    )


class Handle:
    def __init__(self, answer: BatchResult | None) -> None:
        self.answer = answer
        self.cancelled = threading.Event()

    def __await__(self) -> Generator[Any, None, BatchResult]:
        while self.answer is None:
            yield from asyncio.sleep(0.001).__await__()
        return self.answer

    def cancel(self) -> None:
        self.cancelled.set()


class Producing:
    """A producer that hands out `handle`, or raises it."""

    def __init__(self, handle: Handle | Exception) -> None:
        self.handle = handle
        self.submitted: list[dict[str, Any]] = []
        self.may_submit = threading.Event()
        self.may_submit.set()

    def submit(self, **arguments: Any) -> Handle:
        assert self.may_submit.wait(30)
        self.submitted.append(arguments)
        if isinstance(self.handle, Exception):
            raise self.handle
        return self.handle

    def close(self) -> None:
        self.may_submit.set()


def grader(producing: Producing) -> QueuedGrader:
    return QueuedGrader(producing)  # type: ignore[arg-type]


def test_verdicts_come_back_as_scores_in_order() -> None:
    good = Verdict(index=0, reward=1.0, outcome="passed", seed="ab" * 32, grader_version="1")
    producing = Producing(Handle(result(good, infra_verdict(1, "at_capacity", "no room"))))
    scores = asyncio.run(grader(producing).grade_group(request("a", "b")))
    assert [score.reward for score in scores] == [1.0, None]
    assert (scores[0].outcome, scores[0].seed, scores[0].grader_version) == ("passed", "ab" * 32, "1")
    failure = scores[1].failure
    assert failure is not None
    assert (failure.error_code, failure.message) == ("at_capacity", "no room")


def test_a_group_that_is_too_large_for_a_batch_goes_in_several() -> None:
    sizes = [ROOM // 4] * 3 + [1, ROOM, ROOM + 1, 5]
    whole = request(*(chr(97 + index) * size for index, size in enumerate(sizes)))
    parts = list(parts_of(whole))
    assert [[text[0] for text in part.candidates] for part in parts] == [["a", "b", "c", "d"], ["e"], ["f"], ["g"]]
    assert tuple(text for part in parts for text in part.candidates) == whole.candidates
    assert all(len(part.seeds) == len(part.candidates) for part in parts)
    small = request("a", "b")
    assert list(parts_of(small)) == [small]
    producing = Producing(Handle(result(Verdict(index=0, reward=1.0, outcome="passed"))))
    scores = asyncio.run(grader(producing).grade_group(request("a" * ROOM, "b" * ROOM)))
    assert [score.reward for score in scores] == [1.0, 1.0]
    assert [arguments["candidates"][0][0] for arguments in producing.submitted] == ["a", "b"]


def test_seeds_travel_only_where_there_are_any() -> None:
    producing = Producing(Handle(result(Verdict(index=0, reward=0.0, outcome="no_code"))))
    asyncio.run(grader(producing).grade_group(request("a")))
    asyncio.run(grader(producing).grade_group(request("a", seeds=("cd" * 32,))))
    assert [arguments["seeds"] for arguments in producing.submitted] == [None, ["cd" * 32]]


def test_a_queue_that_refuses_is_infra_for_every_candidate_and_bad_input_raises() -> None:
    full = QueueFull("the queue is full")
    scores = asyncio.run(grader(Producing(full)).grade_group(request("a", "b")))
    assert [score.failure for score in scores] == [full, full]
    with pytest.raises(ValueError, match="too large"):
        asyncio.run(grader(Producing(ValueError("too large"))).grade_group(request("a")))


@pytest.mark.parametrize("while_submitting", [False, True])
def test_a_cancelled_task_cancels_its_batch(while_submitting: bool) -> None:
    handle = Handle(None)
    producing = Producing(handle)
    if while_submitting:
        producing.may_submit.clear()

    async def run() -> None:
        task = asyncio.ensure_future(grader(producing).grade_group(request("a")))
        for _ in range(20):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    producing.may_submit.set()
    assert handle.cancelled.wait(30)


def test_a_score_of_a_flagged_verdict_without_words_still_says_what_happened() -> None:
    failure = score_of(infra_verdict(0, "expired")).failure
    assert failure is not None
    assert "expired" in failure.message
