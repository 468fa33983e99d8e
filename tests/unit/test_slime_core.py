"""The slime hook against a fake Grader, called as slime v0.3.1 calls it."""

from __future__ import annotations

import asyncio
import copy
import enum
import inspect
import threading
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import pytest

import collimate_rl.slime
import collimate_rl.slime.reward as inline
from collimate_rl.errors import CollimateError, RunMisconfigured
from collimate_rl.grading.grader import GroupRequest, GroupScore
from collimate_rl.hooks.policy import hook_counts
from collimate_rl.seeds import DET_SEED, seed_from_key
from collimate_rl.slime import drop_infra_groups
from collimate_rl.slime.core import RewardHook
from collimate_rl.slime.settings import SlimeSettings
from collimate_rl.testing import FakeGrader

CASES = [{"input": [2], "expected": 4}, {"input": [3], "expected": 9}]


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """The attributes of slime's Sample that a reward hook may look at."""

    group_index: int | None = None
    index: int | None = None
    prompt: str | list[dict[str, str]] = "Square a number."
    response: str | None = "def solve(x):\n    return x * x\n"
    label: Any = None
    metadata: dict[str, Any] | None = field(default_factory=dict)
    reward: Any = None
    remove_sample: bool = False
    status: Status = Status.COMPLETED


def group(size: int, group_index: int = 0, **fields: Any) -> list[Sample]:
    fields.setdefault("label", CASES)
    template = Sample(group_index=group_index, **fields)
    members = [copy.deepcopy(template) for _ in range(size)]
    for position, member in enumerate(members):
        member.index = group_index * 100 + position
    return members


def hook(grader: Any, **options: Any) -> RewardHook:
    return RewardHook(lambda settings: grader, **options)


def ask(grader: Any, samples: Any, **args: Any) -> Any:
    return asyncio.run(hook(grader).rewards(Namespace(**args), samples))


def infra(code: str = "at_capacity") -> CollimateError:
    return CollimateError("no room", 503, code)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SlimeSettings.__dataclass_fields__:
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)


# -- the contract that slime's own test checks


@pytest.mark.parametrize(
    ("func", "names"), [(inline.reward_func, ["args", "sample"]), (inline.group_reward_func, ["args", "samples"])]
)
def test_hooks_are_async_functions_with_slimes_parameter_names(func: Any, names: list[str]) -> None:
    parameters = inspect.signature(func).parameters
    assert inspect.iscoroutinefunction(func)
    assert list(parameters)[:2] == names
    assert any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_hooks_are_found_under_both_documented_paths() -> None:
    assert collimate_rl.slime.reward_func is inline.reward_func
    assert collimate_rl.slime.group_reward_func is inline.group_reward_func


# -- shapes


def test_a_sample_gets_a_number() -> None:
    reward = ask(FakeGrader(), group(1)[0])
    assert reward == 1.0
    assert type(reward) is float


def test_a_list_gets_a_list_of_equal_length_and_order() -> None:
    grader = FakeGrader(lambda candidate: 1.0 if "x * x" in candidate else 0.0)
    samples = group(4)
    samples[2].response = "def solve(x):\n    return x\n"
    assert ask(grader, samples) == [1.0, 1.0, 0.0, 1.0]
    assert len(grader.requests) == 1


def test_a_list_of_lists_gets_the_same_shape() -> None:
    first, second, third = group(3)
    second.response = "def solve(x):\n    return x\n"
    grader = FakeGrader(lambda candidate: 1.0 if "x * x" in candidate else 0.0)
    assert ask(grader, [[first, second], [third]]) == [[1.0, 0.0], [1.0]]
    assert len(grader.requests) == 1


def test_an_empty_list_gets_an_empty_list() -> None:
    assert ask(FakeGrader(), []) == []


def test_slimes_fan_out_without_group_rm_calls_the_path_with_what_needs_a_reward() -> None:
    siblings = group(3)
    siblings[1].reward = 0.25
    needing = [sample for sample in siblings if sample.reward is None]
    for sample, reward in zip(needing, ask(FakeGrader(), needing), strict=True):
        sample.reward = reward
    assert [sample.reward for sample in siblings] == [1.0, 0.25, 1.0]


def test_samples_are_grouped_by_group_index_and_ground_truth() -> None:
    other = [{"input": [1], "expected": 1}]
    samples = [*group(2, 0), *group(2, 1), *group(1, 1, label=other)]
    samples = [samples[0], samples[2], samples[1], samples[4], samples[3]]
    grader = FakeGrader()
    assert ask(grader, samples) == [1.0] * 5
    assert sorted(len(request.candidates) for request in grader.requests) == [1, 2, 2]


