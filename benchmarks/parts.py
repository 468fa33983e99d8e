"""What `python -m benchmarks` can measure: each part by name, with what it needs, turned into one section."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from benchmarks import (
    cpu,
    daemon_part,
    fairness,
    floors,
    growth,
    isolation,
    peers,
    publish,
    queueing,
    recovery,
    scale,
    traffic,
)
from benchmarks.measure import median, percentile, ratio
from benchmarks.nodes import Site
from benchmarks.report import Figure, Section, Table, section_of
from benchmarks.targets import TARGETS


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure: `rounds` of what takes turns, `kills` of workers, short `batches` for latency, `live`
    sessions, `seconds` for each point of a sweep, `nodes` at the widest of the simulated ones."""

    rounds: int = 7
    kills: int = 10
    batches: int = 200
    live: int = 1000
    seconds: float = 5.0
    nodes: int = 8

    @classmethod
    def quick(cls) -> Effort:
        """All parts within some ten minutes on two cores that do nothing else."""
        return cls(rounds=3, kills=2, batches=100, live=1000, seconds=1.5, nodes=4)


@dataclass(frozen=True, kw_only=True)
class Part:
    about: str
    run: Callable[[Effort], Section]


def _rates_table(key: str, title: str, measured: Mapping[str, list[float]]) -> Table:
    return Table(
        key=key,
        title=title,
        columns=("what", "median", "lowest", "highest"),
        rows=tuple((name, median(values), min(values), max(values)) for name, values in measured.items()),
    )


def _ratio(name: str, measured: dict[str, list[float]], of: str, to: str, *, target: str = "") -> Figure:
    floor = f"{median(measured[to]):.3g} per second: {to}"
    return Figure(name=name, value=ratio(measured, of, to), target=TARGETS.get(target or name), floor=floor)


def _isolation(effort: Effort) -> Section:
    with _folder() as directory:
        measured = isolation.measure(Path(directory), effort.rounds)
    return Section(
        tables=(_rates_table("rates", "per second, by isolation", measured),),
        figures=(
            _ratio("isolated : the daemon without isolation", measured, "graded, namespaces", "graded, isolation none"),
            _ratio("graded : bare exec, namespaces", measured, "graded, namespaces", "bare exec, namespaces"),
        ),
        data=measured,
    )


def _cpu(_: Effort) -> Section:
    with _folder() as directory:
        spent = cpu.measure(Path(directory))
    title = "milliseconds of CPU per exec or candidate, all processes"
    table = Table(key="cpu", title=title, columns=("what", "ms"), rows=tuple(spent.items()))
    return Section(tables=(table,), data=spent)


def _queueing(effort: Effort) -> Section:
    measured = queueing.measure(effort.rounds)
    return Section(
        tables=(_rates_table("rates", "candidates of ten cases per second, queued and inline", measured),),
        figures=(
            _ratio("8 groups of 24, queued : inline", measured, "queued", "inline", target="queued : inline"),
            _ratio("8 groups of 24, queued in sessions : inline", measured, "queued, in sessions", "inline"),
        ),
        data=measured,
    )


def _fairness(effort: Effort) -> Section:
    seconds = fairness.measure(max(2, effort.rounds // 2))
    name = "10 batches beside 10,000 : alone"
    value = ratio(seconds, f"beside {fairness.HEAVY:,}", "10 batches alone")
    return Section(
        tables=(_rates_table("seconds", "seconds for a run's 10 batches", seconds),),
        figures=(Figure(name=name, value=value, target=TARGETS[name], floor="1 is alone"),),
        data=seconds,
    )


def _recovery(effort: Effort) -> Section:
    with _folder() as directory, Site(Path(directory)) as site:
        remembered = recovery.ledger_cost(site, effort.rounds)
        killed = {
            **recovery.short_candidates(site, effort.kills),
            **recovery.long_candidates(site, max(1, effort.kills // 3)),
        }
    rows = []
    for name, kills in killed.items():
        took = kills.answer_s
        late = (median(took), percentile(took, 95), max(took))
        rows.append((name, *late, mean(kills.run_again), mean(kills.seconds_twice)))
    return Section(
        tables=(
            _rates_table("rates", "candidates of 100 ms per second, by form", remembered),
            Table(
                key="kills",
                title="seconds from SIGKILL to the answer; what ran a second time",
                columns=("group", "median", "95 %", "highest", "candidates twice", "their seconds"),
                rows=tuple(rows),
            ),
        ),
        figures=tuple(
            _ratio(
                f"{kind} 100 ms, in sessions : one-shot",
                remembered,
                f"{kind} 100 ms, in sessions",
                f"{kind} 100 ms, one-shot",
            )
            for kind in recovery.KINDS
        ),
        data={"rates": remembered, "kills": {name: asdict(kills) for name, kills in killed.items()}},
    )


def _traffic(_: Effort) -> Section:
    with _folder() as directory, Site(Path(directory)) as site:
        sent, idle = traffic.measure(site)
    one = sent["one-shot"]
    commands, beside = "Redis commands per batch, one-shot", "Redis kB per batch beside the payload, one-shot"
    return Section(
        tables=(
            Table(
                key="traffic",
                title=f"Redis, per batch of {traffic.WIDTH}, less what an idle node and producer send",
                columns=("form", "commands", "ours", "rq's", "called by scripts", "kB", "of it payload"),
                rows=tuple(
                    (form, t.ours + t.rqs, t.ours, t.rqs, t.inside, t.kilobytes, t.payload_kilobytes)
                    for form, t in sent.items()
                ),
                note=f"idle: {idle['commands']:.0f} commands and {idle['kilobytes']:.1f} kB per second",
            ),
        ),
        figures=(
            Figure(name=commands, value=one.ours + one.rqs, target=TARGETS[commands], floor="2: XADD and XREADGROUP"),
            Figure(name=beside, value=one.kilobytes - one.payload_kilobytes, target=TARGETS[beside]),
        ),
        data={"idle per second": idle, **{form: asdict(t) for form, t in sent.items()}},
    )


def _scale(effort: Effort) -> Section:
    """With the daemon's CPU per candidate as the last published run of the part `cpu` has it."""
    tables = section_of(publish.reference()["cpu"]).tables if "cpu" in publish.reference() else ()
    spent = {row[0]: row[1] for table in tables if table.key == "cpu" for row in table.rows}
    graded_ms = spent.get("graded, namespaces")
    return scale.measure(effort.nodes, graded_ms / 1000 if isinstance(graded_ms, float) else scale.DAEMON_S)


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp")  # a unix socket's path is short


PARTS: dict[str, Part] = {
    "floors": Part(about="bare clones and round trips of this machine", run=lambda e: floors.measure(e.rounds)),
    "peers": Part(about="other graders and queues, same rounds", run=lambda e: peers.measure(e.rounds, e.batches)),
    "isolation": Part(about="isolated against plain execs of the same daemon", run=_isolation),
    "daemon": Part(
        about="a burst, live sessions, a numpy template", run=lambda e: daemon_part.measure(e.rounds, e.live)
    ),
    "cpu": Part(about="CPU per candidate, by part", run=_cpu),
    "queue": Part(about="queued against inline", run=_queueing),
    "traffic": Part(about="what a batch is to Redis", run=_traffic),
    "fairness": Part(about="a small run beside a large one", run=_fairness),
    "recovery": Part(about="what remembering costs, and what a kill costs", run=_recovery),
    "growth": Part(about="one cost over one size, and its knee", run=lambda e: growth.measure(e.seconds)),
    "scale": Part(about="simulated nodes against one Redis, and a projection", run=_scale),
}
