"""TRL's and verl's functions, called as those call them, over a fake Grader."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import pickle
from typing import Any

import numpy as np
import pytest

import collimate_rl.trl
import collimate_rl.verl
import collimate_rl.verl.reward
import producer.trl
import producer.verl
from collimate_rl.errors import CollimateError
from collimate_rl.hooks.rows import find_ground_truth, text_of, without_gaps
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.seeds import seed_from_key
from collimate_rl.testing import FakeGrader
from collimate_rl.trl.core import TrlHook
from collimate_rl.verl.core import VerlHook
from tests.fixtures.adapters import CASES, RIGHT, WRONG


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HookSettings.__dataclass_fields__:
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)


def judge(candidate: str) -> float | CollimateError:
    if "unlucky" in candidate:
        return CollimateError("lost", None, "sandbox_lost")
    return 1.0 if "x * x" in candidate else 0.0


UNLUCKY = "```python\ndef solve(x):\n    return unlucky\n```"


# -- TRL


@pytest.mark.parametrize("module", [collimate_rl.trl, producer.trl])
def test_trl_names_its_metrics_after_the_functions(module: Any) -> None:
    assert module.reward_func.__name__ == "reward_func"
    assert not inspect.iscoroutinefunction(module.reward_func)
    assert module.async_reward_func.__name__ == "async_reward_func"
    assert inspect.iscoroutinefunction(module.async_reward_func)
    assert pickle.loads(pickle.dumps(module.reward_func)) is module.reward_func


def test_trl_siblings_are_one_group_and_infra_trouble_abstains() -> None:
    grader = FakeGrader(judge)
    logged: list[tuple[str, float]] = []
    rewards = TrlHook(lambda _settings: grader).make()(
        prompts=["Square x."] * 3 + ["Square y."] * 2,
        completions=[RIGHT, UNLUCKY, WRONG, WRONG, RIGHT],
        completion_ids=[[1]] * 5,
        ground_truth=[json.dumps(CASES)] * 5,
        trainer_state=object(),
        log_extra=lambda column, values: None,
        log_metric=lambda name, value: logged.append((name, value)),
    )
    assert rewards == [1.0, None, 0.0, 0.0, 1.0]
    assert sorted(len(request.candidates) for request in grader.requests) == [2, 3]
    assert logged == [("collimate/infra_errors", 1.0)]


def test_trl_async_and_a_call_inside_a_running_loop() -> None:
    hook = TrlHook(lambda _settings: FakeGrader(judge))
    columns = {"prompts": ["p"], "completions": [RIGHT], "ground_truth": [CASES]}

    async def run() -> tuple[Any, Any]:
        return await hook.make(is_async=True)(**columns), hook.make()(**columns)

    assert asyncio.run(run()) == ([1.0], [1.0])


def test_trl_reads_known_columns_and_continues_humanevals_prompt() -> None:
    grader = FakeGrader()
    prompt = 'def double(x):\n    """ Twice x. """\n'
    columns = {
        "test": ["def check(candidate):\n    assert candidate(4) == 8\n"],
        "entry_point": ["double"],
        "test_list": [None],
    }
    assert TrlHook(lambda _settings: grader).make()([prompt], ["    return x + x\n"], **columns) == [1.0]
    assert grader.requests[0].spec.to_wire()["prompt"] == prompt


def test_trl_a_factory_takes_settings_and_refuses_strange_ones() -> None:
    grader = FakeGrader()
    hook = TrlHook(lambda _settings: grader)
    reward = hook.make(template="numpy", seed_mode="crn")
    assert reward(prompts=["p", "p"], completions=[RIGHT, RIGHT], ground_truth=[CASES] * 2) == [1.0, 1.0]
    request = grader.requests[0]
    assert (request.template, request.seeds) == ("numpy", (seed_from_key("p"),) * 2)
    with pytest.raises(ValueError, match="temlpate"):
        hook.make(temlpate="numpy")


def test_trl_counts_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 prompts for 1"):
        TrlHook(lambda _settings: FakeGrader()).make()(prompts=["a", "b"], completions=[RIGHT], ground_truth=[CASES])


# -- verl


@pytest.mark.parametrize("function", [collimate_rl.verl.compute_score, producer.verl.compute_score])
def test_verl_asks_for_a_plain_coroutine_function(function: Any) -> None:
    assert inspect.iscoroutinefunction(function)
    assert inspect.isfunction(function)
    assert list(inspect.signature(function).parameters) == [
        "data_source",
        "solution_str",
        "ground_truth",
        "extra_info",
        "kwargs",
    ]


def test_verl_loads_the_function_from_a_file() -> None:
    path = collimate_rl.verl.reward.__file__
    loading = importlib.util.spec_from_file_location("custom_module", path)
    assert loading is not None
    assert loading.loader is not None
    module = importlib.util.module_from_spec(loading)
    loading.loader.exec_module(module)
    assert inspect.iscoroutinefunction(module.compute_score)


def score(text: Any, truth: Any = CASES, grader: Any = None, info: Any = None, **kwargs: Any) -> dict[str, Any]:
    used = grader or FakeGrader(judge)
    kwargs.setdefault("collimate_infra_budget_s", 0)
    answer: dict[str, Any] = asyncio.run(VerlHook(lambda _settings: used).score("ours", text, truth, info, kwargs))
    return answer


def test_verl_every_dict_has_the_same_keys_with_the_same_types() -> None:
    answers = [score(text, collimate_on_infra_error="neutral") for text in (RIGHT, WRONG, UNLUCKY, "", None)]
    shapes = {tuple((key, type(value)) for key, value in answer.items()) for answer in answers}
    assert len(shapes) == 1
    assert [answer["score"] for answer in answers] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [answer["infra_error"] for answer in answers] == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert answers[2]["error_code"] == "sandbox_lost"


def test_verl_the_neutral_reward_is_the_runs() -> None:
    answer = score(UNLUCKY, collimate_on_infra_error="neutral", collimate_neutral_reward=-0.5)
    assert (answer["score"], answer["infra_error"]) == (-0.5, 1.0)


def test_verl_settings_come_as_reward_kwargs_and_the_rest_is_verls_own() -> None:
    grader = FakeGrader()
    info = {"index": 3, "split": "train"}
    score(RIGHT, grader=grader, info=info, collimate_template="numpy", collimate_seed_mode="crn", reward_router=None)
    assert (grader.requests[0].template, grader.requests[0].seeds) == ("numpy", (seed_from_key("3"),))


def test_verl_ground_truth_from_arrays_and_from_extra_info() -> None:
    array = np.array([{"input": np.array([2]), "expected": 4}], dtype=object)
    assert score(RIGHT, array)["score"] == 1.0
    assert score(RIGHT, None, info={"inputs": [[2]], "outputs": [4], "fn_name": "solve"})["score"] == 1.0


# -- rows


def test_gaps_that_tables_leave_are_dropped_but_no_value_is() -> None:
    row = {"test_list": ["assert f(None) is None"], "test": None, "inner": {"a": None, "b": [None, {"expected": None}]}}
    assert without_gaps(row) == {
        "test_list": ["assert f(None) is None"],
        "inner": {"b": [None, {"expected": None}]},
    }
    assert find_ground_truth({"ground_truth": {"test": None}, "answer": "4"}) is None


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("text", "text"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "b"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}], "bc"),
        ([{"role": "assistant", "content": "code"}, {"role": "tool", "content": "out"}], "code"),
        ([{"role": "assistant", "content": None}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_completions_are_texts_or_conversations(completion: Any, text: str) -> None:
    assert text_of(completion) == text
