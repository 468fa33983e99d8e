"""When a request may be sent again, and how long to wait before.

The sets are named by idempotency. A GET or a DELETE may be repeated whatever became of it. A create or an exec may
be repeated only after what PROVES that nothing happened: an exec that runs twice grades a candidate twice, and a
create that runs twice leaves a session that nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from collimate_rl.errors import (
    RETRYABLE_BEFORE_WORK,
    AmbiguousError,
    CollimateError,
    MalformedAnswer,
    UnreachableError,
)

T = TypeVar("T")
Sleep = Callable[[float], None]
Uniform = Callable[[float, float], float]

IDEMPOTENT_RETRY_STATUSES: Final = frozenset(
    {
        429,  # refused for now
        500,  # the daemon's own fault, possibly passing
        502,  # something between us and the daemon
        503,  # at capacity, draining or starting
        504,  # something between us and the daemon
    }
)


def may_repeat_idempotent(error: CollimateError) -> bool:
    """GET and DELETE: any transport failure, and the statuses that pass. What is no API at all will not become one."""
    if isinstance(error, MalformedAnswer):
        return False
    if isinstance(error, UnreachableError | AmbiguousError):
        return True
    return error.status in IDEMPOTENT_RETRY_STATUSES


def may_repeat_non_idempotent(error: CollimateError) -> bool:
    """Create and exec: no byte was sent, or the daemon says by its code that it refused before any work."""
    return isinstance(error, UnreachableError) or error.error_code in RETRYABLE_BEFORE_WORK


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """At most `retries` repeats, full jitter up to `backoff_s * 2**attempt`, at most `budget_s` slept in all."""

    retries: int = 3
    backoff_s: float = 0.15
    budget_s: float = 30.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries is a whole number from 0, not {self.retries!r}")
        for name in ("backoff_s", "budget_s"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is a number of seconds from 0, not {value!r}")

    def run(
        self,
        attempt: Callable[[], T],
        *,
        may_repeat: Callable[[CollimateError], bool],
        sleep: Sleep,
        uniform: Uniform,
    ) -> T:
        """The first answer, or the error of the last attempt."""
        slept = 0.0
        for number in range(self.retries + 1):
            try:
                return attempt()
            except CollimateError as error:
                if number == self.retries or slept >= self.budget_s or not may_repeat(error):
                    raise
            pause = min(uniform(0.0, self.backoff_s * 2.0 ** min(number, 60)), self.budget_s - slept)
            sleep(pause)
            slept += pause
        raise AssertionError("unreachable: the last attempt returns or raises")
