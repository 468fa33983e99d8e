"""Groups of mixed speed: one candidate of each takes seconds, the rest next to nothing. How busy that keeps the node's
slots, by the number of worker processes, whose groups end with their slowest candidate."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measure import median
from benchmarks.nodes import Site
from benchmarks.report import Table
from benchmarks.work import SPEC, TEMPLATE, candidates
from producer import Producer

WIDTH = 12
GROUPS = 16
SLOW_S = 3.0
ANSWER_S = 300.0
WAYS: Mapping[str, int] = {"2": 2, "as many as keep the slots busy": 0}
"""Names of what takes turns, and each one's `--processes`."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """`per_s` candidates, `busy` of the node's slots in execs, `waited_s` of each group in order of submission."""

    per_s: float
    busy: float
    waited_s: tuple[float, ...]


def sources(group: int) -> list[str]:
    """A group's candidates, all of them right. The slow one is somewhere among them, as it is in life."""
    codes = [f"# group {group}\n{code}" for code in candidates(WIDTH)]
    codes[(5 * group) % WIDTH] = f"import time\ntime.sleep({SLOW_S})\n" + codes[(5 * group) % WIDTH]
    return codes


def play(producer: Producer, slots: int, groups: int = GROUPS) -> Round:
    """All groups at once, until the last is answered."""
    began = time.perf_counter()
    handles = [
        producer.submit(template=TEMPLATE, candidates=sources(group), spec=SPEC, timeout_seconds=10, recovery="rerun")
        for group in range(groups)
    ]
    waited, exec_s = [], 0.0
    for handle in handles:
        result = handle.result(timeout=ANSWER_S)
        if result.rewards() != [1.0] * WIDTH:
            raise RuntimeError(f"a right candidate did not pass: {result.results[0]}")
        waited.append(time.perf_counter() - began)
        exec_s += sum(one.exec_time_ms for one in result.results) / 1000
    took = time.perf_counter() - began
    return Round(per_s=groups * WIDTH / took, busy=exec_s / took / slots, waited_s=tuple(waited))


def measure(site: Site, rounds: int = 3) -> Table:
    """By turns, so that a machine that slows down slows all of them."""
    slots = 2 * len(os.sched_getaffinity(0))
    found: dict[str, list[Round]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, processes in WAYS.items():
            with site.workers(processes, slots), site.producer() as producer:
                play(producer, slots)  # every process that there will be has been started, and at work once
                found[way].append(play(producer, slots))
    return table(found, slots)


def table(found: Mapping[str, Sequence[Round]], slots: int) -> Table:
    """A row per number of processes."""
    return Table(
        key="mixed",
        title=f"Groups of {WIDTH}, one candidate of each {SLOW_S:g} s, {GROUPS} groups at once, {slots} slots",
        columns=(
            "worker processes",
            "candidates per s",
            "of the slots in use",
            "half the groups answered after s",
            "all",
        ),
        rows=tuple(
            (
                way,
                median([one.per_s for one in rounds]),
                median([one.busy for one in rounds]),
                median([median(list(one.waited_s)) for one in rounds]),
                median([max(one.waited_s) for one in rounds]),
            )
            for way, rounds in found.items()
        ),
        note="medians of rounds by turns; the slow candidate sleeps, so it takes a slot and no core",
    )
