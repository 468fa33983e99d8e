"""Every adapter end to end on rows of public data sets: inline against the real daemon, queued through real Redis and
a real worker. Between the two differ a dotted path and a URL, and nothing else."""

from __future__ import annotations

import asyncio
import importlib
import json
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import RunMisconfigured
from collimate_rl.hooks.settings import HookSettings
from producer.wiring import _graders, close_graders
from tests.fixtures.adapter_calls import CALLS, PACKAGES, RIGHT, SQUARES, WRONG, call
from tests.fixtures.adapter_rows import Task, tasks
from tests.fixtures.slime_samples import Sample

TASKS = tasks()
needs_rows = pytest.mark.skipif(not TASKS, reason="no data set beside the checkout")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*HookSettings.__dataclass_fields__, "serve_socket", "serve_url"):
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)
    monkeypatch.setenv("COLLIMATE_DEADLINE_S", "120")
    yield
    close_graders()


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, daemon_socket: str) -> str:
    """The package that the adapters come from; the environment names its backend, and only that."""
    if request.param == "inline":
        monkeypatch.setenv("COLLIMATE_SERVE_SOCKET", daemon_socket)
    else:
        monkeypatch.setenv("COLLIMATE_REDIS_URL", request.getfixturevalue("served_queue"))
    return PACKAGES[request.param]


def module(package: str, framework: str) -> Any:
    return importlib.import_module(f"{package}.{framework}")


def answers() -> tuple[list[tuple[Task, str]], list[float]]:
    pairs = [(task, text) for task in TASKS for text in (task.right, task.wrong, task.right)]
    return pairs, [1.0, 0.0, 1.0] * len(TASKS)


def rewards_in_slime(package: str, pairs: list[tuple[Task, str]]) -> list[Any]:
    samples = [
        Sample(task.prompt, text, json.dumps(task.truth), group_index=TASKS.index(task), index=index)
        for index, (task, text) in enumerate(pairs)
    ]
    args = Namespace(reward_key=None)
    return list(asyncio.run(module(package, "slime").group_reward_func(args, samples)))


def rewards_in_trl(package: str, pairs: list[tuple[Task, str]]) -> list[Any]:
    # one table for all: a column that a row does not have is None there
    names = sorted({name for task in TASKS for name in task.truth if name != "prompt"})
    columns = {name: [task.truth.get(name) for task, _ in pairs] for name in names}
    prompts = [task.prompt for task, _ in pairs]
    rewards = module(package, "trl").reward_func(
        prompts=prompts, completions=[text for _, text in pairs], completion_ids=[[0]] * len(pairs), **columns
    )
    return list(rewards)


def rewards_in_verl(package: str, pairs: list[tuple[Task, str]]) -> list[Any]:
    compute_score = module(package, "verl").compute_score

    async def score_all() -> list[Any]:
        return await asyncio.gather(
            *(
                compute_score(
                    data_source=task.source,
                    solution_str=text,
                    ground_truth=json.dumps(task.truth),
                    extra_info={"index": task.index, "split": "train"},
                    reward_router_address=None,
                )
                for task, text in pairs
            )
        )

    scored = asyncio.run(score_all())
    assert len({tuple(answer) for answer in scored}) == 1
    return [answer["score"] for answer in scored]


def rewards_in_skyrl(package: str, pairs: list[tuple[Task, str]]) -> list[Any]:
    skyrl_gym = pytest.importorskip("skyrl_gym", reason="needs the extra [skyrl]")
    module(package, "skyrl").register("collimate_code")

    def episode(task: Task, text: str) -> Any:
        extras = {
            "data_source": task.source,
            "reward_spec": {"method": "rule", "ground_truth": json.dumps(task.truth)},
            "extra_info": {"index": task.index, "split": "train"},
            "max_turns": 1,
        }
        env = skyrl_gym.make("collimate_code", env_config={}, extras=extras)
        prompt, _ = env.init(task.chat)
        assert prompt == task.chat
        answer = env.step(text)
        assert answer["done"]
        env.close()
        return answer["reward"]

    async def generate() -> list[Any]:
        return await asyncio.gather(*(asyncio.to_thread(episode, task, text) for task, text in pairs))

    return asyncio.run(generate())


FRAMEWORKS = {
    "slime": rewards_in_slime,
    "trl": rewards_in_trl,
    "verl": rewards_in_verl,
    "skyrl": rewards_in_skyrl,
}


@needs_rows
def test_rows_of_public_data_sets_in_each_frameworks_shape(package: str) -> None:
    pairs, expected = answers()
    for framework, rewards in FRAMEWORKS.items():
        got = rewards(package, pairs)
        assert got == expected, framework
        assert all(type(reward) is float for reward in got), framework


def skyrl_env(package: str, *, config: dict[str, Any] | None = None, **extras: Any) -> Any:
    skyrl_gym = pytest.importorskip("skyrl_gym", reason="needs the extra [skyrl]")
    module(package, "skyrl").register("collimate_code")
    row = {"reward_spec": {"ground_truth": SQUARES}, **extras}
    env = skyrl_gym.make("collimate_code", env_config=config or {}, extras=row)
    env.init([{"role": "user", "content": "Square x."}])
    return env


def test_skyrl_corrects_itself_over_turns(package: str) -> None:
    env = skyrl_env(package, max_turns=3, extra_info={"public_tests": [{"input": [5], "expected": 25}]})
    first = env.step(WRONG)
    content = first["observations"][0]["content"]
    assert (first["reward"], first["done"]) == (0.0, False)
    assert "passed 1 of 2 tests" in content
    assert "test 2: wrong_answer" in content
    assert "solve(5) should return 25" in content
    assert "9" not in content.replace("25", "")
    second = env.step(RIGHT)
    assert (second["reward"], second["done"], second["observations"]) == (1.0, True, [])
    assert env.get_metrics()["turns"] == 2


