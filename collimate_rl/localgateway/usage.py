"""What each key used, by the minute; and how often it may ask."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from datetime import datetime, timezone
from math import ceil
from typing import Any

from collimate_rl.localgateway.refusals import Refusal, bad_request

_KEPT_MINUTES = 60 * 24 * 32
TOTALS = ("sandboxes", "forks", "execs", "exec_seconds", "tunnels")


class Usage:
    """Counts per key and minute, for a month."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._minutes: dict[str, OrderedDict[int, Counter[str]]] = {}

    def add(self, key_id: str, **counts: float) -> None:
        """Count for a key, now."""
        minute = int(self._clock() // 60)
        with self._lock:
            minutes = self._minutes.setdefault(key_id, OrderedDict())
            minutes.setdefault(minute, Counter()).update(counts)
            while len(minutes) > _KEPT_MINUTES:
                minutes.popitem(last=False)

    def report(self, key_id: str, start: str | None, end: str | None) -> dict[str, Any]:
        """`{from, to, totals}` of the minutes that lie between two RFC 3339 times; by default this month until now."""
        now = self._clock()
        month = datetime.fromtimestamp(now, timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        begins = month.timestamp() if start is None else _parse(start, "from")
        ends = now if end is None else _parse(end, "to")
        totals: Counter[str] = Counter()
        with self._lock:
            for minute, counts in self._minutes.get(key_id, {}).items():
                if minute * 60 + 60 > begins and minute * 60 <= ends:
                    totals.update(counts)
        return {
            "from": rfc3339(begins),
            "to": rfc3339(ends),
            "totals": {name: round(totals[name], 3) for name in TOTALS},
        }


def rfc3339(seconds: float) -> str:
    """A time since the epoch as RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def _parse(text: str, name: str) -> float:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00").replace(" ", "+"))
    except ValueError:
        raise bad_request(f"{name} must be a time as RFC 3339 has it, as 2026-01-31T00:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


class RateLimit:
    """`per_second` requests of each key, with bursts of twice that; 0 is no limit."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._burst = max(2 * per_second, 1.0)
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, key_id: str) -> None:
        """One request; 429 `rate_limited` when there were too many."""
        if not self._rate:
            return
        now = self._clock()
        with self._lock:
            left, at = self._left.get(key_id, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            granted = left >= 1
            self._left[key_id] = (left - granted, now)
        if not granted:
            wait = max(ceil((1 - left) / self._rate), 1)
            raise Refusal(
                429, "rate_limited", f"more than {self._rate:g} requests per second: wait {wait} s", retry_after_s=wait
            )
