"""slime's hook, inline, against the real daemon."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.errors import CollimateError, RunMisconfigured
from collimate_rl.grading.inline import InlineGrader
from collimate_rl.slime import group_reward_func, reward_func
from tests.fixtures.slime_samples import ROW, Sample, group_of_eight


@pytest.fixture
def args(daemon_socket: str) -> Namespace:
    return Namespace(collimate_base_url=f"unix:{daemon_socket}", collimate_timeout_seconds=2, reward_key=None)


def test_a_group_as_group_rm_calls_it(args: Namespace) -> None:
    samples, expected = group_of_eight()
    assert asyncio.run(group_reward_func(args, samples)) == expected
    accounts = [sample.metadata["collimate"] for sample in samples]
    assert not any(account["infra_error"] for account in accounts)
    assert {account["integrity"] for account in accounts} == {"split"}


def test_samples_one_by_one_on_one_loop(args: Namespace) -> None:
    samples, expected = group_of_eight()

    async def generate_and_reward() -> list[Any]:
        return await asyncio.gather(*(reward_func(args, sample) for sample in samples))

    assert asyncio.run(generate_and_reward()) == expected


def test_fanned_out_samples_in_lists_of_lists_under_a_reward_key(args: Namespace) -> None:
    samples, expected = group_of_eight()
    args.reward_key = "score"
    nested = [samples[:2], samples[2:4]]
    rewards = asyncio.run(group_reward_func(args, nested))
    assert [[r["score"] for r in inner] for inner in rewards] == [expected[:2], expected[2:4]]


def test_crn_pins_a_propertys_inputs_for_the_whole_group(args: Namespace) -> None:
    truth = {"reference": "    return x * 2", "generator": "random.randint(0, 10**9)", "k": 4}
    args.collimate_seed_mode = "crn"
    samples = [Sample("Double x.", "def solve(x):\n    return x * 2\n", truth, index=i) for i in range(3)]
    assert asyncio.run(group_reward_func(args, samples)) == [1.0] * 3
    assert len({sample.metadata["collimate"]["seed"] for sample in samples}) == 1


def test_the_loop_is_never_blocked_while_an_endless_candidate_runs(args: Namespace) -> None:
    endless = Sample(ROW["prompt"], "def running_sum(values):\n    while True:\n        pass\n", ROW)

    async def run() -> tuple[Any, int]:
        turns = 0
        call = asyncio.ensure_future(reward_func(args, endless))
        while not call.done():
            await asyncio.sleep(0.01)
            turns += 1
        return call.result(), turns

    reward, turns = asyncio.run(run())
    assert reward == 0.0
    assert turns > 10


def test_an_unknown_template_raises_whatever_the_policy(args: Namespace) -> None:
    args.collimate_template, args.collimate_on_infra_error = "no-such-template", "filter"
    with pytest.raises(RunMisconfigured) as caught:
        asyncio.run(reward_func(args, group_of_eight()[0][0]))
    assert caught.value.error_code == "no_template"


def test_a_daemon_that_is_down_raises_or_filters_and_is_no_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collimate_rl.hooks.wiring.InlineGrader", partial(InlineGrader, attempts=1))
    args = Namespace(collimate_base_url=f"unix:{tmp_path}/no.sock", reward_key=None)
    sample = group_of_eight()[0][0]
    with pytest.raises(CollimateError) as caught:
        asyncio.run(reward_func(args, sample))
    assert caught.value.error_code == "unreachable"
    args.collimate_on_infra_error = "filter"
    assert asyncio.run(reward_func(args, sample)) is None
    assert sample.metadata["collimate"]["error_code"] == "unreachable"
