"""CPU time per candidate, by part: steadier than wall time on a machine that does other things besides."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.daemons import Daemon
from benchmarks.work import CONCURRENCY, SPEC, TEMPLATE, candidates
from collimate_rl import CollimateClient, grade_batch

COUNT, PLAIN_COUNT = 200, 40
_TICKS = os.sysconf("SC_CLK_TCK")
_FORK = "import os\npid = os.fork()\nif not pid:\n    {inner}\n    os._exit(0)\nos.waitpid(pid, 0)\n"
_FORK_TWICE = _FORK.format(inner="q = os.fork()\n    if not q:\n        os._exit(0)\n    os.waitpid(q, 0)")


def measure(directory: Path) -> dict[str, float]:
    """Milliseconds of CPU per unit: of the daemon with everything below it, and for grading of the client too."""
    told: dict[str, float] = {}
    with Daemon(directory / "cpu.sock") as daemon:
        for name, code in (
            ("empty program", "pass"),
            ("one fork inside", _FORK.format(inner="pass")),
            ("two forks inside", _FORK_TWICE),
        ):
            told[name] = _below(daemon, lambda code=code: _execs(daemon.client, code), COUNT)  # type: ignore[misc]
        before = by_process(daemon.pid)
        told["graded, namespaces"], told["graded, the client's share"] = _graded(daemon, COUNT)
        after = by_process(daemon.pid)
        for name in after:
            told[f"graded, of that {name}"] = (after[name] - before[name]) / (2 * COUNT) * 1000
    with Daemon(directory / "cpu-plain.sock", isolation="none") as daemon:
        told["graded, isolation none"], _ = _graded(daemon, PLAIN_COUNT)
    return told


def _graded(daemon: Daemon, count: int) -> tuple[float, float]:
    def grade() -> None:
        grade_batch(daemon.client, TEMPLATE, candidates(count), SPEC, concurrency=CONCURRENCY, timeout_seconds=30)

    grade()  # connections, the runner's text
    own = time.process_time()
    below = _below(daemon, grade, count)
    return below, (time.process_time() - own) / count * 1000


def _below(daemon: Daemon, run: Callable[[], object], count: int) -> float:
    before = cpu_seconds(daemon.pid)
    run()
    return (cpu_seconds(daemon.pid) - before) / count * 1000


def _execs(client: CollimateClient, code: str) -> None:
    def one(_: int) -> int:
        return int(client.exec_once(TEMPLATE, code=code, timeout_seconds=30)["exit_code"])

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        if any(pool.map(one, range(COUNT))):
            raise RuntimeError("an exec failed")


def cpu_seconds(root: int) -> float:
    """Of `root` and all processes below it, with those that they have reaped."""
    return sum(map(sum, _times(root).values()))


def by_process(root: int) -> dict[str, float]:
    """The same for a daemon, by what its processes are there for."""
    found = dict.fromkeys(("the daemon", "warm interpreters", "holders of jobs", "forks"), 0.0)
    for pid, (own, reaped) in _times(root).items():
        # A warm interpreter is what reaps; what it keeps beside it does not.
        found["the daemon" if pid == root else "warm interpreters" if reaped else "holders of jobs"] += own
        found["forks"] += 0.0 if pid == root else reaped
    return found


def _times(root: int) -> dict[int, tuple[float, float]]:
    """Seconds on a processor of `root` and every process below it: its own, and of those that it has reaped."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stats[int(entry.name)] = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it went while being looked at
    tree: set[int] = set()
    grown = {root}
    while grown:
        tree |= grown
        grown = {pid for pid, fields in stats.items() if int(fields[1]) in grown and pid not in tree}
    return {
        pid: (sum(map(int, stats[pid][11:13])) / _TICKS, sum(map(int, stats[pid][13:15])) / _TICKS)
        for pid in tree
        if pid in stats
    }
