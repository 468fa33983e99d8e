"""When a request may be sent again, and how long to wait before.

The rules are data, one `ResendRule` per kind of request, named by idempotency. A GET or a DELETE may be repeated
whatever became of it. A create or an exec may be repeated only after what PROVES that nothing happened: an exec that
runs twice grades a candidate twice, and a create that runs twice leaves a session that nobody knows. The table in
docs/reference/sdk.md lists what follows from them, and a test holds both to real faults on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
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
Now = Callable[[], datetime]


@dataclass(frozen=True, kw_only=True)
class ResendRule:
    """After which failures one kind of request is sent again. `never` wins over everything else.

    `ambiguous`: also when it was sent and no answer came. `statuses`: HTTP statuses that pass. `codes`: error codes
    that prove that nothing ran. `dated_codes`: the same, where the answer says when to come again (Retry-After).
    What was provably not sent may always be sent again, and what is no answer of the API never.
    """

    ambiguous: bool = False
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    dated_codes: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()

    def allows(self, error: CollimateError) -> bool:
        if isinstance(error, UnreachableError):
            return True
        if isinstance(error, MalformedAnswer):
            return False
        if isinstance(error, AmbiguousError):
            return self.ambiguous
        if error.error_code in self.never:
            return False
        if error.status in self.statuses or error.error_code in self.codes:
            return True
        return error.error_code in self.dated_codes and error.retry_after_s is not None


_PASSING: Final = frozenset(
    {
        429,  # refused for now
        500,  # the server's own fault, possibly passing
        502,  # something between us and the server
        503,  # at capacity, draining or starting
        504,  # something between us and the server
    }
)

REFUSED_TO_THIS_KEY: Final = frozenset(
    {
        "demo_tier_limit",
        "forbidden",
        "insufficient_credits",
        "network_requires_pro",
        "quota_exceeded",
        "unauthorized",
    }
)
"""Codes of admission, quota and permission: asking again at once changes nothing."""

IDEMPOTENT: Final = ResendRule(ambiguous=True, statuses=_PASSING)
"""A daemon's GET and DELETE."""

NON_IDEMPOTENT: Final = ResendRule(codes=RETRYABLE_BEFORE_WORK)
"""A daemon's create and exec: no byte was sent, or the daemon says by its code that it refused before any work."""

GATEWAY_IDEMPOTENT: Final = ResendRule(ambiguous=True, statuses=_PASSING, never=REFUSED_TO_THIS_KEY)
"""The gateway's GET and DELETE, and the POSTs that it calls idempotent."""

GATEWAY_NON_IDEMPOTENT: Final = ResendRule(
    codes=frozenset({"at_capacity"}), dated_codes=frozenset({"rate_limited"}), never=REFUSED_TO_THIS_KEY
)
"""The gateway's other POSTs. Of a proxied daemon's codes none counts: only what the gateway refused itself."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """At most `retries` repeats, full jitter up to `backoff_s * 2**attempt`, at most `budget_s` slept in all.

    An error that says when to come again (`retry_after_s`) is waited for that long and the jitter; when that is more
    than is left of the budget, the error is raised at once.
    """

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

    def run(self, attempt: Callable[[], T], *, rule: ResendRule, sleep: Sleep, uniform: Uniform) -> T:
        """The first answer, or the error of the last attempt."""
        slept = 0.0
        for number in range(self.retries + 1):
            try:
                return attempt()
            except CollimateError as error:
                left = self.budget_s - slept
                told = error.retry_after_s or 0.0
                if number == self.retries or left <= 0 or told > left or not rule.allows(error):
                    raise
            pause = min(told + uniform(0.0, self.backoff_s * 2.0 ** min(number, 60)), left)
            sleep(pause)
            slept += pause
        raise AssertionError("unreachable: the last attempt returns or raises")


def retry_after_s(text: str | None, now: Now = lambda: datetime.now(timezone.utc)) -> float | None:
    """A Retry-After header, in either of its forms, as seconds from now; None where there is none or it is neither."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - now()).total_seconds())
