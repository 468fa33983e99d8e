"""The queued wiring: a producer that can't be used any more is replaced, and one that was closed is no crash."""

from __future__ import annotations

import asyncio

from collimate_rl.errors import QueueError
from collimate_rl.grading.grader import GroupRequest
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.rewards import UnitTestReward
from producer.wiring import close_graders, queued_grader

SETTINGS = HookSettings(redis_url="unix:///nowhere/redis.sock", run="wiring")


def test_a_producer_that_broke_is_replaced() -> None:
    try:
        first = queued_grader(SETTINGS)
        assert queued_grader(SETTINGS) is first
        first._producer._lose(QueueError("the server refused for too long"))
        second = queued_grader(SETTINGS)
        assert second is not first
        assert not second.broken
        assert queued_grader(SETTINGS) is second
    finally:
        close_graders()


def test_a_grader_that_was_closed_leaves_its_groups_without_verdict() -> None:
    grader = queued_grader(SETTINGS)
    close_graders()
    request = GroupRequest(
        template="py",
        spec=UnitTestReward([{"input": [1], "expected": 1}]),
        candidates=("a", "b"),
        seeds=(None, None),
        timeout_seconds=5,
        deadline_s=5.0,
    )
    scores = asyncio.run(grader.grade_group(request))
    assert [type(score.failure) for score in scores] == [QueueError] * 2
    assert [score.reward for score in scores] == [None] * 2
