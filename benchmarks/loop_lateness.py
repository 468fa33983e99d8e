"""How late a trainer's loop is while slime's hook grades on it: `python -m benchmarks.loop_lateness [--samples 512]`.

A 1 ms ticker runs on the loop on which the samples are rewarded, one call each; its lateness stands beside that of the
same ticker on the same loop with nothing else on it.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.daemons import Daemon
from benchmarks.measure import percentile
from collimate_rl.slime import reward_func
from tests.fixtures.slime_samples import Sample

TICK_S = 0.001
TRUTH = [{"input": [n], "expected": n * n} for n in range(20)]


async def ticker(lateness_ms: list[float]) -> None:
    """Notes by how much each sleep of 1 ms is late."""
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lateness_ms.append((time.perf_counter() - due) * 1000)


async def lateness_while(work: Any) -> list[float]:
    """The ticker's lateness, in milliseconds, until `work` is done."""
    noted: list[float] = []
    ticking = asyncio.ensure_future(ticker(noted))
    try:
        await work
    finally:
        ticking.cancel()
    return noted


async def graded(args: Namespace, samples: list[Sample]) -> None:
    rewards = await asyncio.gather(*(reward_func(args, sample) for sample in samples))
    assert rewards == [1.0, 0.0] * (len(samples) // 2), "wrong rewards: nothing measured"


async def measure(socket: Path, count: int) -> None:
    args = Namespace(collimate_base_url=f"unix:{socket}", reward_key=None)
    answers = ("def solve(x):\n    return x * x\n", "def solve(x):\n    return None\n")
    samples = [Sample("Square x.", answers[index % 2], TRUTH, group_index=index // 8) for index in range(count)]
    await graded(args, samples[:8])
    started = time.perf_counter()
    during = await lateness_while(graded(args, samples))
    took = time.perf_counter() - started
    idle = await lateness_while(asyncio.sleep(took))
    print(f"{count} samples graded in {took:.2f} s; lateness of a 1 ms ticker on the same loop, ms")
    for name, values in (("idle", idle), ("grading", during)):
        shown = "  ".join(f"p{percent} {percentile(values, percent):.2f}" for percent in (50, 90, 99))
        print(f"  {name:8} {shown}  max {max(values):.2f}  ({len(values)} ticks)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_lateness", description=__doc__)
    parser.add_argument("--samples", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        socket = Path(directory) / "d.sock"
        with Daemon(socket):
            asyncio.run(measure(socket, options.samples // 8 * 8))


if __name__ == "__main__":
    main()
