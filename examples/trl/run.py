"""TRL's reward function on what a fake policy writes, called as GRPOTrainer calls it.

    pip install 'collimate-rl[demo]'
    python examples/trl/run.py

Grades inline, against a sandbox daemon that it starts itself, or the one that COLLIMATE_SERVE_SOCKET (or _URL) names.
With COLLIMATE_REDIS_URL set, and a worker on that queue, the same goes over the queue. Needs no GPU.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


def main() -> None:
    """One batch: every prompt, as often as the policy has answers to it."""
    reward_func = importlib.import_module(f"{ADAPTERS}.trl").reward_func
    batch = [(row, answer) for row in ROWS for answer in POLICY[row["prompt"]]]
    rewards = reward_func(
        prompts=[[{"role": "user", "content": row["prompt"]}] for row, _ in batch],
        completions=[[{"role": "assistant", "content": answer}] for _, answer in batch],
        completion_ids=[[0]] * len(batch),
        ground_truth=[ground_truth(row) for row, _ in batch],
    )
    for (row, _), reward in zip(batch, rewards, strict=True):
        print("abstains" if reward is None else f"{reward:.2f}", row["prompt"])


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
