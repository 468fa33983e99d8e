"""Counts of several processes in memory that they share: each writes a row of its own, the supervisor reads them all.

The memory is a file without a name, so nothing lies on a disk that could fill up, and nothing is left behind. A row
belongs to a PLACE, not to a process: who takes a dead worker's place goes on counting where that one ended. So a
kill -9 loses no count, and no number of restarts takes more room. Every cell is an aligned double with one writing
process; a death between two instructions leaves it whole.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from worker.metrics import ABSENT, FAMILIES, Family

CELL_BYTES = 8
LINE_BYTES = 64
"""Rows begin at a cache line of their own."""


def _cells(family: Family) -> int:
    """How many cells a family takes per label value: a histogram's buckets, the one beyond them, and its sum."""
    return len(family.buckets) + 2 if family.kind == "histogram" else 1


_STARTS = dict(
    zip(
        FAMILIES,
        accumulate((_cells(family) * len(family.values) for family in FAMILIES.values()), initial=0),
        strict=False,
    )
)
_ROW_CELLS = sum(_cells(family) * len(family.values) for family in FAMILIES.values())
ROW_BYTES = -(-_ROW_CELLS * CELL_BYTES // LINE_BYTES) * LINE_BYTES


_FIRST = {
    family.name: {value: _STARTS[family.name] + at * _cells(family) for at, value in enumerate(family.values)}
    for family in FAMILIES.values()
}
"""The first cell of each label value, by family."""


def _at(family: Family, value: str) -> int | None:
    """The first cell of one label value; an unknown value is the family's `other`, or None where it has none."""
    first = _FIRST[family.name]
    return first.get(value, first.get("other"))


class Tally:
    """One row. Safe for all threads of its process, and for one process at a time. Without `memory` it is private.

    Nothing here raises for what is counted: a number must not fail a batch. An unknown label value counts as the
    family's `other`, or nowhere.
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        self._row = (memoryview(bytearray(ROW_BYTES)) if memory is None else memory).cast("d")
        self._guard = threading.Lock()

    @classmethod
    def attach(cls, descriptor: int, row: int) -> Tally:
        """A supervisor's row `row`, over a descriptor that this process got from it; the descriptor is closed."""
        try:
            pages = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        return cls(memoryview(pages)[row * ROW_BYTES : (row + 1) * ROW_BYTES])

    def add(self, family: Family, value: str = "", amount: float = 1.0) -> None:
        """Count `amount` more, under the label's value where the family has a label."""
        cell = _at(family, value)
        if cell is not None:
            with self._guard:
                self._row[cell] += amount

    def set(self, family: Family, number: float, value: str = "") -> None:
        """Set a gauge; `ABSENT` takes it out of the page."""
        cell = _at(family, value)
        if cell is not None:
            with self._guard:
                self._row[cell] = number

    def observe(self, family: Family, seconds: float, value: str = "") -> None:
        """One more observation of a histogram. What is below zero (a clock that was set back) counts as zero."""
        seconds = max(0.0, seconds)
        first = _at(family, value)
        bucket = bisect_left(family.buckets, seconds)
        if first is not None:
            with self._guard:
                self._row[first + bucket] += 1.0
                self._row[first + len(family.buckets) + 1] += seconds

    def read(self, family: Family) -> dict[str, list[float]]:
        """By label value, the cells: one number, or a histogram's counts per bucket (not yet summed up) and its sum."""
        width = _cells(family)
        start = _STARTS[family.name]
        return {
            value: list(self._row[start + width * at : start + width * (at + 1)])
            for at, value in enumerate(family.values)
        }

    def clear_gauges(self) -> None:
        """What a process that is gone no longer holds, does or is."""
        for family in FAMILIES.values():
            if family.kind == "gauge":
                for value in family.values:
                    self.set(family, 0.0, value)


class Board:
    """A supervisor's rows: one per place of a worker process, and its own, `own`."""

    def __init__(self, places: int) -> None:
        size = (places + 1) * ROW_BYTES
        self.descriptor = os.memfd_create("collimate-metrics", os.MFD_CLOEXEC)
        """To be handed to worker processes."""
        os.posix_fallocate(self.descriptor, 0, size)
        self._pages = memoryview(mmap.mmap(self.descriptor, size))
        self._rows = [Tally(self._pages[row * ROW_BYTES : (row + 1) * ROW_BYTES]) for row in range(places + 1)]
        self.own = self._rows[-1]

    def place(self, number: int) -> Tally:
        return self._rows[number]

    def sums(self) -> Mapping[str, dict[str, list[float]]]:
        """By family and label value, each cell summed over all rows; a gauge that some row takes out is `ABSENT`."""
        found: dict[str, dict[str, list[float]]] = {}
        for name, family in FAMILIES.items():
            rows = [row.read(family) for row in self._rows]
            found[name] = {
                value: [sum(cells) for cells in zip(*(row[value] for row in rows), strict=True)]
                for value in family.values
            }
        return found

    def total(self, family: Family) -> float:
        """A gauge without a label, summed over all rows."""
        return sum(row.read(family)[""][0] for row in self._rows)

    def close(self) -> None:
        """Close the descriptor. The memory goes with its last user."""
        os.close(self.descriptor)


assert ABSENT != ABSENT, "a sum with ABSENT in it is ABSENT: it is NaN"
