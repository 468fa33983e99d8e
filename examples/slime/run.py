"""slime's group reward hook on what a fake policy writes, called as `--group-rm` calls it.

    pip install 'collimate-rl[demo]'
    python examples/slime/run.py

Grades inline, against a sandbox daemon that it starts itself, or the one that COLLIMATE_SERVE_SOCKET (or _URL) names.
With COLLIMATE_REDIS_URL set, and a worker on that queue, the same goes over the queue. Needs no GPU.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from collimate_rl.local_backend import LocalCollimateBackend
from collimate_rl.slime import drop_infra_groups

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


@dataclass
class Sample:
    """What a reward hook reads of slime's Sample."""

    prompt: str
    response: str
    label: str
    group_index: int
    index: int
    reward: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)


async def roll_out(args: Namespace) -> None:
    """Every prompt's group is rewarded, and kept or dropped as slime's dynamic sampling would."""
    hook = importlib.import_module(f"{ADAPTERS}.slime").group_reward_func
    groups = [
        [
            Sample(row["prompt"], answer, ground_truth(row), group_index, index)
            for index, answer in enumerate(POLICY[row["prompt"]])
        ]
        for group_index, row in enumerate(ROWS)
    ]
    for samples, rewards in zip(groups, await asyncio.gather(*(hook(args, group) for group in groups)), strict=True):
        for sample, reward in zip(samples, rewards, strict=True):
            sample.reward = reward
        if not drop_infra_groups(args, samples).keep:
            print("dropped", samples[0].prompt)
            continue
        for sample in samples:
            print(f"{sample.reward:.2f} {sample.metadata['collimate']['outcome']}", sample.prompt)


def main() -> None:
    """Roll out once, with the policy under which infra trouble drops a group."""
    asyncio.run(roll_out(Namespace(collimate_on_infra_error="filter", reward_key=None)))


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
