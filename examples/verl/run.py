"""verl's compute_score on what a fake policy writes, called as its reward loop calls it.

    pip install 'collimate-rl[demo]'
    python examples/verl/run.py

Grades inline, against a sandbox daemon that it starts itself, or the one that COLLIMATE_SERVE_SOCKET (or _URL) names.
With COLLIMATE_REDIS_URL set, and a worker on that queue, the same goes over the queue. Needs no GPU.
"""

from __future__ import annotations

import asyncio
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


async def score_all() -> None:
    """One call per sample, all of them at once on one loop."""
    compute_score = importlib.import_module(f"{ADAPTERS}.verl").compute_score
    batch = [(index, row, answer) for index, row in enumerate(ROWS) for answer in POLICY[row["prompt"]]]
    scored = await asyncio.gather(
        *(
            compute_score(
                data_source="examples/strings",
                solution_str=answer,
                ground_truth=ground_truth(row),
                extra_info={"index": index, "split": "train"},
            )
            for index, row, answer in batch
        )
    )
    for (_, row, _), result in zip(batch, scored, strict=True):
        print(f"{result['score']:.2f} {result['outcome']}", row["prompt"])


def main() -> None:
    """Score a batch."""
    asyncio.run(score_all())


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
