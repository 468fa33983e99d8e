"""What redis-py returns, as bytes or text: its types allow for either, whatever the client is told to decode."""

from __future__ import annotations

import json
from typing import Any

from redis.client import Pipeline
from redis.exceptions import ResponseError

_MAX_DIGITS = 18


def text(raw: Any) -> str:
    if not isinstance(raw, bytes):
        return str(raw)
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # nothing of ours
        return raw.decode("utf-8", "backslashreplace")


def raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def integer(raw: Any) -> int | None:
    """An integer that stands on the server; None where none does, or something else."""
    told = "" if raw is None else text(raw)
    digits = told.removeprefix("-")
    return int(told) if digits.isdecimal() and len(digits) <= _MAX_DIGITS else None


def natural(raw: Any) -> int:
    """A number from 0 on that stands on the server; 0 where none does, or something else."""
    return max(0, integer(raw) or 0)


def heartbeat(raw: Any) -> dict[str, Any]:
    """What a node says of itself. Empty where that is nothing of ours, or some other version's: the node lives, and
    says nothing that is understood."""
    try:
        said = json.loads(text(raw))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def server_ms(told: Any) -> int:
    """Milliseconds since 1970 from what the server answers to TIME."""
    seconds, micros = told
    return int(seconds) * 1000 + int(micros) // 1000


def whole_ms(score: float) -> int:
    """A sorted set's score as a time in ms; 0 for what is none (`inf`, that is)."""
    return int(score) if abs(score) < 10**_MAX_DIGITS else 0


def answers_of(pipe: Pipeline) -> list[Any]:
    """A pipeline's answers; None for a key of another type, so that one foreign key hides nothing but itself.

    Whatever else the server refuses (a right, memory) is raised.
    """
    told: list[Any] = pipe.execute(raise_on_error=False)
    for answer in told:
        if isinstance(answer, Exception) and type(answer) is not ResponseError:
            raise answer
    return [None if isinstance(answer, Exception) else answer for answer in told]
