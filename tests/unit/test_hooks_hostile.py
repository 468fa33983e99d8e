"""What a hook may be handed by mistake: each is read as meant, or refused by name; none of it becomes a quiet 0."""

from __future__ import annotations

import asyncio
import threading
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collimate_rl.hooks.rows import is_empty, plain, same_truth
from collimate_rl.hooks.scoring import GroupScorer
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.skyrl.core import CodeEpisode
from collimate_rl.slime.core import RewardHook
from collimate_rl.testing import FakeGrader
from collimate_rl.trl.core import TrlHook
from collimate_rl.verl.core import VerlHook
from tests.fixtures.adapters import ADAPTERS, CASES, RIGHT, Ask
from tests.fixtures.slime_samples import Sample


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HookSettings.__dataclass_fields__:
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)


def array(items: list[Any]) -> Any:
    made = np.empty(len(items), dtype=object)
    made[:] = items
    return made


def slime(samples: Any, **args: Any) -> Any:
    return asyncio.run(RewardHook(lambda _settings: FakeGrader()).rewards(Namespace(**args), samples))


def trl(**columns: Any) -> Any:
    return TrlHook(lambda _settings: FakeGrader()).make()(**columns)


def episode(extras: Any, **config: Any) -> CodeEpisode:
    made = CodeEpisode(GroupScorer(lambda _settings: FakeGrader(lambda _candidate: 0.0)), config, extras, {})
    made.start("p")
    return made


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize(
    "truth", [array(CASES), [{"input": array([2]), "expected": np.int64(4)}]], ids=["rows", "cells"]
)
def test_ground_truths_of_arrays_are_read(name: str, truth: Any) -> None:
    ask: Ask = ADAPTERS[name]
    assert ask(FakeGrader(), [RIGHT, RIGHT], truth) == [1.0, 1.0]


def test_a_ground_truth_in_an_array_of_no_dimension() -> None:
    hook = VerlHook(lambda _settings: FakeGrader())
    truth = np.array('[{"input": [2], "expected": 4}]')
    assert asyncio.run(hook.score("d", RIGHT, truth, {}, {}))["score"] == 1.0
    assert not is_empty(truth)


def test_what_is_expected_keeps_its_types() -> None:
    truth = [{"input": [2], "expected": {1: (2, array([3]))}}]
    assert plain(truth) == [{"input": [2], "expected": {1: (2, [3])}}]
    grader = FakeGrader()
    for ask in ADAPTERS.values():
        ask(grader, [RIGHT], truth)
    assert [request.spec.tests[0]["expected"] for request in grader.requests] == [{1: (2, [3])}] * len(ADAPTERS)  # type: ignore[attr-defined]


def test_arrays_are_the_same_truth_only_by_identity() -> None:
    one = array(CASES)
    assert same_truth(one, one)
    assert not same_truth(one, array(CASES))


WRONG_TEXTS = [b"def solve(x): pass", [101, 102, 103], 5, {1, 2}]


@pytest.mark.parametrize("text", WRONG_TEXTS, ids=["bytes", "token ids", "a number", "a set"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda text: slime(Sample("p", text, CASES)),
        lambda text: trl(prompts=["p"], completions=[text], ground_truth=[CASES]),
        lambda text: asyncio.run(VerlHook(lambda _settings: FakeGrader()).score("d", text, CASES, {}, {})),
        lambda text: episode({"ground_truth": CASES}).turn(text),
    ],
    ids=["slime", "trl", "verl", "skyrl"],
)
def test_what_is_no_text_is_refused_and_no_zero(ask: Callable[[Any], Any], text: Any) -> None:
    with pytest.raises(ValueError, match="a completion is text or a list of messages"):
        ask(text)


def test_slimes_nested_and_empty_shapes() -> None:
    sample = Sample("p", RIGHT, CASES)
    assert slime([[], []]) == [[], []]
    assert slime([[sample], [], (sample,)]) == [[1.0], [], [1.0]]
    assert slime([]) == []
    for nothing in (
        None,
        [None],
        [Sample("p", RIGHT, None)],
        [Sample("p", RIGHT, {})],
        [Sample("p", RIGHT, array([]))],
    ):
        with pytest.raises(ValueError, match="no ground truth"):
            slime(nothing)


