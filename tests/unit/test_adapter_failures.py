"""What infra trouble is in every adapter: raised, or the framework's "no verdict"; never a 0 of ours."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from collimate_rl.errors import (
    CollimateDrainingError,
    CollimateError,
    DemoTierLimit,
    GatewayError,
    QueueFull,
    RedisUnavailable,
    RunMisconfigured,
    UnreachableError,
    UnsuitableServer,
)
from collimate_rl.grading.grader import GroupRequest, GroupScore
from collimate_rl.grading.inline import InlineGrader
from collimate_rl.hooks import scoring
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.protocol import BatchResult, ResultStatus, infra_verdict
from collimate_rl.testing import FakeGrader
from producer.grader import QueuedGrader
from producer.producer import Producer
from tests.fixtures.adapters import ADAPTERS, RIGHT, WRONG, Ask


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HookSettings.__dataclass_fields__:
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)


@pytest.fixture(params=ADAPTERS)
def ask(request: pytest.FixtureRequest) -> Ask:
    return ADAPTERS[request.param]


class RefusingClient:
    """A backend on which every call ends in `error`."""

    def __init__(self, error: CollimateError) -> None:
        self.error = error
        self.calls = 0

    def exec_once(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        self.calls += 1
        raise self.error

    create_session = health = exec_once


class RefusingProducer:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def submit(self, **arguments: Any) -> Any:
        raise self.error


class AnsweringHandle:
    def __init__(self, code: str, size: int) -> None:
        self.code, self.size = code, size

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return BatchResult(
            run="r",
            id="b",
            epoch=0,
            status=ResultStatus(self.code),
            results=tuple(infra_verdict(index, self.code) for index in range(self.size)),
            submitted_at=0.0,
            claimed_at=1.0,
            finished_at=2.0,
            attempts=1,
            worker="w",
        )

    def cancel(self) -> None:
        pass


class AnsweringProducer:
    """A queue that answers every batch with `code`."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.submitted = 0

    def submit(self, **arguments: Any) -> AnsweringHandle:
        self.submitted += 1
        return AnsweringHandle(self.code, len(arguments["candidates"]))


def inline(error: CollimateError) -> InlineGrader:
    return InlineGrader(cast(Any, RefusingClient(error)), concurrency=2, attempts=1)


def queued(error: Exception) -> QueuedGrader:
    return QueuedGrader(cast(Producer, RefusingProducer(error)))


PASSING: dict[str, Callable[[], Any]] = {
    "backend down": lambda: inline(UnreachableError("connection refused")),
    "at capacity for longer than the budget": lambda: inline(CollimateError("no room", 503, "at_capacity")),
    "draining": lambda: inline(CollimateDrainingError("going away")),
    "queue full": lambda: queued(QueueFull("the queue is full")),
    "window full": lambda: queued(TimeoutError("no room came")),
    "Redis down": lambda: queued(RedisUnavailable("connection refused")),
    "result late": lambda: QueuedGrader(cast(Producer, AnsweringProducer("expired"))),
    "batch cancelled": lambda: QueuedGrader(cast(Producer, AnsweringProducer("cancelled"))),
}
FATAL: dict[str, Callable[[], Any]] = {
    "wrong template": lambda: inline(CollimateError("no such template", 404, "no_template")),
    "wrong template, queued": lambda: queued(RunMisconfigured("no node has it", None, "no_template")),
    "unauthorized": lambda: inline(GatewayError("bad key", 401, "unauthorized")),
    "quota": lambda: inline(GatewayError("used up", 403, "quota_exceeded")),
    "demo limit": lambda: inline(DemoTierLimit("The demo tier runs 3 sandboxes.")),
    "a Redis that may lose batches": lambda: queued(UnsuitableServer("it evicts keys")),
}


@pytest.mark.parametrize("trouble", PASSING)
def test_infra_trouble_is_raised_or_no_verdict(ask: Ask, trouble: str) -> None:
    with pytest.raises(CollimateError) as caught:
        ask(PASSING[trouble](), [RIGHT], infra_budget_s=0)
    assert caught.value.is_infra
    assert ask(PASSING[trouble](), [RIGHT, WRONG], infra_budget_s=0, neutral=True) == [None, None]


@pytest.mark.parametrize("trouble", FATAL)
@pytest.mark.parametrize("neutral", [False, True])
def test_what_no_retry_heals_is_always_raised_and_at_once(ask: Ask, trouble: str, neutral: bool) -> None:
    with pytest.raises(CollimateError) as caught:
        ask(FATAL[trouble](), [RIGHT], neutral=neutral)
    if trouble == "demo limit":
        assert type(caught.value) is DemoTierLimit
        assert str(caught.value) == "The demo tier runs 3 sandboxes."


@pytest.mark.parametrize("surplus", [-1, 1])
def test_a_list_of_another_length_is_an_error(ask: Ask, surplus: int) -> None:
    class Miscounting:
        async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
            return [GroupScore(reward=1.0, outcome="passed")] * (len(request.candidates) + surplus)

    with pytest.raises(RuntimeError, match="scores for"):
        ask(Miscounting(), [RIGHT, WRONG], neutral=True)


