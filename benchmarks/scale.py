"""One Redis under ever more nodes: real supervisors and workers, real batches, and daemons that only pretend.

Measured per batch: the server's CPU, commands and bytes, the workers' CPU. What grows with the width would end a
server sooner than a straight line says, so the projection takes the widest point's cost."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks import chart, projection
from benchmarks.cpu import cpu_seconds
from benchmarks.nodes import until
from benchmarks.report import Figure, Section, Table
from benchmarks.simulated import VALUE, Latency
from collimate_rl import UnitTestReward
from collimate_rl.cli.processes import Child
from collimate_rl.cli.stack import wait_for_daemon
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import LocalRedis
from producer import Producer

QUEUE = "scale"
WIDTH, CASES = 16, 10
PROCESSES, SLOTS = 2, 32
BATCHES = 40
"""Of each node, per measurement."""
RUN_BATCHES = 24
"""Of one run: the trainer is several, each with a producer of its own."""
IDLE_S, SETTLE_S = 5.0, 20.0
"""How long idle nodes are watched; and how long, at most, they are waited for to be idle: a fresh worker assembles its
programs first."""
IDLE_SHARE = 0.05
ANSWER_S = 300.0
LATENCY = Latency(slow=0.002)
DAEMON_S = 0.016
"""CPU of a daemon per candidate where no published run of the part `cpu` says it."""
SPEC = UnitTestReward(tests=[{"input": [n, n + 1], "expected": VALUE} for n in range(CASES)])


@dataclass(frozen=True, kw_only=True)
class Load:
    """At so many nodes. Per batch, the idle nodes' part taken off; `idle_cpu_s` is per second of all nodes together."""

    nodes: int
    batches: int
    per_second: float
    redis_ms: float
    commands: float
    kilobytes: float
    worker_ms: float
    idle_cpu_s: float
    idle_commands: float


@dataclass(frozen=True, kw_only=True)
class Counters:
    cpu_s: float
    commands: int
    bytes: int
    at: float
    workers_s: float

    def since(self, before: Counters) -> Counters:
        return Counters(**{name: value - getattr(before, name) for name, value in asdict(self).items()})


