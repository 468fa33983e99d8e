"""Time limits that are fair on a loaded machine: whose doing a timeout is, and who is run once more.

A limit is wall time, and a candidate that waits for a processor which others have loses it without a fault of its own.
The kernel tells the two apart: milliseconds on a processor by wait4(2), milliseconds in the queue for one by schedstat.
A candidate that sleeps, or blocks, spends neither, and is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

FULL_SHARE: Final = 0.8
"""On a processor for this part of its time: then it had what it needed, and was too slow."""
LEAST_WAIT: Final = 0.1
"""Waited for a processor for this part of its time: then it lost enough for another try."""
STARVED: Final = "timeout_starved"
UNCLEAR: Final = "timeout_unclear"
RETRIED: Final = "timeout_retried"
STARVED_SHARE: Final = 2
UNCLEAR_SHARE: Final = 8
"""Of a group of K, one in so many is run again at most, and one in any case."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """What ran out of time: milliseconds on a processor, in the queue for one (None: not known), and alive."""

    ran_ms: float
    waited_ms: float | None
    wall_ms: float

    @property
    def flag(self) -> str | None:
        """STARVED, UNCLEAR, or None for one whose time was its own to use."""
        if self.ran_ms >= FULL_SHARE * self.wall_ms:
            return None
        if self.waited_ms is None:
            return UNCLEAR
        return STARVED if self.waited_ms >= LEAST_WAIT * self.wall_ms else None


def late_of(numbers: Sequence[Any]) -> Late:
    """From a guest program's three numbers. ValueError or TypeError when they are none."""
    ran, waited, wall = (float(number) for number in numbers)
    return Late(ran_ms=ran, waited_ms=waited if waited >= 0 else None, wall_ms=wall)


def lateness(late: Sequence[Late]) -> str | None:
    """The flag for a run in which these ran out of time; STARVED before UNCLEAR."""
    flags = {each.flag for each in late}
    return STARVED if STARVED in flags else UNCLEAR if UNCLEAR in flags else None


class Budget:
    """How many of a group's timeouts are run again; not safe for several threads."""

    def __init__(self, group: int) -> None:
        self._left = {STARVED: max(1, group // STARVED_SHARE), UNCLEAR: max(1, group // UNCLEAR_SHARE)}

    def take(self, flag: str) -> bool:
        """Whether one more with this flag may be run again."""
        self._left[flag] -= 1
        return self._left[flag] >= 0