def test_a_call_with_more_samples_than_a_group_may_hold_is_split() -> None:
    grader = FakeGrader()
    assert len(ask(grader, group(1030))) == 1030
    assert sorted(len(request.candidates) for request in grader.requests) == [6, 1024]


def test_reward_key_returns_a_dict_that_carries_it() -> None:
    args = Namespace(reward_key="score")
    sample = group(1)[0]
    reward = asyncio.run(hook(FakeGrader()).rewards(args, sample))
    assert reward[args.reward_key] == 1.0


# -- what a sample holds


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("response", ["", None])
def test_a_sample_without_a_response_is_graded_as_no_code(status: Status, response: str | None) -> None:
    samples = group(2)
    samples[1].status, samples[1].response = status, response
    assert ask(FakeGrader(lambda candidate: 1.0 if candidate.strip() else 0.0), samples) == [1.0, 0.0]
    assert samples[1].metadata is not None
    assert samples[1].metadata["collimate"]["outcome"] == "no_code"


@pytest.mark.parametrize(
    "metadata",
    [
        {"ground_truth": CASES},
        {"reward_spec": {"ground_truth": CASES}},
        {"reward_model": {"ground_truth": CASES}},
        {"inputs": [[2]], "outputs": [4], "fn_name": "solve"},
    ],
)
@pytest.mark.parametrize("label", [None, ""])
def test_ground_truth_is_found_in_metadata_where_there_is_no_label(metadata: dict[str, Any], label: Any) -> None:
    grader = FakeGrader()
    assert ask(grader, group(1, label=label, metadata=metadata)) == [1.0]


def test_no_ground_truth_anywhere_names_the_sample_and_the_options() -> None:
    with pytest.raises(ValueError, match=r"index 0 of group 0 has no ground truth.*--label-key"):
        ask(FakeGrader(), group(1, label=None))


def test_a_bad_ground_truth_is_a_value_error_that_names_the_sample() -> None:
    with pytest.raises(ValueError, match="the ground truth of the sample with index 0"):
        ask(FakeGrader(), group(2, label="{not json"))
    with pytest.raises(ValueError, match="in its metadata"):
        ask(FakeGrader(), group(1, label=None, metadata={"uid": 4}))


def test_metadata_gets_the_account_and_shared_dicts_stay_apart() -> None:
    shared = {"source": "a data set"}
    samples = [Sample(label=CASES, metadata=shared), Sample(label=CASES, metadata=shared, response="")]
    ask(FakeGrader(lambda candidate: float(bool(candidate.strip()))), samples)
    assert shared == {"source": "a data set"}
    assert [s.metadata and s.metadata["collimate"]["outcome"] for s in samples] == ["passed", "no_code"]
    assert samples[0].metadata is not None
    assert samples[0].metadata["collimate"]["infra_error"] is False
    assert samples[0].metadata["source"] == "a data set"


def test_code_is_extracted_for_the_configured_entry() -> None:
    grader = FakeGrader()
    fenced = "Well.\n```python\ndef area(x):\n    return x * x\n```\nDone."
    ask(grader, group(1, response=fenced), collimate_entry="area")
    assert grader.requests[0].candidates[0].strip() == "def area(x):\n    return x * x"


@pytest.mark.parametrize("filler", [1 << 20, 3 << 20])
def test_a_completion_that_is_too_long_is_its_writers_doing_and_no_infra_error(filler: int) -> None:
    samples = group(2)
    samples[0].response = "x = 1  # " + "a" * filler
    grader = FakeGrader()
    assert ask(grader, samples) == [0.0, 1.0]
    assert [len(request.candidates) for request in grader.requests] == [1]
    account = samples[0].metadata and samples[0].metadata["collimate"]
    assert (account["outcome"], account["infra_error"]) == ("output_limit", False)
    assert "at most" in account["detail"]
    assert ask(FakeGrader(), samples[:1]) == [0.0]


# -- configuration


def test_args_win_over_the_environment_which_wins_over_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SlimeSettings.of(Namespace()) == SlimeSettings()
    monkeypatch.setenv("COLLIMATE_TEMPLATE", "from-env")
    monkeypatch.setenv("COLLIMATE_TIMEOUT_SECONDS", "7")
    monkeypatch.setenv("COLLIMATE_CONCURRENCY", "3")
    settings = SlimeSettings.of(Namespace(collimate_template="from-args", collimate_concurrency=None))
    assert (settings.template, settings.timeout_seconds, settings.concurrency) == ("from-args", 7, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout_seconds", "soon"),
        ("timeout_seconds", "0"),
        ("seed_mode", "lucky"),
        ("base_seed", "12"),
        ("entry", "not a name"),
        ("concurrency", "0"),
        ("on_infra_error", "zero"),
        ("deadline_s", "nan"),
    ],
)
def test_a_bad_setting_is_a_value_error_that_names_it(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"COLLIMATE_{name.upper()}", value)
    with pytest.raises(ValueError, match=f"(?i)collimate_{name}"):
        SlimeSettings.of(Namespace())


