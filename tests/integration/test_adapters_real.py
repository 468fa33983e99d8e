"""Every adapter end to end on rows of public data sets: inline against the real daemon, queued through real Redis and
a real worker. Between the two differ a dotted path and a URL, and nothing else."""

from __future__ import annotations

import asyncio
import importlib
import json
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.cli.processes import Child
from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError, RunMisconfigured
from collimate_rl.grading.inline import InlineGrader
from collimate_rl.hooks.settings import HookSettings
from producer.producer import Producer
from producer.wiring import _graders, close_graders
from tests.fixtures.adapter_rows import Task, tasks
from tests.fixtures.slime_samples import Sample

TASKS = tasks()
needs_rows = pytest.mark.skipif(not TASKS, reason="no data set beside the checkout")
WAYS = {"inline": "collimate_rl", "queued": "producer"}
SQUARES = [{"input": [2], "expected": 4}, {"input": [3], "expected": 9}]
RIGHT = "```python\ndef solve(x):\n    return x * x\n```"
WRONG = "```python\ndef solve(x):\n    return x + 2\n```"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*HookSettings.__dataclass_fields__, "serve_socket", "serve_url"):
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)
    monkeypatch.setenv("COLLIMATE_DEADLINE_S", "120")
    yield
    close_graders()


@pytest.fixture(params=WAYS)
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, daemon_socket: str) -> str:
    """The package that the adapters come from; the environment names its backend, and only that."""
    if request.param == "inline":
        monkeypatch.setenv("COLLIMATE_SERVE_SOCKET", daemon_socket)
    else:
        request.getfixturevalue("worker")
        monkeypatch.setenv("COLLIMATE_REDIS_URL", request.getfixturevalue("redis_url"))
    return WAYS[request.param]


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


def test_a_daemon_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collimate_rl.hooks.wiring.InlineGrader", partial(InlineGrader, attempts=1))
    monkeypatch.setenv("COLLIMATE_SERVE_SOCKET", str(tmp_path / "no.sock"))
    monkeypatch.setenv("COLLIMATE_INFRA_BUDGET_S", "0")
    columns = {"prompts": ["p"] * 2, "completions": [RIGHT, WRONG], "ground_truth": [SQUARES] * 2}
    assert module("collimate_rl", "trl").reward_func(**columns) == [None, None]
    with pytest.raises(CollimateError) as caught:
        asyncio.run(module("collimate_rl", "verl").compute_score("s", RIGHT, SQUARES, {}))
    assert caught.value.error_code == "unreachable"
    with pytest.raises(CollimateError) as caught:
        skyrl_env("collimate_rl").step(RIGHT)
    assert caught.value.error_code == "unreachable"


def ask_all(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each queued adapter makes of batches that nobody grades, side by side."""
    monkeypatch.setenv("COLLIMATE_RUN", "shared")
    slime, trl, verl = (module("producer", name) for name in ("slime", "trl", "verl"))
    sample = Sample("p", RIGHT, SQUARES)
    env = skyrl_env("producer", config={"on_infra_error": "neutral"})
    neutral = {"collimate_on_infra_error": "neutral"}

    async def run() -> list[Any]:
        return await asyncio.gather(
            slime.reward_func(Namespace(collimate_on_infra_error="filter"), sample),
            trl.async_reward_func(prompts=["p"], completions=[RIGHT], ground_truth=[SQUARES]),
            verl.compute_score("s", RIGHT, SQUARES, {}, **neutral),
            asyncio.to_thread(env.step, RIGHT),
        )

    reward, rewards, score, step = asyncio.run(run())
    assert (reward, rewards, score["infra_error"], step["done"]) == (None, [None], 1.0, True)
    return [
        sample.metadata["collimate"]["error_code"],
        score["error_code"],
        step["metadata"]["collimate"]["error_code"],
    ]


def test_results_that_come_too_late(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLIMATE_REDIS_URL", redis_url)
    monkeypatch.setenv("COLLIMATE_DEADLINE_S", "0.5")
    assert ask_all(monkeypatch) == ["expired"] * 3


def test_batches_that_somebody_cancels(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLIMATE_REDIS_URL", redis_url)

    async def cancel_all() -> None:
        with Producer(redis_url, run="shared", name="canceller") as canceller:
            cancelled = 0
            while cancelled < 4:
                cancelled += await asyncio.to_thread(canceller.cancel_run)
                await asyncio.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        cancelling = pool.submit(lambda: asyncio.run(asyncio.wait_for(cancel_all(), 60)))
        codes = ask_all(monkeypatch)
        cancelling.result(60)
    assert codes == ["cancelled"] * 3


def test_a_redis_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLIMATE_REDIS_URL", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("COLLIMATE_INFRA_BUDGET_S", "0")
    ask_all(monkeypatch)


def test_one_producer_serves_all_adapters_of_a_process(
    redis_url: str, worker: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLIMATE_REDIS_URL", redis_url)
    monkeypatch.setenv("COLLIMATE_RUN", "shared")
    sample = Sample("p", RIGHT, SQUARES)
    assert asyncio.run(module("producer", "slime").reward_func(Namespace(), sample)) == 1.0
    assert module("producer", "trl").reward_func(prompts=["p"], completions=[RIGHT], ground_truth=[SQUARES]) == [1.0]
    assert skyrl_env("producer").step(RIGHT)["reward"] == 1.0
    assert len(_graders) == 1
