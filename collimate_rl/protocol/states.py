"""The life of a batch as `col:state:k` keeps it, and which steps there are."""

from __future__ import annotations

from enum import Enum
from typing import Final


class BatchStatus(str, Enum):
    """`status` in `col:state:k`."""

    OPEN = "open"
    """Unanswered, and nobody's."""
    RUNNING = "running"
    """Unanswered, owned under (owner, fence) until `lease_until`, or until somebody takes it over."""
    DONE = "done"
    """Answered: `col:done:k` holds the result, and nothing changes any more."""


TRANSITIONS: Final = {
    BatchStatus.OPEN: frozenset({BatchStatus.RUNNING, BatchStatus.DONE}),
    BatchStatus.RUNNING: frozenset({BatchStatus.RUNNING, BatchStatus.OPEN, BatchStatus.DONE}),
    BatchStatus.DONE: frozenset[BatchStatus](),
}
"""running to running is a takeover: another owner, a higher fence."""


def may_become(before: BatchStatus, after: BatchStatus) -> bool:
    """Whether a batch can go from `before` to `after` in one script."""
    return after in TRANSITIONS[before]
