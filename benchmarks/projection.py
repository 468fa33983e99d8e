"""From what a batch costs to what a training run needs: arithmetic alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.report import Cell, Table

FULL = 0.6
"""How much of a core a server, and how much of a node, is to be busy at most: bursts and janitors need the rest."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Per candidate, in seconds of CPU: of the server, of a worker's processes, of the daemon with all below it. `idle`
    is what one node that has nothing to do costs the server, in CPU seconds per second."""

    redis_s: float
    worker_s: float
    daemon_s: float
    idle_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.redis_s, self.worker_s, self.daemon_s) <= 0 or self.idle_s < 0:
            raise ValueError(f"costs are above zero: {self}")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run: groups of candidates per step, the seconds per step that grading may take; of a candidate, the
    CPU that it computes itself and the seconds that it lasts in a slot."""

    name: str
    groups: int
    width: int
    grading_s: float
    compute_s: float = 0.05
    lasts_s: float = 0.2
    slowest_s: float = 1.0
    """The slowest candidate of a group: a worker process has one group at a time until that one ends."""

    @property
    def per_second(self) -> float:
        return self.groups * self.width / self.grading_s


@dataclass(frozen=True, kw_only=True)
class Needs:
    per_second: float
    cores: int
    nodes: int
    slots: int
    processes: int
    servers: int
    redis_share: float
    """Of one core, were it all on one server."""


def one_server(costs: Costs, nodes: int = 0, full: float = FULL) -> float:
    """Candidates per second at which one server, beside so many nodes, has `full` of its core busy."""
    return max(0.0, full - nodes * costs.idle_s) / costs.redis_s


def needs(run: Run, costs: Costs, *, cores_per_node: int = 32, full: float = FULL) -> Needs:
    """Nodes of so many cores, slots over all of them, and servers (where it takes several, the ranks
    name a run of their own on each)."""
    rate = run.per_second
    cores = math.ceil(rate * (costs.worker_s + costs.daemon_s + run.compute_s) / full)
    nodes = max(1, math.ceil(cores / cores_per_node))
    room = one_server(costs, 0, full)
    servers = 1
    while servers < 10_000:
        share = one_server(costs, math.ceil(nodes / servers), full)
        if share > 0 and rate / servers <= share:
            break
        servers += 1
    return Needs(
        per_second=rate,
        cores=cores,
        nodes=nodes,
        slots=max(math.ceil(rate * run.lasts_s), 4 * cores),
        processes=max(2 * nodes, math.ceil(run.groups / run.grading_s * run.slowest_s / full)),
        servers=servers,
        redis_share=rate / room * full if room else math.inf,
    )


RUNS = (
    Run(name="one machine, 64 x 8", groups=64, width=8, grading_s=30),
    Run(name="256 x 16", groups=256, width=16, grading_s=30),
    Run(name="1,024 x 16", groups=1024, width=16, grading_s=30),
    Run(name="1,024 x 64", groups=1024, width=64, grading_s=30),
    Run(name="4,096 x 64, long", groups=4096, width=64, grading_s=60, compute_s=0.5, lasts_s=2.0, slowest_s=10.0),
    Run(name="16,384 x 64", groups=16384, width=64, grading_s=60),
)


def table(costs: Costs, runs: tuple[Run, ...] = RUNS, cores_per_node: int = 32) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        found = needs(run, costs, cores_per_node=cores_per_node)
        rows.append(
            (
                run.name,
                run.grading_s,
                run.compute_s,
                round(found.per_second),
                found.cores,
                found.nodes,
                found.slots,
                found.processes,
                found.redis_share,
                found.servers,
            )
        )
    return Table(
        key="sizing",
        title="what a training run needs",
        columns=(
            "groups x candidates per step",
            "seconds granted",
            "CPU s of a candidate",
            "candidates per s",
            "cores",
            f"nodes of {cores_per_node}",
            "slots",
            "worker processes",
            "of a Redis core",
            "Redis servers",
        ),
        rows=tuple(rows),
        note=f"cores and servers at most {FULL:.0%} busy; {costs.worker_s * 1000:.1f} ms of a worker, "
        f"{costs.daemon_s * 1000:.1f} ms of a daemon and {costs.redis_s * 1000:.2f} ms of Redis per candidate",
    )
