"""How an event becomes a line: JSON for machines, words for people.

Either way one event is one line (a traceback for people follows, indented), whatever a candidate, a daemon or a server
wrote into it: control characters, line breaks and marks that turn or hide text never reach a screen or a file as such.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

LONGEST = 4096
"""Characters of one value; what is beyond is counted only."""
LONGEST_TRACEBACK = 32_768
RESET = "\x1b[0m"
COLOURS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
STRONG = "\x1b[1m"


class Seldom(logging.Filter):
    """Lets an error that is said again and again through every `every_s` seconds; values in its words don't count.

    rq says in each process, every second or two, that the server is away; our own events tell the outage once.
    """

    def __init__(self, every_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s = every_s
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return True
        words, t = str(record.msg), self._clock()
        if t - self._said.get(words, -math.inf) < self._every_s:
            return False
        self._said = {said: at for said, at in self._said.items() if t - at < self._every_s} | {words: t}
        return True


def clip(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest} more)"


def visible(text: str) -> str:
    """`text` with everything that isn't plainly printable as an escape (`\\n`, `\\x1b`, `\\u202e`)."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def word(value: object) -> str:
    """A value for people: bare where it is one word, else in quotes, so that none can pass for another field."""
    text = visible(clip(str(value)))
    if text and not any(each in ' "=\\' for each in text) and text.isascii():
        return text
    quoted = clip(str(value)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{visible(quoted)}"'


def may_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether colours are wanted on `stream`: on a terminal that knows them, and not where NO_COLOR asks for none."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class _Formatter(logging.Formatter):
    def __init__(self, context: Mapping[str, Any]) -> None:
        super().__init__()
        self._context = context

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {**self._context, **getattr(record, "event_fields", {})}

    def trace(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[0] is None:
            return ""
        told = self.formatException(record.exc_info)
        return told if len(told) <= LONGEST_TRACEBACK else f"…{told[-LONGEST_TRACEBACK:]}"  # the end says most

    def event(self, record: logging.LogRecord) -> str:
        return str(getattr(record, "event", "") or record.name)


class JsonFormatter(_Formatter):
    """One object per line: `at` (seconds since 1970), `level`, `event`, `node`, `worker`, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": self.event(record),
        }
        line |= {name: _plain(value) for name, value in self.fields(record).items() if name not in line}
        if not hasattr(record, "event"):
            line["message"] = clip(record.getMessage())
        if trace := self.trace(record):
            line["traceback"] = trace
        return json.dumps(line)  # ASCII: escapes whatever else there is


def _plain(value: object) -> object:
    """What JSON has; a number that it has not, and anything else, as text."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return clip(str(value))


class TextFormatter(_Formatter):
    """`12:00:00 info    batch_published  worker=n1-0-ab12 k=… seconds=0.4`; a traceback follows, each line indented.

    Fields that say nothing (None, an empty text) are left out, and so is the node: a screen shows one.
    """

    def __init__(self, context: Mapping[str, Any], *, colours: bool = False) -> None:
        super().__init__(context)
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        told = {name: value for name, value in self.fields(record).items() if name != "node"}
        words = [f"{visible(name)}={word(value)}" for name, value in told.items() if value is not None and value != ""]
        if not hasattr(record, "event"):
            words.append(visible(clip(record.getMessage())))
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = record.levelname.lower()
        name = visible(self.event(record))
        if self._colours:
            line = f"{clock} {COLOURS.get(level, '')}{level:7}{RESET} {STRONG}{name}{RESET}  {' '.join(words)}"
        else:
            line = f"{clock} {level:7} {name}  {' '.join(words)}"
        trace = [f"    | {visible(each)}" for each in self.trace(record).splitlines()]
        return "\n".join([line.rstrip(), *trace])
