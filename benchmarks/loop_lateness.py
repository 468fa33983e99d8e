"""How late a trainer's loop is while slime's hook grades on it: `python -m benchmarks.loop_lateness [--samples 512]`.

A 1 ms ticker runs on the loop on which the samples are rewarded, one call each, inline and then over the queue. Two
controls stand beside it: the same ticker on the same loop with nothing else on it (idle), and one on a loop of another
process while the samples are graded (beside): what that is late is the machine's doing, which forks the sandboxes, and
none of the hook's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import collimate_rl.slime
import producer.slime
from benchmarks.measure import percentile
from collimate_rl.cli.stack import LocalStack
from producer.wiring import close_graders
from tests.fixtures.slime_samples import Sample

TICK_S = 0.001
TRUTH = [{"input": [n], "expected": n * n} for n in range(20)]
BESIDE = "--beside"


async def ticker(lateness_ms: list[float]) -> None:
    """Notes by how much each sleep of 1 ms is late."""
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lateness_ms.append((time.perf_counter() - due) * 1000)


async def lateness_while(work: Awaitable[Any]) -> list[float]:
    """The ticker's lateness, in milliseconds, until `work` is done."""
    noted: list[float] = []
    ticking = asyncio.ensure_future(ticker(noted))
    try:
        await work
    finally:
        ticking.cancel()
    return noted


@contextmanager
def beside() -> Iterator[list[float]]:
    """A loop in another process; its lateness is in the list afterwards."""
    command = [sys.executable, "-m", "benchmarks.loop_lateness", BESIDE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        process.stdout.readline()
        noted: list[float] = []
        yield noted
        process.stdin.close()
        noted.extend(json.loads(process.stdout.read()))


def stand_beside() -> None:
    """The other process: it ticks until its input ends."""
    print("ticking", flush=True)
    waiting = asyncio.to_thread(os.read, sys.stdin.fileno(), 1)
    print(json.dumps(asyncio.run(lateness_while(waiting))))


async def graded(hook: Any, args: Namespace, samples: Sequence[Sample]) -> None:
    """Rewards every sample by a call of its own, all at once."""
    rewards = await asyncio.gather(*(hook(args, sample) for sample in samples))
    assert rewards == [1.0, 0.0] * (len(samples) // 2), "wrong rewards: nothing measured"


async def measure(name: str, hook: Any, args: Namespace, count: int) -> None:
    """One way of grading, with its controls, told as lines."""
    answers = ("def solve(x):\n    return x * x\n", "def solve(x):\n    return None\n")
    samples = [Sample("Square x.", answers[index % 2], TRUTH, group_index=index // 8) for index in range(count)]
    await graded(hook, args, samples[:8])
    with beside() as others:
        started = time.perf_counter()
        during = await lateness_while(graded(hook, args, samples))
        took = time.perf_counter() - started
    idle = await lateness_while(asyncio.sleep(min(took, 5.0)))
    print(f"{name}: {count} samples graded in {took:.2f} s; lateness of a 1 ms ticker, ms")
    for what, values in (("idle", idle), ("beside", others), ("grading", during)):
        shown = "  ".join(f"p{percent} {percentile(values, percent):.2f}" for percent in (50, 90, 99))
        print(f"  {what:8} {shown}  max {max(values):.2f}  ({len(values)} ticks)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_lateness", description=__doc__)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument(BESIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.beside:
        stand_beside()
        return
    count = options.samples // 8 * 8
    with LocalStack() as stack:
        args = Namespace(
            collimate_base_url=f"unix:{stack.socket}", collimate_redis_url=stack.redis_url, reward_key=None
        )
        asyncio.run(measure("inline", collimate_rl.slime.reward_func, args, count))
        asyncio.run(measure("queued", producer.slime.reward_func, args, count))
        close_graders()


if __name__ == "__main__":
    main()
