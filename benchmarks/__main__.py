"""`python -m benchmarks`: measures, prints tables with the targets beside the figures, writes JSON and charts.

A target that is missed is said, and fails nothing: the exit code is 1 only when a part could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import publish
from benchmarks.parts import PARTS, Effort
from benchmarks.report import Section, figures_table, plain

RESULTS = publish.REFERENCE.parent


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Ratios within one run, medians of several rounds, each beside what the machine does at best.",
        epilog="parts: " + "; ".join(f"{name}: {part.about}" for name, part in PARTS.items()),
    )
    parser.add_argument("--only", type=_names, default=tuple(PARTS), metavar="PART,…", help="these parts alone")
    parser.add_argument("--quick", action="store_true", help="all parts within some ten minutes")
    parser.add_argument("--rounds", type=int, help="rounds per comparison")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default benchmarks/results/TIME.json)")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="put what was measured into the committed results and from there into the documents",
    )
    options = parser.parse_args(argv)
    effort = Effort.quick() if options.quick else Effort()
    if options.rounds is not None:
        effort = replace(effort, rounds=max(1, options.rounds))
    began = time.monotonic()
    told: dict[str, Any] = {}
    failed = []
    out: Path = options.out or RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    for name in options.only:
        print(f"\n== {name}: {PARTS[name].about} (load {os.getloadavg()[0]:.1f})", flush=True)
        try:
            told[name] = _measured(name, effort)
            _write(out, told)  # what is measured is kept, whatever becomes of the rest
        except Exception:  # noqa: BLE001 - the other parts are of use without this one
            traceback.print_exc()
            failed.append(name)
    _print_summary(told)
    print(f"\n{time.monotonic() - began:.0f} s" + (f"; NOT MEASURED: {', '.join(failed)}" if failed else ""))
    print(f"in {out}, and charts beside it")
    if options.publish:
        publish.publish(told)
    return 1 if failed else 0


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown) or text!r}; there are: {', '.join(PARTS)}")
    return names


def _measured(name: str, effort: Effort) -> dict[str, Any]:
    began, load = time.monotonic(), os.getloadavg()[0]
    section: Section = PARTS[name].run(effort)
    for table in section.tables:
        print("\n" + plain(table), flush=True)
    taken = time.monotonic() - began
    print(f"\n({taken:.0f} s)", flush=True)
    return {**section.as_json(), "machine": _machine(load), "seconds": round(taken, 1), "rounds": effort.rounds}


def _machine(load_before: float) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_before": round(load_before, 1),
        "date": time.strftime("%Y-%m-%d"),
    }


def _print_summary(told: dict[str, Any]) -> None:
    figures = publish.figures_of(told)
    if figures:
        print("\n" + plain(figures_table(figures, title="figures against the targets")))
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if missed:
        print(f"\nMISSED: {'; '.join(missed)}")


def _write(out: Path, told: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"parts": told}, indent=1) + "\n")
    for name, part in told.items():
        for chart, svg in part["charts"].items():
            out.with_name(f"{out.stem}-{name}-{chart}.svg").write_text(svg)


if __name__ == "__main__":
    sys.exit(main())
