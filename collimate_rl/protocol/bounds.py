"""Sizes and names that everything on the queue must keep to; breaking one is a `ValueError` where it is built."""

from __future__ import annotations

import math
import re
from typing import Final

VERSION: Final = 1
"""The message version that this code writes, and the highest that it reads."""

MAX_CANDIDATES: Final = 1024
MAX_CANDIDATE_BYTES: Final = 1 << 20
MAX_GROUND_TRUTH_BYTES: Final = 4 << 20
MAX_PAYLOAD_BYTES: Final = 8 << 20
MAX_CASES: Final = 256
MAX_DETAIL_BYTES: Final = 4096
MAX_OUTPUT_TAIL_BYTES: Final = 4096
MAX_LINE_BYTES: Final = 400
"""Of what a node says is wrong, where it travels with other things."""
MAX_VERDICT_BYTES: Final = 1 << 20
MAX_CASES_BLOB_BYTES: Final = 16 << 20
MAX_TAGS: Final = 64
MAX_TAG_BYTES: Final = 1024
MAX_FLAGS: Final = 64
DEFAULT_DEADLINE_S: Final = 3600.0
MAX_DEADLINE_S: Final = 7 * 86400.0
MAX_TIMEOUT_S: Final = 3600
"""What a sandbox daemon takes for one exec."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SEED = re.compile(r"[0-9a-fA-F]{64}")
_SCHEME = re.compile(r"(?:gateway:)?[A-Za-z][A-Za-z0-9+.-]*:/{0,2}")
_SOCKET = re.compile(r"unix:(?!//[^/])")
_PASSWORD = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)


def is_name(value: str) -> bool:
    """Whether it may be the name of a run, batch, producer, node, worker or queue."""
    return _NAME.fullmatch(value) is not None


def is_k(text: str) -> bool:
    """Whether it may be a batch's key id: 32 small hex digits."""
    return len(text) == 32 and all(c in "0123456789abcdef" for c in text)


def check_name(what: str, value: object) -> str:
    """A run, producer, node, worker, queue or batch name: 1 to 128 of `A-Z a-z 0-9 . _ -`, else `ValueError`."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{what} {value!r} is no name: 1 to 128 letters, digits, dots, underscores or dashes")
    return value


def check_seed(what: str, value: object) -> str:
    """A seed of 64 hexadecimal digits, else `ValueError`."""
    if not isinstance(value, str) or not _SEED.fullmatch(value):
        raise ValueError(f"{what} {value!r} is no seed: 64 hexadecimal digits")
    return value


def check_int(what: str, value: object, low: int, high: int) -> int:
    """An integer (not a bool) within [low, high], else `ValueError`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{what} {value!r} is not an integer from {low} to {high}")
    return value


def check_seconds(what: str, value: object, *, high: float, positive: bool = True) -> float:
    """A finite number of seconds up to `high`; zero only where `positive` is False; else `ValueError`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value > high or value < 0 or (positive and value == 0):  # type: ignore[arg-type,operator]
        raise ValueError(f"{what} {value!r} is not a number of seconds up to {high:g}")
    return float(value)  # type: ignore[arg-type]


def clip_text(text: str, limit: int = MAX_DETAIL_BYTES) -> str:
    """`text` cut to at most `limit` bytes of UTF-8, at a character's edge, with an ellipsis where it was cut."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return text
    # What the cut leaves of a character (and a lone surrogate, in a text that is cut anyway) is dropped.
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def one_line(text: str, limit: int = MAX_LINE_BYTES) -> str:
    """`text` as one line of at most `limit` bytes: what somebody said, carried along for people."""
    return clip_text(" ".join(text.split()), limit)


def mask_secrets(url: str) -> str:
    """A URL without what is secret in it, fit for logs and screens: all before its last `@` but the user's name, and
    passwords in its query. Where that cannot be told (a password that was not percent-encoded) rather too much goes."""
    head, at, tail = url.rpartition("@")
    if at and ":" in head and not _SOCKET.match(url):
        found = _SCHEME.match(head)
        scheme = "" if found is None else found[0]
        if _PASSWORD.search(head):  # whose end cannot be told
            return f"{scheme}***"
        user, colon, _ = head[len(scheme) :].partition(":")
        url = f"{scheme}{user if colon else ''}{colon}***@{tail}"
    return _PASSWORD.sub(r"\1***", url)


def clip_tail(raw: bytes, limit: int = MAX_OUTPUT_TAIL_BYTES) -> tuple[bytes, bool]:
    """The last `limit` bytes, and whether any were left out."""
    return (raw, False) if len(raw) <= limit else (raw[-limit:], True)
