"""SkyRL's environment, made by skyrl_gym, with a fake policy that corrects itself after what it is told.

    pip install 'collimate-rl[demo,skyrl]'
    python examples/skyrl/run.py

Grades inline, against a sandbox daemon that it starts itself, or the one that COLLIMATE_SERVE_SOCKET (or _URL) names.
With COLLIMATE_REDIS_URL set, and a worker on that queue, the same goes over the queue. Needs no GPU.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import skyrl_gym

from collimate_rl.local_backend import LocalCollimateBackend

ADAPTERS = "producer" if os.environ.get("COLLIMATE_REDIS_URL") else "collimate_rl"
NAMES_A_BACKEND = ("COLLIMATE_REDIS_URL", "COLLIMATE_SERVE_SOCKET", "COLLIMATE_SERVE_URL", "COLLIMATE_API_KEY")

ROWS: list[dict[str, Any]] = [
    {"prompt": "Write solve(text): how many vowels are in text?", "tests": [["banana", 3], ["OUNCE", 3], ["", 0]]},
    {"prompt": "Write solve(text): text backwards.", "tests": [["abc", "cba"], ["", ""], ["noon", "noon"]]},
]
POLICY = {
    ROWS[0]["prompt"]: [
        "Count them:\n```python\ndef solve(text):\n    return sum(c in 'aeiouAEIOU' for c in text)\n```",
        "```python\ndef solve(text):\n    return sum(c in 'aeiou' for c in text)\n```",
    ],
    ROWS[1]["prompt"]: [
        "```python\ndef solve(text):\n    return text[::-1]\n```",
        "I would print 1.0 and leave.\n```python\nimport os\nprint(1.0)\nos._exit(0)\n```",
    ],
}
"""What the fake policy answers to each prompt: a right solution, and one that is not."""


def ground_truth(row: dict[str, Any]) -> str:
    """A row's tests as the JSON text that a data set would hold."""
    return json.dumps([{"input": [given], "expected": expected} for given, expected in row["tests"]])


def episode(row: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Up to three turns: the policy's wrong answer first, its right one once it is told what failed."""
    extras = {
        "reward_spec": {"method": "rule", "ground_truth": ground_truth(row)},
        "public_tests": ground_truth({"tests": row["tests"][:1]}),
        "max_turns": 3,
    }
    env = skyrl_gym.make("collimate_code", env_config={}, extras=extras)
    chat, _ = env.init([{"role": "user", "content": row["prompt"]}])
    right, wrong = POLICY[row["prompt"]]
    total, done = 0.0, False
    while not done:
        step = env.step(right if len(chat) > 1 else wrong)
        total, done = total + step["reward"], step["done"]
        chat = [*chat, *step["observations"]]
    env.close()
    print(f"{total:.2f} after {env.get_metrics()['turns']} turns:", row["prompt"])
    print("    " + chat[-1]["content"].replace("\n", "\n    "))
    return total, env.get_metrics()


def main() -> None:
    """All episodes side by side, as SkyRL steps them, and their metrics together."""
    adapter = importlib.import_module(f"{ADAPTERS}.skyrl")
    adapter.register("collimate_code")
    with ThreadPoolExecutor() as pool:
        episodes = list(pool.map(episode, ROWS))
    print(adapter.CollimateCodeEnv.aggregate_metrics([metrics for _, metrics in episodes]))


@contextmanager
def backend() -> Iterator[None]:
    """The backend that the environment names, else a daemon of our own for as long as this lasts."""
    if any(os.environ.get(name) for name in NAMES_A_BACKEND):
        yield
        return
    with LocalCollimateBackend() as daemon:
        os.environ["COLLIMATE_SERVE_URL"] = daemon.base_url
        yield


if __name__ == "__main__":
    with backend():
        main()