def test_limits_and_template_reach_the_grader() -> None:
    grader = FakeGrader()
    ask(grader, group(1), collimate_template="numpy", collimate_timeout_seconds=5, collimate_deadline_s=60)
    request = grader.requests[0]
    assert (request.template, request.timeout_seconds, request.deadline_s) == ("numpy", 5, 60.0)


# -- seeds


def seeds(samples: list[Sample], **args: Any) -> list[str | None]:
    grader = FakeGrader()
    ask(grader, samples, **args)
    return [seed for request in grader.requests for seed in request.seeds]


def test_vanilla_leaves_seeds_to_the_daemon() -> None:
    assert seeds(group(3)) == [None] * 3


def test_deterministic_takes_the_base_seed_or_the_known_one() -> None:
    assert seeds(group(2), collimate_seed_mode="deterministic") == [DET_SEED] * 2
    base = "ab" * 32
    assert seeds(group(2), collimate_seed_mode="deterministic", collimate_base_seed=base) == [base] * 2


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"crn_seed": "cd" * 32, "crn_key": "k", "uid": "u", "index": 4}, "cd" * 32),
        ({"crn_key": "k", "uid": "u", "index": 4}, seed_from_key("k")),
        ({"uid": "u", "index": 4}, seed_from_key("u")),
        ({"index": 4}, seed_from_key("4")),
        ({}, seed_from_key("Square a number.")),
        (None, seed_from_key("Square a number.")),
    ],
)
def test_crn_seeds_hang_on_the_first_key_there_is(metadata: dict[str, Any] | None, expected: str) -> None:
    assert seeds(group(3, metadata=metadata), collimate_seed_mode="crn") == [expected] * 3


def test_crn_gives_siblings_in_separate_calls_the_same_seed() -> None:
    chat = [{"role": "user", "content": "Square a number."}]
    apart = [seeds([sample], collimate_seed_mode="crn")[0] for sample in group(3, prompt=chat)]
    assert len(set(apart)) == 1
    assert apart[0] is not None


def test_crn_salts_keys_with_the_base_seed() -> None:
    salted = seeds(group(1, metadata={"uid": "u"}), collimate_seed_mode="crn", collimate_base_seed="ab" * 32)
    assert salted == [seed_from_key("u", "ab" * 32)]


def test_a_malformed_crn_seed_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="crn_seed 'short'"):
        seeds(group(1, metadata={"crn_seed": "short"}), collimate_seed_mode="crn")


# -- infra trouble


def test_infra_trouble_raises_by_default_and_flags_the_samples() -> None:
    samples = group(2)
    samples[1].response = "def solve(x):\n    return unlucky\n"
    grader = FakeGrader(lambda candidate: infra() if "unlucky" in candidate else 1.0)
    with pytest.raises(CollimateError) as caught:
        ask(grader, samples)
    assert caught.value.error_code == "at_capacity"
    assert [s.metadata and s.metadata["collimate"]["infra_error"] for s in samples] == [False, True]


def test_filter_leaves_the_sample_unrewarded_and_the_filter_drops_its_group() -> None:
    samples = group(3)
    samples[1].response = "def solve(x):\n    return unlucky\n"
    args = Namespace(collimate_on_infra_error="filter")
    grader = FakeGrader(lambda candidate: infra() if "unlucky" in candidate else 1.0)
    rewards = asyncio.run(hook(grader).rewards(args, samples))
    assert rewards == [1.0, None, 1.0]
    for sample, reward in zip(samples, rewards, strict=True):
        sample.reward = reward
    verdict = drop_infra_groups(args, samples)
    assert (verdict.keep, verdict.reason) == (False, "infra_error_at_capacity")
    assert drop_infra_groups(args, [samples]).keep is False
    assert drop_infra_groups(args, [samples[0], samples[2]]).keep is True


def test_filter_looks_below_the_reward_key() -> None:
    args = Namespace(collimate_on_infra_error="filter", reward_key="score")
    samples = group(1)
    samples[0].reward = asyncio.run(hook(FakeGrader(lambda candidate: infra())).rewards(args, samples[0]))
    assert samples[0].reward["score"] is None
    samples[0].metadata = {}
    assert (drop_infra_groups(args, samples).keep, drop_infra_groups(args, samples).reason) == (False, "no_reward")


