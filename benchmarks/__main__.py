"""Runs the comparisons, prints tables, writes the figures to benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks import cpu, fairness, isolation, queueing, recovery, traffic
from benchmarks.measure import median, ratio
from benchmarks.nodes import Site

RESULTS = Path(__file__).parent / "results"
AIMS = {
    "isolated : plain": 4.0,
    "queued : inline": 0.8,
    "10 batches beside 10,000 : alone": 3.0,
    "sleeping 100 ms, in sessions : one-shot": 0.85,
    "computing 100 ms, in sessions : one-shot": 0.85,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds per comparison (default 7)")
    parser.add_argument("--kills", type=int, default=10, help="worker processes killed per form (default 10)")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default benchmarks/results/<time>.json)")
    options = parser.parse_args()
    machine = {
        "interpreter": f"{sys.executable} (Python {platform.python_version()})",
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "rounds": options.rounds,
    }
    print("  ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as directory:
        isolated = isolation.measure(Path(directory), options.rounds)
        spent = cpu.measure(Path(directory))
        with Site(Path(directory)) as site:
            remembered = recovery.ledger_cost(site, options.rounds)
            killed = {
                **recovery.short_candidates(site, options.kills),
                **recovery.long_candidates(site, max(1, options.rounds // 2)),
            }
            sent, idle = traffic.measure(site)
    queued = queueing.measure(options.rounds)
    seconds = fairness.measure(options.rounds)
    ratios = {
        "isolated : plain": ratio(isolated, "graded, namespaces", "graded, isolation none"),
        "graded : bare exec, namespaces": ratio(isolated, "graded, namespaces", "bare exec, namespaces"),
        "queued : inline": ratio(queued, "queued", "inline"),
        "queued, in sessions : inline": ratio(queued, "queued, in sessions", "inline"),
        "10 batches beside 10,000 : alone": ratio(seconds, "beside 10,000", "10 batches alone"),
        **{
            f"{kind} 100 ms, in sessions : one-shot": ratio(
                remembered, f"{kind} 100 ms, in sessions", f"{kind} 100 ms, one-shot"
            )
            for kind in recovery.KINDS
        },
    }
    _print("per second (median, lowest, highest)", {**isolated, **queued, **remembered})
    print("\nseconds for a run's 10 batches (median, lowest, highest)")
    for name, values in seconds.items():
        print(f"  {name:<32}{median(values):8.2f}{min(values):10.2f}{max(values):10.2f}")
    print("\nmilliseconds of CPU per exec or candidate, all processes (one round)")
    for name, value in spent.items():
        print(f"  {name:<32}{value:8.1f}")
    recovery.show(killed)
    traffic.show(sent, idle)
    print("\nratios (median of the rounds' own)")
    for name, value in ratios.items():
        aim = f"   aim {AIMS[name]:g}" if name in AIMS else ""
        print(f"  {name:<42}{value:8.2f}{aim}")
    print(f"\n{time.monotonic() - began:.0f} s")
    out = options.out or RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "machine": {**machine, "load": os.getloadavg()},
        "ratios": ratios,
        "per_second": {
            "isolation": isolated,
            "queue": queued,
            "fairness, seconds": seconds,
            "recovery": remembered,
        },
        "cpu_ms": spent,
        "kills": {name: asdict(kills) for name, kills in killed.items()},
        "traffic": {"idle per second": idle, **{name: asdict(traffic) for name, traffic in sent.items()}},
    }
    out.write_text(json.dumps(told, indent=2) + "\n")
    print(f"written to {out}")
    return 0


def _print(title: str, measured: dict[str, list[float]]) -> None:
    print(f"\n{title}")
    for name, values in measured.items():
        print(f"  {name:<32}{median(values):8.0f}{min(values):10.0f}{max(values):10.0f}")


sys.exit(main())
