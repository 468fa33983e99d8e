"""The runner's job as a daemon takes it that holds the job itself.

What is off would fail in the candidate's process or in its holder, and there it could be read as the candidate's doing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.guest.candidate import UNARY
from collimate_rl.sandboxd.wire import bad_request

_MOST_S = 1e6
_MOST_BYTES = 1 << 30
_HOW = frozenset({"call", "get", "set", "iter", *UNARY})
_OP_KEYS = frozenset({"f", "do", "a", "k"})


def check_job(job: Mapping[str, Any]) -> None:
    """CollimateError `bad_request` unless every field is there that the runner reads of a job of calls, and fits."""
    for name, (fits, what) in _FIELDS.items():
        if name not in job:
            raise _none(f"it has no {name}")
        if not fits(job[name]):
            raise _none(f"{name} must be {what}, not {job[name]!r:.100}")
    if not _is_count(job.get("from", 0)):
        raise _none(f"from must be the number of an op, not {job['from']!r:.100}")
    for number, op in enumerate(job["ops"]):
        if not _is_op(op):
            raise _none(f"op {number} is none: {op!r:.100}")


def _none(why: str) -> CollimateError:
    return bad_request(f"the runner's job is none: {why}")


def _is_op(op: Any) -> bool:
    # What JSON gives is of exactly these types. Most ops are calls with nothing but a name and its arguments.
    if type(op) is not dict:
        return False
    target, arguments = op.get("f"), op.get("a")
    if type(target) is not list or len(target) != 2 or type(arguments) is not list:
        return False
    kind, which = target
    if not (type(which) is str if kind == "n" else kind in ("h", "p") and _is_count(which)):
        return False
    return len(op) == 2 or _is_more_than_a_call(op)


def _is_more_than_a_call(op: Mapping[str, Any]) -> bool:
    how = op.get("do", "call")
    return op.keys() <= _OP_KEYS and isinstance(how, str) and how in _HOW and isinstance(op.get("k", []), list)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mark(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isascii() and value.isprintable()


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES


def _is_duration(value: Any) -> bool:
    # No number that is none, no infinity: they compare as neither.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= _MOST_S


def _is_text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


_Fits = tuple[Callable[[Any], bool], str]
_FLAG: _Fits = (_is_flag, "true or false")
_BYTES: _Fits = (_is_count, "a number of bytes")
_DURATION: _Fits = (_is_duration, "a number of seconds above 0")
_FIELDS: Mapping[str, _Fits] = {
    "id": (lambda value: value is None, "null"),
    "program": (lambda value: value is False, "false"),
    "mark": (_is_mark, "printable text"),
    "code": (_is_text, "text"),
    "prelude": (_is_text_or_null, "text or null"),
    "entry": (_is_text_or_null, "text or null"),
    "ops": (lambda value: isinstance(value, list), "a list"),
    "total_s": _DURATION,
    "case_s": _DURATION,
    "value_bytes": _BYTES,
    "all_bytes": _BYTES,
    "arguments": _FLAG,
    "handles": _FLAG,
    "prints": _FLAG,
    "stop": _FLAG,
}
