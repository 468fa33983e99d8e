"""Growth: one cost over one size, and where it stops being what it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.report import Cell, Table

KNEE = 2.0
"""A cost per unit that is so many times the lowest one at a smaller size is a knee."""

STEEP = 1.2
"""Above this power of the size, growth is more than what more work is."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """At size `x`: milliseconds that one unit of work takes, by what takes them. Lists are rounds; medians are told."""

    x: int
    ms: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """`what` grows along `points`; `unit` is what a cost is for. `expected`: what growth is no surprise, in words."""

    key: str
    what: str
    unit: str
    points: tuple[Point, ...]
    expected: str = ""


def knee(sizes: Sequence[float], costs: Sequence[float], factor: float = KNEE) -> float | None:
    """The first size whose cost per unit is `factor` times the lowest of all smaller sizes; None when there is none."""
    lowest = math.inf
    for size, cost in zip(sizes, costs, strict=True):
        if cost >= factor * lowest:
            return size
        lowest = min(lowest, cost)
    return None


def order(sizes: Sequence[float], costs: Sequence[float]) -> float | None:
    """By which power of the size the cost grew between the last two: 0 is flat, 1 linear, 2 quadratic."""
    if len(sizes) < 2 or min(*sizes[-2:], *costs[-2:]) <= 0 or sizes[-1] == sizes[-2]:
        return None
    return math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2])


def table_of(sweep: Sweep) -> Table:
    """A row per point, a column per cost; below, where each has its knee."""
    names = list(dict.fromkeys(name for point in sweep.points for name in point.ms))
    rows: list[tuple[Cell, ...]] = [(f"{point.x:,}", *(point.ms.get(name) for name in names)) for point in sweep.points]
    return Table(
        key=sweep.key,
        title=f"{sweep.what}: milliseconds per {sweep.unit}",
        columns=(sweep.what, *names),
        rows=tuple(rows),
        note="; ".join(part for part in (_knees(sweep, names), sweep.expected) if part),
    )


def _knees(sweep: Sweep, names: Sequence[str]) -> str:
    told = []
    for name in names:
        points = [(point.x, point.ms[name]) for point in sweep.points if name in point.ms]
        sizes, costs = [x for x, _ in points], [cost for _, cost in points]
        at, power = knee(sizes, costs), order(sizes, costs)
        if at is not None:
            steep = " (STEEPER THAN LINEAR)" if power is not None and power > STEEP else ""
            grew = "" if power is None else f", at the end by the size to the power of {power:.1f}{steep}"
            told.append(f"{name}: knee at {at:,.0f}{grew}")
    return "; ".join(told) or "no knee"
