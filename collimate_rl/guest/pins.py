"""Pins what test code may draw on beside its inputs, so that a plan and every verdict on it take the same way.

Hash randomisation is the zygote's affair (one fixed PYTHONHASHSEED). Pinned here: `random`, the system's randomness as
Python code reaches it, numpy's generators, and the clocks, which start at the plan's moment and move with each reading.
"""

from __future__ import annotations

import datetime
import os
import random
import sys
import time
from typing import Any, Callable, Optional

_TICK_NS = 100_000
_REAL_DATETIME = datetime.datetime
_REAL_LOCALTIME = time.localtime
_REAL_GMTIME = time.gmtime
_REAL_STRFTIME = time.strftime


def pin(seed: int, clock: float) -> None:
    """Pins randomness to `seed` and the clocks to `clock` (seconds since the epoch), for this process."""
    _pin_random(seed)
    _pin_numpy(seed)
    _pin_clocks(_Clock(int(clock * 1_000_000_000)))


def _pin_random(seed: int) -> None:
    stream = random.Random(seed)
    seed_with = random.Random.seed

    def urandom(size: int) -> bytes:
        return stream.getrandbits(8 * size).to_bytes(size, "little") if size > 0 else b""

    def seed_pinned(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed_with(self, stream.getrandbits(64) if a is None else a, version)

    os.urandom = urandom
    random._urandom = urandom  # type: ignore[attr-defined]
    random.Random.seed = seed_pinned  # type: ignore[method-assign]
    instance = random.seed.__self__  # type: ignore[attr-defined]
    random.seed = instance.seed
    random.seed(seed)


def _pin_numpy(seed: int) -> None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return
    numpy.random.seed(seed % 2**32)
    default_rng = numpy.random.default_rng

    def pinned_rng(seed_given: Any = None) -> Any:
        return default_rng(seed if seed_given is None else seed_given)

    numpy.random.default_rng = pinned_rng


class _Clock:
    """Nanoseconds since the epoch; every reading moves it on a little, so that loops on time end."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns
        self._now_ns = start_ns

    def epoch_ns(self) -> int:
        self._now_ns += _TICK_NS
        return self._now_ns

    def epoch(self) -> float:
        return self.epoch_ns() / 1e9

    def elapsed_ns(self) -> int:
        return self.epoch_ns() - self._start_ns

    def elapsed(self) -> float:
        return self.elapsed_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self._now_ns += int(seconds * 1e9)


def _pin_clocks(clock: _Clock) -> None:
    def at(convert: Callable[[float], time.struct_time]) -> Callable[..., time.struct_time]:
        return lambda seconds=None: convert(clock.epoch() if seconds is None else seconds)

    def strftime(shape: str, moment: Any = None) -> str:
        return _REAL_STRFTIME(shape, _REAL_LOCALTIME(clock.epoch()) if moment is None else moment)

    def ctime(seconds: Optional[float] = None) -> str:
        return time.asctime(_REAL_LOCALTIME(clock.epoch() if seconds is None else seconds))

    readings = {
        "time": clock.epoch,
        "time_ns": clock.epoch_ns,
        "monotonic": clock.elapsed,
        "monotonic_ns": clock.elapsed_ns,
        "perf_counter": clock.elapsed,
        "perf_counter_ns": clock.elapsed_ns,
        "process_time": clock.elapsed,
        "process_time_ns": clock.elapsed_ns,
        "thread_time": clock.elapsed,
        "thread_time_ns": clock.elapsed_ns,
        "sleep": clock.sleep,
        "localtime": at(_REAL_LOCALTIME),
        "gmtime": at(_REAL_GMTIME),
        "strftime": strftime,
        "ctime": ctime,
    }
    for name, reading in readings.items():
        setattr(time, name, reading)

    class Plain(type):
        """Lets real datetimes, the only ones that there are, pass for instances of the pinned class."""

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, _REAL_DATETIME)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, _REAL_DATETIME)

    class PinnedDatetime(_REAL_DATETIME, metaclass=Plain):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return _REAL_DATETIME(*args, **kwargs)

        @classmethod
        def now(cls, tz: Optional[datetime.tzinfo] = None) -> Any:
            return _REAL_DATETIME.fromtimestamp(clock.epoch(), tz)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

        @classmethod
        def utcnow(cls) -> Any:
            return _REAL_DATETIME(*_REAL_GMTIME(clock.epoch())[:6])

    PinnedDatetime.__name__ = PinnedDatetime.__qualname__ = "datetime"
    datetime.datetime = PinnedDatetime  # type: ignore[misc]
