"""Strangers' text made fit for a page, and numbers made fit for people.

Markup is escaped by the templates, always. Here goes what escaping leaves: terminal codes, control characters, marks
that turn the direction of writing, half characters, and sheer size.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

MAX_SHOWN = 64 * 1024
"""Characters of one text on a page; the page says how much it leaves out."""

MAX_ADDRESS = 1024
"""Characters of a name in an address; what is longer is no name of ours."""

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u180b\u180c\u180d\u180f")
"""Letters and marks that show as nothing, as the variation selectors from U+E0100 on do."""


def harmless(value: Any) -> Any:
    """What every value of a page goes through: a text of at most `MAX_SHOWN` characters, without terminal colours, and
    with everything else that doesn't show itself as an escape (`\\x1b`, `\\u202e`). What is no text stays as it is, and
    so does `Markup`."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if len(value) > MAX_SHOWN:
        value = value[:MAX_SHOWN] + "\u2026"
    if value.isascii() and value.isprintable():
        return value
    seen = _COLOURS.sub("", value.replace("\r\n", "\n"))
    return "".join(each if _shows(each) else each.encode("unicode_escape").decode("ascii") for each in seen)


def _shows(each: str) -> bool:
    if each.isprintable():
        return each not in _BLANK and not "\U000e0100" <= each <= "\U000e01ef"
    return each in "\t\n" or unicodedata.category(each) == "Zs"


def address(value: str) -> str:
    """A name as a part of an address of ours, whatever stands in it."""
    return quote(value[:MAX_ADDRESS].encode("utf-8", "surrogatepass"), safe="/")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A text for the page, and how many characters of it were left out at its end."""

    text: str
    left_out: int


def cap(text: str, limit: int = MAX_SHOWN) -> Shown:
    """The first `limit` characters."""
    return Shown(text=text[:limit], left_out=max(0, len(text) - limit))


def decode(raw: bytes) -> str:
    """A candidate's output as text, whatever its bytes."""
    return raw.decode("utf-8", "replace")


def clip(text: str, limit: int) -> str:
    """One line of at most `limit` characters, an ellipsis where it was cut."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else line[: limit - 1] + "\u2026"


def sentence(text: str) -> str:
    """With a mark at its end."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def seconds(value: float | None) -> str:
    """`0.4 s`, `12 s`, `3 min`, `2 h 05 min`, `3 d 4 h`; a dash for None."""
    if value is None or not math.isfinite(value):
        return "\u2013"
    size = max(0.0, value)
    if size < 0.0995:
        return f"{size * 1000:.0f} ms"
    if size < 9.95:
        return f"{size:.1f} s"
    if size < 99.5:
        return f"{size:.0f} s"
    if size < 3570:
        return f"{size / 60:.0f} min"
    minutes = round(size / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def ago(value: float | None) -> str:
    """`just now`, `12 s ago`; a dash for None."""
    return "\u2013" if value is None else "just now" if value < 1 else f"{seconds(value)} ago"


def millis(value: float | None) -> str:
    """A duration given in milliseconds, as `seconds` writes it."""
    return "< 1 ms" if value is not None and 0 < value < 1 else seconds(None if value is None else value / 1000)


def count(value: float | None) -> str:
    """`1,234`; a dash for None."""
    return "\u2013" if value is None else f"{round(value):,}"


def rate(value: float | None) -> str:
    """Per second: `0`, `0.02`, `3.4`, `120`; a dash for None."""
    if value is None:
        return "\u2013"
    if value == 0:
        return "0"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def share(part: float, whole: float) -> str:
    """`12.5 %`; a dash where there is nothing to have a share of. What is there never reads as 0, nor as all."""
    if whole <= 0:
        return "\u2013"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %".replace(".0 %", " %")


def reward(value: float | None) -> str:
    """`1`, `0.5`, `0.333`; a dash for None, which is no reward, and not 0."""
    return "\u2013" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def read_of(zeros: int, graded: int, unread: int) -> str:
    """What stands beside a mean reward: `3 zeros, 12.5 %`, and how many graded candidates it leaves out."""
    told = f"{plural(zeros, 'zero', 'zeros')}, {share(zeros, graded - unread)}"
    return f"{told}; {unread:,} not read, left out" if unread else told


def plural(n: int, one: str, many: str) -> str:
    """`1 batch`, `2 batches`."""
    return f"{n:,} {one if n == 1 else many}"
