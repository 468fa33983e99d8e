"""slime's hook over the queue: real Redis, real worker, real daemon."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest

import producer.slime
from collimate_rl.errors import RunMisconfigured
from producer.wiring import close_graders
from tests.fixtures.slime_samples import Sample, group_of_eight


@pytest.fixture
def args(served_queue: str) -> Iterator[Namespace]:
    yield Namespace(
        collimate_redis_url=served_queue, collimate_timeout_seconds=2, collimate_deadline_s=120, reward_key=None
    )
    close_graders()


def test_groups_go_through_the_queue(args: Namespace) -> None:
    groups = [group_of_eight(turn) for turn in range(3)]
    for number, (samples, _) in enumerate(groups):
        for sample in samples:
            sample.group_index = number

    async def run() -> list[Any]:
        return await asyncio.gather(*(producer.slime.group_reward_func(args, samples) for samples, _ in groups))

    assert asyncio.run(run()) == [expected for _, expected in groups]


def test_samples_one_by_one_and_loops_that_come_and_go(args: Namespace) -> None:
    samples, expected = group_of_eight()
    for sample, reward in list(zip(samples, expected, strict=True))[:4]:
        assert asyncio.run(producer.slime.reward_func(args, sample)) == reward


def test_crn_seeds_travel_with_the_batch(args: Namespace) -> None:
    args.collimate_seed_mode = "crn"
    truth = {"reference": "    return x * 2", "generator": "random.randint(0, 10**9)", "k": 4}
    metadata = {"crn_seed": "ab" * 32}
    samples = [Sample("Double x.", "def solve(x):\n    return x * 2\n", truth, metadata=metadata) for _ in range(3)]
    assert asyncio.run(producer.slime.group_reward_func(args, samples)) == [1.0] * 3
    assert {sample.metadata["collimate"]["seed"] for sample in samples} == {"ab" * 32}


def test_an_unknown_template_raises(args: Namespace) -> None:
    args.collimate_template = "no-such-template"
    with pytest.raises((RunMisconfigured, ValueError), match="no-such-template"):
        asyncio.run(producer.slime.reward_func(args, group_of_eight()[0][0]))


def test_without_a_server_the_message_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLIMATE_REDIS_URL", raising=False)
    with pytest.raises(ValueError, match="COLLIMATE_REDIS_URL"):
        asyncio.run(producer.slime.reward_func(Namespace(), group_of_eight()[0][0]))
