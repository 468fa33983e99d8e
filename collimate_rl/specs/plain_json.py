"""Python values in a spec's JSON: JSON's own stand for themselves, all else travels as the codec's tree."""

from __future__ import annotations

from typing import Any, Final

from collimate_rl.guest.codec import BadTree, Unencodable, decode, encode

MARK: Final = "$collimate"
MAX_BYTES: Final = 8 << 20


def to_json(value: Any) -> Any:
    """The value, if JSON brings it back as it is; else `{"$collimate": tree}`. ValueError for what is no plain data."""
    if is_json(value):
        return value
    try:
        return {MARK: encode(value, MAX_BYTES)}
    except Unencodable as fault:
        raise ValueError(f"a value in the spec is no plain data: {fault.reason}") from None


def from_json(value: Any) -> Any:
    """The value that `to_json` wrote."""
    if isinstance(value, dict) and set(value) == {MARK}:
        try:
            return decode(value[MARK])
        except BadTree as fault:
            raise ValueError(f"a value in the spec is no tree of ours: {fault}") from None
    return value


def is_json(value: Any, depth: int = 0) -> bool:
    """Whether JSON text brings the value back as it is."""
    if value is None or type(value) in (bool, int):
        return True
    if type(value) is float:
        return value - value == 0.0
    if type(value) is str:
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    if depth > 100:
        return False
    if type(value) is list:
        return all(is_json(item, depth + 1) for item in value)
    if type(value) is dict:
        keys = all(type(key) is str and is_json(key, depth) for key in value) and set(value) != {MARK}
        return keys and all(is_json(item, depth + 1) for item in value.values())
    return False
