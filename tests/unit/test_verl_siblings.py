"""verl's samples of one row: gathered into one group, each answered for itself, never mixed with another row's."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from collimate_rl.errors import CollimateError
from collimate_rl.grading.grader import GroupRequest, GroupScore
from collimate_rl.hooks.rows import same_truth
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.testing import FakeGrader
from collimate_rl.verl.core import VerlHook
from tests.fixtures.adapters import CASES, RIGHT, WRONG

OTHER = [{"input": [1], "expected": 1}]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HookSettings.__dataclass_fields__:
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)


def judge(candidate: str) -> float:
    return 1.0 if "x * x" in candidate else 0.0


def sizes(grader: FakeGrader) -> list[int]:
    return sorted(len(request.candidates) for request in grader.requests)


async def ask(hook: VerlHook, text: str, truth: Any = CASES, index: Any = 0, **kwargs: Any) -> Any:
    return (await hook.score("ours", text, truth, {"index": index}, kwargs))["score"]


def test_calls_that_are_made_together_are_one_group_and_each_gets_its_own_score() -> None:
    grader = FakeGrader(judge)
    hook = VerlHook(lambda _settings: grader)

    async def run() -> list[Any]:
        return await asyncio.gather(*(ask(hook, RIGHT if n % 3 else WRONG) for n in range(8)))

    assert asyncio.run(run()) == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    assert sizes(grader) == [8]


def test_rows_truths_and_settings_are_never_mixed() -> None:
    grader = FakeGrader(judge)
    hook = VerlHook(lambda _settings: grader)

    async def run() -> list[Any]:
        return await asyncio.gather(
            *(ask(hook, RIGHT, index=n % 2) for n in range(4)),
            ask(hook, RIGHT, OTHER),
            ask(hook, RIGHT, collimate_timeout_seconds=5),
            ask(hook, RIGHT, [{"input": [2], "expected": 4.0}, {"input": [3], "expected": 9}]),
        )

    assert asyncio.run(run()) == [1.0] * 7
    assert sizes(grader) == [1, 1, 1, 2, 2]


def test_what_waits_for_its_turn_is_still_joined() -> None:
    async def run() -> tuple[list[Any], list[int]]:
        gate = asyncio.Event()
        grader = FakeGrader(judge, gate=gate)
        hook = VerlHook(lambda _settings: grader, groups_in_flight=lambda _settings: 1)
        first = asyncio.ensure_future(ask(hook, RIGHT, index="first"))
        while grader.waiting < 1:
            await asyncio.sleep(0.001)
        later = []
        for _ in range(3):
            later.append(asyncio.ensure_future(ask(hook, WRONG)))
            await asyncio.sleep(0.05)
        gate.set()
        return await asyncio.gather(first, *later), sizes(grader)

    assert asyncio.run(run()) == ([1.0, 0.0, 0.0, 0.0], [1, 3])


@pytest.mark.parametrize("graded", [False, True])
def test_a_cancelled_call_leaves_its_siblings_alone(graded: bool) -> None:
    async def run() -> tuple[Any, int]:
        gate = asyncio.Event()
        grader = FakeGrader(judge, gate=gate)
        hook = VerlHook(lambda _settings: grader)
        calls = [asyncio.ensure_future(ask(hook, text)) for text in (WRONG, RIGHT, WRONG)]
        await asyncio.sleep(0)
        while graded and grader.waiting < 1:
            await asyncio.sleep(0.001)
        calls[0].cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        return await asyncio.gather(*calls[1:]), len(grader.requests[0].candidates)

    assert asyncio.run(run()) == ([1.0, 0.0], 3 if graded else 2)


def test_when_all_callers_are_cancelled_so_is_the_group() -> None:
    async def run() -> int:
        grader = FakeGrader(judge, gate=asyncio.Event())
        hook = VerlHook(lambda _settings: grader)
        calls = [asyncio.ensure_future(ask(hook, RIGHT)) for _ in range(3)]
        while grader.waiting < 1:
            await asyncio.sleep(0.001)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for _ in range(10):
            await asyncio.sleep(0)
        return grader.waiting

    assert asyncio.run(run()) == 0


def test_trouble_reaches_every_sibling() -> None:
    hook = VerlHook(lambda _settings: FakeGrader(lambda _candidate: CollimateError("lost", None, "sandbox_lost")))

    async def run(truth: Any) -> list[Any]:
        calls = (ask(hook, RIGHT, truth, collimate_infra_budget_s=0) for _ in range(3))
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in asyncio.run(run(CASES))] == [CollimateError] * 3
    assert [type(error) for error in asyncio.run(run("{no json"))] == [ValueError] * 3


def test_one_bad_sibling_costs_the_others_nothing() -> None:
    class Unlucky:
        async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
            lost = GroupScore(failure=CollimateError("lost", None, "sandbox_lost"))
            return [
                lost if "x * x" in text else GroupScore(reward=0.0, outcome="passed") for text in request.candidates
            ]

    hook = VerlHook(lambda _settings: Unlucky())

    async def run() -> list[Any]:
        calls = (ask(hook, text, collimate_infra_budget_s=0) for text in (WRONG, RIGHT, WRONG))
        return await asyncio.gather(*calls, return_exceptions=True)

    first, second, third = asyncio.run(run())
    assert (first, third) == (0.0, 0.0)
    assert isinstance(second, CollimateError)


def test_loops_that_come_and_go_and_run_side_by_side() -> None:
    hook = VerlHook(lambda _settings: FakeGrader(judge))

    async def run() -> list[Any]:
        return await asyncio.gather(*(ask(hook, RIGHT) for _ in range(5)))

    assert [asyncio.run(run()) for _ in range(3)] == [[1.0] * 5] * 3
    scored: list[Any] = []
    threads = [threading.Thread(target=lambda: scored.append(asyncio.run(run()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert scored == [[1.0] * 5] * 4


def test_a_loop_that_dies_with_open_groups_takes_nobody_along() -> None:
    hook = VerlHook(lambda _settings: FakeGrader(judge))

    async def abandon() -> None:
        call = asyncio.ensure_future(ask(hook, RIGHT))
        await asyncio.sleep(0)
        assert not call.done()

    for _ in range(3):
        asyncio.run(abandon())
    assert asyncio.run(ask(hook, RIGHT)) == 1.0
    assert len(hook._siblings._open) == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("[1]", "[1]", True),
        ([{"expected": 1}], [{"expected": 1}], True),
        ([{"expected": 1}], [{"expected": True}], False),
        ([{"expected": 1}], [{"expected": 1.0}], False),
        ("[1]", [1], False),
        (float("nan"), float("nan"), False),
    ],
)
def test_truths_that_are_merely_equal_are_not_the_same(one: Any, other: Any, same: bool) -> None:
    assert same_truth(one, other) is same