def test_skyrl_shows_no_input_of_a_hidden_test(package: str) -> None:
    hidden = [{"input": ["canary-in"], "expected": "canary-out"}]
    env = skyrl_env(package, max_turns=4, reward_spec={"ground_truth": hidden})
    for body in ("return x", "raise ValueError(x)", "print(x)", "import sys; sys.exit(x)"):
        answer = env.step(f"```python\ndef solve(x):\n    {body}\n```")
        assert answer["reward"] == 0.0
        assert "canary" not in str(answer["observations"])


def test_skyrl_reuses_one_session_and_leaves_none(daemon_socket: str) -> None:
    client = CollimateClient(unix_socket=daemon_socket)
    before = len(client.list_sessions())
    config = {"base_url": f"unix:{daemon_socket}", "reuse_session": True}
    env = skyrl_env("collimate_rl", config=config, max_turns=3)
    env.step(WRONG)
    assert len(client.list_sessions()) == before + 1
    assert env.step(RIGHT)["reward"] == 1.0
    assert len(client.list_sessions()) == before + 1
    env.close()
    env.close()
    assert len(client.list_sessions()) == before


def test_an_unknown_template_is_raised_by_each(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLIMATE_TEMPLATE", "no-such-template")
    slime, trl, verl = (module(package, name) for name in ("slime", "trl", "verl"))
    sample = Sample("p", RIGHT, SQUARES)
    for ask in (
        lambda: asyncio.run(slime.reward_func(Namespace(collimate_on_infra_error="filter"), sample)),
        lambda: trl.reward_func(prompts=["p"], completions=[RIGHT], ground_truth=[SQUARES]),
        lambda: asyncio.run(verl.compute_score("s", RIGHT, SQUARES, {}, collimate_on_infra_error="neutral")),
        lambda: skyrl_env(package, config={"on_infra_error": "neutral"}).step(RIGHT),
    ):
        with pytest.raises(RunMisconfigured) as caught:
            ask()
        assert caught.value.error_code == "no_template"


TRUTHS: dict[str, Any] = {
    "unit": SQUARES,
    "stdio": json.dumps({"inputs": ["2\n", "3\n"], "outputs": ["4\n", "9\n"]}),
    "assert": {"test_list": ["assert solve(2) == 4", "assert solve(3) == 9"]},
    "property": {"reference": "    return x * x", "generator": "random.randint(3, 9)", "k": 4},
}
COMPLETIONS = {
    "right": RIGHT,
    "a right program": "```python\nx = int(input())\nprint(x * x)\n```",
    "wrong": WRONG,
    "nothing": "",
    "leaves": "```python\nimport os\nprint('1.0')\nos._exit(0)\n```",
}
ODD = {
    "prose": "I can't.",
    "no Python": "```python\ndef solve(x)\n    return\n```",
    "a lone surrogate": "```python\ndef solve(x):\n    '\udc80'\n    return x * x\n```",
    "a null character": "def solve(x):\n    return '\0'\n",
    "endless": "```python\nimport time\ndef solve(x):\n    while True:\n        time.sleep(1)\n```",
    "too long": "def solve(x):\n    return x * x\n" + "# filler\n" * (1 << 17),
}


def test_inline_and_queued_say_the_same(daemon_socket: str, served_queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One dotted path and one URL apart: the same arguments get the same rewards; no completion is infra trouble."""
    monkeypatch.setenv("COLLIMATE_SERVE_SOCKET", daemon_socket)
    monkeypatch.setenv("COLLIMATE_REDIS_URL", served_queue)
    monkeypatch.setenv("COLLIMATE_TIMEOUT_SECONDS", "1")
    monkeypatch.setenv("COLLIMATE_SEED_MODE", "crn")

    def both(framework: str) -> dict[str, dict[str, tuple[Any, Any]]]:
        rewards = {}
        for kind, truth in TRUTHS.items():
            texts = {**COMPLETIONS, **(ODD if kind == "unit" else {})}
            ways = (
                call(framework, package, list(texts.values()), truth, neutral=False) for package in PACKAGES.values()
            )
            pairs = zip(*(way.rewards for way in ways), strict=True)
            rewards[kind] = dict(zip(texts, pairs, strict=True))
        return rewards

    with ThreadPoolExecutor(len(CALLS)) as pool:
        answered = dict(zip(CALLS, pool.map(both, CALLS), strict=True))
    for framework, kinds in answered.items():
        for kind, rewards in kinds.items():
            right = "a right program" if kind == "stdio" else "right"
            zeros = (
                {"nothing", "leaves", "wrong", *ODD} - {"a lone surrogate"} - ({"wrong"} if kind == "unit" else set())
            )
            assert all(inline == queued for inline, queued in rewards.values()), (framework, kind, rewards)
            assert rewards[right] == (1.0, 1.0), (framework, kind)
            assert all(rewards[name] == (0.0, 0.0) for name in zeros if name in rewards), (framework, kind, rewards)


def test_one_producer_serves_all_adapters_of_a_process(served_queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLIMATE_REDIS_URL", served_queue)
    monkeypatch.setenv("COLLIMATE_RUN", "shared")
    sample = Sample("p", RIGHT, SQUARES)
    assert asyncio.run(module("producer", "slime").reward_func(Namespace(), sample)) == 1.0
    assert module("producer", "trl").reward_func(prompts=["p"], completions=[RIGHT], ground_truth=[SQUARES]) == [1.0]
    assert skyrl_env("producer").step(RIGHT)["reward"] == 1.0
    assert len(_graders) == 1
