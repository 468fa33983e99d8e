"""Isolated grading against a plain subprocess per exec, and the floors under both."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.daemons import Daemon
from benchmarks.measure import Contender, rates
from benchmarks.work import CONCURRENCY, SPEC, TEMPLATE, candidates
from collimate_rl import CollimateClient, grade_batch

ISOLATED, PLAIN = 96, 24
"""Candidates per round: the plain mode is several times slower."""
EXECS, CLONES, STARTS = 96, 100, 24


def measure(directory: Path, rounds: int) -> dict[str, list[float]]:
    """Candidates (or execs, or clones) per second, by contender."""
    with Daemon(directory / "iso.sock") as isolated, Daemon(directory / "plain.sock", isolation="none") as plain:
        return rates(
            {
                "graded, namespaces": Contender(run=lambda: _grade(isolated.client, ISOLATED), units=ISOLATED),
                "graded, isolation none": Contender(run=lambda: _grade(plain.client, PLAIN), units=PLAIN),
                "bare exec, namespaces": Contender(run=lambda: _execs(isolated.client, EXECS), units=EXECS),
                "bare exec, isolation none": Contender(run=lambda: _execs(plain.client, PLAIN), units=PLAIN),
                "fork and wait": Contender(run=_clones, units=CLONES),
                "interpreter start": Contender(run=_starts, units=STARTS),
            },
            rounds,
        )


def _grade(client: CollimateClient, count: int) -> None:
    results = grade_batch(client, TEMPLATE, candidates(count), SPEC, concurrency=CONCURRENCY, timeout_seconds=30)
    wrong = [result for result in results if result.reward != 1.0]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {count} right candidates did not pass, the first: {wrong[0]}")


def _execs(client: CollimateClient, count: int) -> None:
    def one(_: int) -> int:
        return int(client.exec_once(TEMPLATE, code="pass", timeout_seconds=30)["exit_code"])

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        assert not any(pool.map(one, range(count)))


def _clones() -> None:
    for _ in range(CLONES):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)


def _starts() -> None:
    def one(_: int) -> int:
        return subprocess.run([sys.executable, "-c", "pass"], check=True).returncode

    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        assert not any(pool.map(one, range(STARTS)))