class Fleet:
    """Nodes against one server; each has a simulated daemon and a supervisor of its own."""

    def __init__(self, redis: LocalRedis, directory: Path) -> None:
        self._directory = directory
        self._redis = redis
        self._supervisors: list[Child] = []
        self._stack = ExitStack()
        self._client: Redis = connect_commands(redis.url)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: Any) -> None:
        with ExitStack() as stack:
            stack.callback(self._client.close)
            stack.push(self._stack.__exit__)

    def grow(self, nodes: int) -> None:
        """Until there are so many, all their processes waiting for a bell."""
        fresh = []
        while len(self._supervisors) < nodes:
            number = len(self._supervisors)
            socket = self._directory / f"d{number}.sock"
            argv = [sys.executable, "-m", "benchmarks.simulated", str(socket), *LATENCY.options, "--seed", str(number)]
            daemon = Child.start("simulated daemon", argv, self._directory / f"d{number}.log")
            self._stack.callback(daemon.stop)
            wait_for_daemon(daemon, socket)
            argv = [sys.executable, "-m", "worker", "--queue", QUEUE, "--node", f"n{number}"]
            argv += ["--processes", str(PROCESSES), "--slots", str(SLOTS), "--batch-concurrency", str(SLOTS)]
            argv += ["--backend", f"unix:{socket}", "--grace", "2", "--state-dir", str(self._directory / f"w{number}")]
            log = self._directory / f"w{number}.log"
            child = Child.start("worker", argv, log, {"COLLIMATE_REDIS_URL": self._redis.url})
            self._stack.callback(child.stop, 20.0)
            self._supervisors.append(child)
            fresh.append(log)
        until(lambda: all(log.read_text().count("worker_ready") >= PROCESSES for log in fresh), "simulated nodes")

    def counters(self) -> Counters:
        told: dict[str, Any] = {}
        for section in ("cpu", "stats"):
            told.update(self._client.info(section))
        return Counters(
            cpu_s=float(told["used_cpu_user"]) + float(told["used_cpu_sys"]),
            commands=int(told["total_commands_processed"]),
            bytes=int(told["total_net_input_bytes"]) + int(told["total_net_output_bytes"]),
            at=time.monotonic(),
            workers_s=sum(cpu_seconds(child.process.pid) for child in self._supervisors),
        )

    def load(self, batches: int) -> Load:
        """Grade so many batches, by several producers, and take off what the same nodes cost when idle."""
        with self._producers(max(1, batches // RUN_BATCHES)) as producers:
            self._grade(producers, 2 * PROCESSES * len(self._supervisors))
            self._settle()
            before = self.counters()
            time.sleep(IDLE_S)
            idle = self.counters().since(before)
            before = self.counters()
            self._grade(producers, batches)
            spent = self.counters().since(before)
        share = spent.at / idle.at
        return Load(
            nodes=len(self._supervisors),
            batches=batches,
            per_second=batches * WIDTH / spent.at,
            redis_ms=max(0.0, spent.cpu_s - share * idle.cpu_s) / batches * 1000,
            commands=(spent.commands - share * idle.commands) / batches,
            kilobytes=(spent.bytes - share * idle.bytes) / batches / 1000,
            worker_ms=max(0.0, spent.workers_s - share * idle.workers_s) / batches * 1000,
            idle_cpu_s=idle.cpu_s / idle.at,
            idle_commands=idle.commands / idle.at,
        )

    def _settle(self) -> None:
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            before = self.counters()
            time.sleep(1.0)
            if self.counters().since(before).workers_s < IDLE_SHARE * PROCESSES * len(self._supervisors):
                return

    @contextmanager
    def _producers(self, count: int) -> Iterator[list[Producer]]:
        with ExitStack() as stack:
            yield [
                stack.enter_context(Producer(self._redis.url, run=f"run-{number}", queue=QUEUE))
                for number in range(count)
            ]

    def _grade(self, producers: list[Producer], batches: int) -> None:
        spec = json.dumps(SPEC.to_wire())
        handles = []
        for number in range(batches):
            codes = [f"def solve(a, b):\n    # {number} {place}\n    return 1\n" for place in range(WIDTH)]
            producer = producers[number % len(producers)]
            handles.append(producer.submit(template="py", candidates=codes, spec=spec, timeout_seconds=10))
        for handle in handles:
            result = handle.result(timeout=ANSWER_S)
            if result.rewards() != [1.0] * WIDTH:
                raise RuntimeError(f"a simulated candidate did not pass: {result.results[0]}")


def widths(most: int) -> list[int]:
    """1, 2, 4 … and the widest."""
    found, at = [], 1
    while at < most:
        found.append(at)
        at *= 2
    return [*found, most]


def measure(nodes: int, daemon_s: float = DAEMON_S) -> Section:
    """Up to so many nodes."""
    loads = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp")))
        redis = stack.enter_context(LocalRedis())
        fleet = stack.enter_context(Fleet(redis, directory))
        for width in widths(nodes):
            fleet.grow(width)
            loads.append(fleet.load(BATCHES * width))
    return section(loads, daemon_s)


def section(loads: list[Load], daemon_s: float) -> Section:
    """Tables and projection from what was measured."""
    costs = costs_of(loads, daemon_s)
    most = projection.one_server(costs, 0, 1.0)
    title = "Milliseconds of CPU per batch of 16"
    series = {
        "Redis": [(float(load.nodes), load.redis_ms) for load in loads],
        "workers": [(float(load.nodes), load.worker_ms) for load in loads],
    }
    return Section(
        tables=(
            Table(
                key="width",
                title=f"one Redis under simulated nodes of {PROCESSES} processes: per batch of {WIDTH}",
                columns=(
                    "nodes",
                    "candidates per s",
                    "Redis CPU ms",
                    "commands",
                    "kB",
                    "workers' CPU ms",
                    "idle: of a Redis core",
                    "idle: commands per s",
                ),
                rows=tuple(
                    (
                        f"{load.nodes}",
                        load.per_second,
                        load.redis_ms,
                        load.commands,
                        load.kilobytes,
                        load.worker_ms,
                        load.idle_cpu_s,
                        load.idle_commands,
                    )
                    for load in loads
                ),
                note=f"execs take {LATENCY.median_s} s in the median, {LATENCY.mean_s:.2f} s in the mean; "
                "commands count what scripts call inside the server, too",
            ),
            projection.table(costs),
        ),
        figures=(
            Figure(name="candidates per second where one Redis ends", value=most, floor="its core all busy"),
            Figure(
                name=f"candidates per second for one Redis at {projection.FULL:.0%}",
                value=projection.one_server(costs),
                floor="what sizing takes",
            ),
        ),
        charts={"scale": chart.lines(title, series, x="nodes", y="ms")},
        data={"loads": [asdict(load) for load in loads], "costs": asdict(costs)},
    )


def costs_of(loads: list[Load], daemon_s: float) -> projection.Costs:
    """Per candidate: the dearest width for Redis, the cheapest for workers (on few cores the rest is waiting)."""
    return projection.Costs(
        redis_s=max(load.redis_ms for load in loads) / WIDTH / 1000,
        worker_s=min(load.worker_ms for load in loads) / WIDTH / 1000,
        daemon_s=daemon_s,
        idle_s=max(load.idle_cpu_s / load.nodes for load in loads),
    )
