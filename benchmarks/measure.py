"""Timing: rounds in which the contenders take turns, so that a machine that slows down slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Contender:
    """`run` does `units` pieces of work."""

    run: Callable[[], object]
    units: int


def rates(contenders: Mapping[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Units per second per round and contender, after one warm-up of each."""
    for contender in contenders.values():
        contender.run()
    measured: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            contender = contenders[name]
            began = time.perf_counter()
            contender.run()
            measured[name].append(contender.units / (time.perf_counter() - began))
    return measured


def median(values: list[float]) -> float:
    return statistics.median(values)


def ratio(measured: dict[str, list[float]], of: str, to: str) -> float:
    """The median of the rounds' own ratios."""
    return statistics.median(a / b for a, b in zip(measured[of], measured[to], strict=True))


def percentile(values: list[float], percent: int) -> float:
    """The value below which so many percent lie."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
