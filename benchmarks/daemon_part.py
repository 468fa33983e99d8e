"""The daemon's own figures in the common run: a burst, many live sessions, numpy beside the plain template."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.daemon_load import burst, sessions
from benchmarks.floors import EMPTY, clone_contenders
from benchmarks.measure import Contender, median, percentile, rates, ratio
from benchmarks.report import Figure, Section, Table, shown
from benchmarks.targets import TARGETS
from benchmarks.work import CONCURRENCY, SPEC, candidates
from collimate_rl import CollimateClient, grade_batch
from tests.fixtures.sandbox_daemon import RunningDaemon, start_daemon

WIDTH = 64
COUNT = 48
PLAIN, NUMPY = "graded, plain template", "graded, numpy preloaded"


def measure(rounds: int, live: int) -> Section:
    """`live` sessions at once."""
    templates = {"plain": ""}
    if importlib.util.find_spec("numpy") is not None:
        templates["numpy"] = 'preload = ["numpy"]\n'
    with _daemon(templates) as daemon:
        client = CollimateClient(unix_socket=daemon.socket_path, retries=0)
        try:
            bursts = burst(client, WIDTH, rounds=rounds)
            memory = sessions(daemon, client, live)
            measured = rates(
                {
                    PLAIN: Contender(run=lambda: _grade(client, "plain"), units=COUNT),
                    **(
                        {NUMPY: Contender(run=lambda: _grade(client, "numpy"), units=COUNT)}
                        if "numpy" in templates
                        else {}
                    ),
                    EMPTY: clone_contenders()[EMPTY],
                },
                rounds,
            )
        finally:
            client.close()
    return _section(bursts, memory, measured, live)


def _section(
    bursts: dict[str, list[float]], memory: dict[str, float], measured: dict[str, list[float]], live: int
) -> Section:
    floor = f"{shown(1000 * WIDTH / median(measured[EMPTY]))} ms for {WIDTH} at the rate of: {EMPTY}"
    figures = [
        Figure(name=f"{name}, p99 ms", value=percentile(took, 99), target=TARGETS[f"{name}, p99 ms"], floor=floor)
        for name, took in bursts.items()
    ]
    name = "private MiB per live session"
    private = memory["private memory of its processes"] / 1024
    figures.append(Figure(name=name, value=private, target=TARGETS[name], floor=f"{live:,} at once"))
    if NUMPY in measured:
        name = "numpy template : plain one"
        figures.append(Figure(name=name, value=ratio(measured, NUMPY, PLAIN), target=TARGETS[name]))
    return Section(
        tables=(
            Table(
                key="burst",
                title=f"{WIDTH} callers at the same moment: milliseconds to each answer",
                columns=("what", "p50", "p99"),
                rows=tuple((name, median(took), percentile(took, 99)) for name, took in bursts.items()),
            ),
            Table(
                key="memory",
                title=f"{live:,} live sessions: KiB for each",
                columns=("where", "KiB"),
                rows=tuple(memory.items()),
            ),
            Table(
                key="templates",
                title="candidates of ten cases per second, by template",
                columns=("template", "median", "lowest", "highest"),
                rows=tuple((name, median(v), min(v), max(v)) for name, v in measured.items()),
            ),
        ),
        figures=tuple(figures),
        data={"bursts ms": bursts, "memory KiB": memory, "per second": measured},
    )


def _grade(client: CollimateClient, template: str) -> None:
    results = grade_batch(client, template, candidates(COUNT), SPEC, concurrency=CONCURRENCY, timeout_seconds=30)
    if any(result.reward != 1.0 for result in results):
        raise RuntimeError(f"a right candidate did not pass: {results[0]}")


@contextmanager
def _daemon(templates: dict[str, str]) -> Iterator[RunningDaemon]:
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as name:
        config = Path(name) / "collimate.toml"
        config.write_text(
            "".join(f'[templates.{one}]\ninterpreter = "{sys.executable}"\n{text}' for one, text in templates.items())
        )
        daemon = start_daemon("--config", str(config), env={**os.environ, "TMPDIR": "/tmp"})
        try:
            yield daemon
        finally:
            daemon.stop()
            shutil.rmtree(daemon.folder, ignore_errors=True)