@pytest.mark.parametrize("reward", [math.nan, math.inf, 7.0])
def test_nan_is_never_a_reward(ask: Ask, reward: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        ask(FakeGrader(lambda _candidate: reward), [RIGHT], neutral=True)


def test_rewards_come_in_order_and_a_mixed_batch_keeps_what_is_graded(ask: Ask) -> None:
    def judge(candidate: str) -> float | CollimateError:
        if "unlucky" in candidate:
            return CollimateError("lost", None, "sandbox_lost")
        return 1.0 if "x * x" in candidate else 0.0

    unlucky = "```python\ndef solve(x):\n    return unlucky\n```"
    completions = [RIGHT, unlucky, WRONG, RIGHT]
    assert ask(FakeGrader(judge), completions, neutral=True, infra_budget_s=0) == [1.0, None, 0.0, 1.0]
    assert ask(FakeGrader(judge), [], neutral=True) == []


@pytest.mark.parametrize("truth", ["{no json", [{"input": [1]}], {"unknown": 1}])
def test_a_ground_truth_that_cannot_be_graded_by_is_a_value_error(ask: Ask, truth: Any) -> None:
    with pytest.raises(ValueError, match="ground truth"):
        ask(FakeGrader(), [RIGHT], truth, neutral=True)


@pytest.mark.parametrize("truth", [None, "", [], {}])
def test_no_ground_truth_is_a_value_error(ask: Ask, truth: Any) -> None:
    with pytest.raises(ValueError, match="no ground truth"):
        ask(FakeGrader(), [RIGHT], truth, neutral=True)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def scores_with(grader: Any, clock: Clock, budget_s: float, **settings: Any) -> list[GroupScore]:
    scorer: Any = scoring.GroupScorer(lambda _settings: grader, clock=clock, sleep=clock.sleep, jitter=lambda: 1.0)
    members = [scoring.Member(completion=text, seed=None, name=text) for text in (RIGHT, WRONG)]
    truth = [{"input": [2], "expected": 4}]
    scored: list[GroupScore] = asyncio.run(
        scorer.scores(HookSettings(**settings), truth, members, about="a row", infra_budget_s=budget_s)
    )
    return scored


def test_only_what_failed_is_tried_again_until_it_is_graded() -> None:
    clock = Clock()
    busy = CollimateError("no room", 503, "at_capacity")
    grader = FakeGrader(lambda candidate: busy if "x * x" in candidate and clock.now < 20 else 1.0)
    first, second = scores_with(grader, clock, 600)
    assert (first.reward, second.reward) == (1.0, 1.0)
    assert [len(request.candidates) for request in grader.requests] == [2, 1, 1, 1, 1, 1]
    assert (first.attempts, second.attempts) == (6, 1)


@pytest.mark.parametrize("budget_s", [0.0, 30.0, 600.0])
def test_the_budget_bounds_the_retries(budget_s: float) -> None:
    clock = Clock()
    grader = FakeGrader(lambda _candidate: CollimateError("no room", 503, "at_capacity"))
    scores = scores_with(grader, clock, budget_s)
    assert [score.failure is not None for score in scores] == [True, True]
    assert clock.now == budget_s


def test_the_deadline_bounds_them_too_and_shrinks_with_every_attempt() -> None:
    clock = Clock()
    grader = FakeGrader(lambda _candidate: CollimateError("no room", 503, "at_capacity"))
    scores_with(grader, clock, 600, deadline_s=10.0)
    assert clock.now == 10.0
    deadlines = [request.deadline_s for request in grader.requests]
    assert deadlines == sorted(deadlines, reverse=True)
    assert deadlines[0] == 10.0


@pytest.mark.parametrize("code", ["expired", "cancelled", "quarantined", "no_template", "demo_tier_limit"])
def test_what_stands_is_not_tried_again(code: str) -> None:
    clock = Clock()
    grader = FakeGrader(lambda _candidate: CollimateError("no", None, code))
    scores_with(grader, clock, 600)
    assert len(grader.requests) == 1


@pytest.mark.parametrize("given", [{"timeout_seconds": 0}, {"on_infra_error": "zero"}, {"no_such_setting": 1}])
def test_a_bad_setting_is_a_value_error_that_names_it(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        HookSettings.read(given)


def test_settings_given_win_over_the_environment_which_wins_over_defaults() -> None:
    environ = {"COLLIMATE_TEMPLATE": "from-env", "COLLIMATE_RUN": "named", "COLLIMATE_INFRA_BUDGET_S": "5"}
    settings = HookSettings.read({"template": "given"}, {"template": "later", "queue": "q"}, environ=environ, run="trl")
    assert (settings.template, settings.queue, settings.run, settings.infra_budget_s) == ("given", "q", "named", 5.0)
    assert HookSettings.read(environ={}, run="trl").run == "trl"
    with pytest.raises(ValueError, match="COLLIMATE_TIMEOUT_SECONDS is 'soon'"):
        HookSettings.read(environ={"COLLIMATE_TIMEOUT_SECONDS": "soon"})