def test_slime_takes_conversations_and_prompts_of_messages() -> None:
    chat = [{"role": "user", "content": "Square x. \udc80"}]
    response = [*chat, {"role": "assistant", "content": [{"type": "text", "text": RIGHT}]}]
    samples = [Sample(chat, response, CASES), Sample(chat, RIGHT, CASES)]  # type: ignore[arg-type]
    assert slime(samples, collimate_seed_mode="crn") == [1.0, 1.0]
    seeds = {sample.metadata["collimate"]["seed"] for sample in samples}
    assert len(seeds) == 1


def test_trls_columns_may_be_arrays_and_tuples() -> None:
    texts = '[{"input": [2], "expected": 4}]'
    assert trl(prompts=np.array(["a", "b"]), completions=np.array([RIGHT] * 2), ground_truth=np.array([texts] * 2)) == [
        1.0,
        1.0,
    ]
    assert trl(prompts=("a",), completions=(RIGHT,), ground_truth=(CASES,)) == [1.0]
    assert trl(prompts=[], completions=[]) == []


@pytest.mark.parametrize("name", ["prompts", "completions"])
def test_trl_one_text_is_no_list_of_texts(name: str) -> None:
    columns: dict[str, Any] = {"prompts": ["p", "p"], "completions": [RIGHT] * 2, "ground_truth": [CASES] * 2}
    with pytest.raises(ValueError, match=f"{name} is one text"):
        trl(**{**columns, name: "ab"})


@pytest.mark.parametrize("turns", ["many", float("nan"), float("inf"), 0, -1, [2]])
def test_skyrl_turns_that_are_none_are_refused_by_name(turns: Any) -> None:
    with pytest.raises(ValueError, match="max_turns"):
        episode({"ground_truth": CASES, "max_turns": turns})


def test_skyrl_public_tests_in_an_array() -> None:
    answer = episode({"ground_truth": CASES, "public_tests": array(CASES), "max_turns": np.int64(2)}).turn(RIGHT)
    assert (answer["done"], answer["reward"]) == (False, 0.0)


@pytest.mark.parametrize("value", [True, 2.5, "2.5", [3], float("nan")])
def test_settings_of_the_wrong_kind_are_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="collimate_timeout_seconds"):
        slime(Sample("p", RIGHT, CASES), collimate_timeout_seconds=value)


class Noted(dict[str, Any]):
    """Notes the threads on which it is walked or shown."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.on: set[threading.Thread] = set()

    def items(self) -> Any:
        self.on.add(threading.current_thread())
        return super().items()

    def __repr__(self) -> str:
        self.on.add(threading.current_thread())
        return super().__repr__()


def test_large_ground_truths_are_read_and_compared_beside_the_loop() -> None:
    truths = [Noted({"input": [2], "expected": 4}) for _ in range(4)]
    assert slime([Sample("p", RIGHT, [truth], index=index) for index, truth in enumerate(truths)]) == [1.0] * 4
    assert asyncio.run(VerlHook(lambda _settings: FakeGrader()).score("d", RIGHT, truths[:1], {}, {}))["score"] == 1.0
    met = set().union(*(truth.on for truth in truths))
    assert met
    assert threading.current_thread() not in met


def test_crn_of_a_ground_truth_whose_keys_have_no_order() -> None:
    truth = [{"input": [2], "expected": {1: 4, "a": 5}}]
    ask = VerlHook(lambda _settings: FakeGrader()).score("d", RIGHT, truth, {}, {"collimate_seed_mode": "crn"})
    assert asyncio.run(ask)["score"] == 1.0


def test_a_ground_truth_that_holds_itself_is_refused_by_name() -> None:
    truth: list[Any] = []
    truth.append(truth)
    with pytest.raises(ValueError, match="the ground truth of the sample"):
        asyncio.run(VerlHook(lambda _settings: FakeGrader()).score("d", RIGHT, truth, {}, {}))