def test_neutral_gives_what_the_run_asked_for_flagged_and_counted() -> None:
    samples = group(2)
    samples[1].response = "def solve(x):\n    return unlucky\n"
    args = Namespace(collimate_on_infra_error="neutral", collimate_neutral_reward=-0.25)
    grader = FakeGrader(lambda candidate: infra() if "unlucky" in candidate else 1.0)
    before = hook_counts("slime")
    assert asyncio.run(hook(grader).rewards(args, samples)) == [1.0, -0.25]
    assert [s.metadata and s.metadata["collimate"]["infra_error"] for s in samples] == [False, True]
    after = hook_counts("slime")
    assert after.graded - before.graded == 1
    assert after.neutral - before.neutral == 1
    assert after.infra_errors["at_capacity"] - before.infra_errors.get("at_capacity", 0) == 1


def test_what_is_raised_is_counted_and_no_neutral_reward() -> None:
    before = hook_counts("slime")
    with pytest.raises(CollimateError):
        ask(FakeGrader(lambda candidate: infra()), group(2), collimate_neutral_reward=0.5)
    after = hook_counts("slime")
    assert after.neutral == before.neutral
    assert after.infra_errors["at_capacity"] - before.infra_errors.get("at_capacity", 0) == 2


@pytest.mark.parametrize("policy", ["raise", "filter", "neutral"])
@pytest.mark.parametrize("code", ["no_template", "unauthorized", "bad_request", "invalid_seed"])
def test_codes_that_no_retry_heals_always_raise(policy: str, code: str) -> None:
    with pytest.raises(RunMisconfigured) as caught:
        ask(FakeGrader(lambda candidate: infra(code)), group(2), collimate_on_infra_error=policy)
    assert caught.value.error_code == code


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1.5, -0.1])
def test_a_score_is_a_finite_number_from_zero_to_one(reward: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        GroupScore(reward=reward)


def test_a_grader_that_answers_too_few_scores_is_an_error_and_no_short_list() -> None:
    class Short(FakeGrader):
        async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
            return (await super().grade_group(request))[:-1]

    with pytest.raises(RuntimeError, match="2 scores for 3 candidates"):
        ask(Short(), group(3))


# -- the loop


def test_groups_in_flight_are_bounded_and_all_are_served() -> None:
    async def run() -> tuple[list[Any], FakeGrader]:
        gate = asyncio.Event()
        grader = FakeGrader(gate=gate)
        core = hook(grader)
        args = Namespace(collimate_concurrency=3)
        calls = [asyncio.ensure_future(core.rewards(args, sample)) for sample in group(10)]
        while grader.waiting < 3:
            await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert grader.waiting == 3
        gate.set()
        return await asyncio.gather(*calls), grader

    rewards, grader = asyncio.run(run())
    assert rewards == [1.0] * 10
    assert grader.most_waiting == 3


def test_one_hook_serves_loops_that_come_and_go_and_loops_side_by_side() -> None:
    core = hook(FakeGrader())
    for _ in range(3):
        assert asyncio.run(core.rewards(Namespace(), group(2))) == [1.0, 1.0]
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(asyncio.run(core.rewards(Namespace(), group(2)))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [[1.0, 1.0]] * 4
    asyncio.run(core.rewards(Namespace(), group(1)))
    assert len(core._scorer._semaphores) == 1


def test_the_loop_goes_on_while_ground_truth_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, go_on = threading.Event(), threading.Event()

    def slow(truth: Any, **options: Any) -> Any:
        parsing.set()
        assert go_on.wait(30)
        return "a spec"

    monkeypatch.setattr("collimate_rl.hooks.scoring.reward_spec_from_ground_truth", slow)

    async def run() -> Any:
        call = asyncio.ensure_future(hook(FakeGrader()).rewards(Namespace(), group(1)))
        while not parsing.is_set():
            await asyncio.sleep(0.001)
        go_on.set()
        return await call

    assert asyncio.run(run()) == [1.0]


def test_a_group_that_never_ends_is_expired_and_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collimate_rl.hooks.scoring.DEADLINE_MARGIN_S", 0.0)

    async def run() -> Any:
        grader = FakeGrader(gate=asyncio.Event())
        args = Namespace(collimate_deadline_s=0.01, collimate_on_infra_error="filter")
        samples = group(2)
        rewards = await hook(grader).rewards(args, samples)
        return rewards, grader.waiting, [s.metadata and s.metadata["collimate"]["error_code"] for s in samples]

    assert asyncio.run(run()) == ([None, None], 0, ["expired", "expired"])


def test_a_cancelled_call_cancels_its_groups() -> None:
    async def run() -> int:
        grader = FakeGrader(gate=asyncio.Event())
        call = asyncio.ensure_future(hook(grader).rewards(Namespace(), [*group(2, 0), *group(2, 1)]))
        while grader.waiting < 2:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        for _ in range(10):
            await asyncio.sleep(0)
        return grader.waiting

    assert asyncio.run(run()) == 0
