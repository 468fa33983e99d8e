"""Log lines: each event on one line whatever is in it, with the names it is found by; outages said now and then."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.fences import ROOT
from worker import logs
from worker.log_lines import LONGEST, Seldom, may_colour
from worker.outage import Outage

HOSTILE = (
    "x\n12:00:00 error   refused  reason=forged",
    "\x1b[2J\x1b]0;title\x07red\x1b[31m",
    "\r\x00\x7f\x85\u2028\u202egnp.exe\u200b\ud800",
    'a" event="batch_published',
    "k=forged fence=9",
    "\\n \\x1b",
)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    names = ("collimate.worker", "collimate_rl", "rq")
    kept = [(logging.getLogger(name), logging.getLogger(name).handlers[:]) for name in names]
    propagates = [logger.propagate for logger, _ in kept]
    yield
    for (logger, handlers), propagate in zip(kept, propagates, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(logging.NOTSET)
    logging.getLogger("rq.worker").filters.clear()


def lines(log_format: str, stream: io.StringIO | None = None, **fields: Any) -> list[str]:
    """What is written for one event."""
    stream = stream or io.StringIO()
    logs.configure(log_format, "debug", stream=stream, node="n1", worker="n1-0-ab")
    logs.emit(logs.REFUSED, logging.ERROR, **fields)
    assert stream.getvalue().endswith("\n")
    return stream.getvalue().removesuffix("\n").split("\n")


def test_what_the_sdk_warns_of_is_a_line_of_the_log() -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream=stream, node="n1")
    logging.getLogger("collimate_rl.queue.janitor").warning("batch %s cannot be mended", HOSTILE[0])
    logging.getLogger("collimate_rl.queue.janitor").info("nothing that a log is for")
    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert (told["event"], told["node"]) == ("collimate_rl.queue.janitor", "n1")
    assert told["message"] == f"batch {HOSTILE[0]} cannot be mended"


def test_what_nothing_took_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    stream = io.StringIO()
    logs.configure("json", "info", stream=stream)
    logs.take_uncaught()

    def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("in\na thread"), SystemExit(3)):
        thread = threading.Thread(target=fail, args=(error,))
        thread.start()
        thread.join()
    sys.excepthook(OSError, OSError("at the end"), None)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each["event"] for each in told] == ["uncaught", "uncaught"]
    assert "in fail" in told[0]["traceback"]
    assert told[1]["traceback"].endswith("OSError: at the end")


@pytest.mark.parametrize("text", HOSTILE, ids=["lines", "ansi", "marks", "quote", "fields", "backslash"])
def test_hostile_text_stays_on_its_line_and_in_its_field(text: str) -> None:
    (line,) = lines("json", reason=text)
    assert line.isascii()
    assert line.isprintable()
    told = json.loads(line)
    assert told["reason"] == text
    assert (told["event"], told["node"], told["worker"], told["level"]) == ("refused", "n1", "n1-0-ab", "error")
    (line,) = lines("text", reason=text)
    assert line.isprintable()
    start = line.index(' reason="') + len(' reason="')
    assert line.endswith('"')
    assert line[9:].startswith("error   refused  worker=n1-0-ab reason=")
    inside = line[start:-1]
    assert '"' not in inside.replace("\\\\", "").replace('\\"', ""), "the quotes can be left"


def test_a_traceback_of_hostile_words_is_indented_and_escaped() -> None:
    stream = io.StringIO()
    logs.configure("text", "info", stream=stream)
    try:
        raise RuntimeError("boom\n12:00:00 error   refused  reason=forged\x1b[31m")
    except RuntimeError:
        logs.emit(logs.BATCH_ERROR, logging.ERROR, k="abc", exc_info=True)
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("batch_error  k=abc")
    assert len(rest) > 2
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)


def test_what_another_library_logs_is_escaped_too() -> None:
    stream = io.StringIO()
    logs.configure("text", "info", stream=stream)
    logging.getLogger("rq.worker").warning("job %s", "a\nb\x1b[0m")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("rq.worker  job a\\nb\\x1b[0m")
    assert len(stream.getvalue().split("\n")) == 2


def test_an_error_of_rqs_that_goes_on_is_said_now_and_then() -> None:
    now = 0.0
    seldom = Seldom(every_s=30.0, clock=lambda: now)

    def said(level: int, words: str, *values: object) -> bool:
        return bool(seldom.filter(logging.LogRecord("rq.worker", level, "", 0, words, values, None)))

    assert [said(logging.ERROR, "away, retrying in %d", wait) for wait in (1, 2, 2)] == [True, False, False]
    assert said(logging.ERROR, "another")
    assert [said(logging.WARNING, "warned") for _ in range(2)] == [True, True]
    now = 30.0
    assert said(logging.ERROR, "away, retrying in %d", 2)


def test_json_is_json_whatever_the_value() -> None:
    (line,) = lines("json", reason=float("nan"), count=3, share=0.5, nothing=None, yes=True, odd={1, 2}, at="forged")
    told = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (told["count"], told["share"], told["nothing"], told["yes"]) == (3, 0.5, None, True)
    assert (told["reason"], told["odd"]) == ("nan", "{1, 2}")
    assert isinstance(told["at"], float)


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_long_value_is_cut(log_format: str) -> None:
    (line,) = lines(log_format, reason="y" * 1_000_000)
    assert len(line) < LONGEST + 300
    assert f"({1_000_000 - LONGEST} more)" in line


def test_colours_are_for_terminals_alone() -> None:
    assert "\x1b" not in lines("text", reason="no")[0]
    assert "\x1b[31merror" in lines("text", Screen(), reason="no")[0]
    assert "\x1b" not in lines("json", Screen(), reason="no")[0]
    assert may_colour(Screen(), {"TERM": "xterm"})
    assert not may_colour(Screen(), {"TERM": "dumb"})
    assert not may_colour(Screen(), {"NO_COLOR": "1"})


def test_fields_that_say_nothing_are_left_out_for_people() -> None:
    assert lines("text", reason="one two", session=None, empty="", zero=0)[0].endswith('reason="one two" zero=0')


def calls() -> Iterator[tuple[Path, str, set[str], bool]]:
    """Every `logs.emit` and `….report` of an event: where, which, the fields it names, and whether it adds others."""
    for path in sorted((ROOT / "worker").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            event = node.args[0]
            if node.func.attr in ("emit", "report") and isinstance(event, ast.Attribute):
                named = {word.arg for word in node.keywords if word.arg is not None}
                yield path, getattr(logs, event.attr), named, any(word.arg is None for word in node.keywords)


ADDED = {"_name": {"k", "fence"}, "_about": {"k", "index", "session"}}
"""What `**self._name` of a batch and `**self._about(…)` of a candidate add (worker.batch_job, worker.group_work)."""


def test_every_event_carries_what_it_is_found_by() -> None:
    seen = set()
    for path, event, named, more in calls():
        if more:
            named |= {"batch_job.py": ADDED["_name"], "group_work.py": ADDED["_about"]}.get(path.name, set())
        missing = logs.CARRIES[event] - named
        assert not missing, f"{path.name}: {event} lacks {sorted(missing)}"
        seen.add(event)
    assert len(seen) > 30
    for event, carries in logs.CARRIES.items():
        wanted = {"k"} if event.startswith("batch_") else {"k", "index", "session"} if "candidate" in event else set()
        assert wanted <= carries, event


def test_what_stays_away_is_said_at_once_then_now_and_then() -> None:
    stream, now = io.StringIO(), [100.0]
    logs.configure("json", "info", stream=stream)
    outage = Outage(again_s=30.0, clock=lambda: now[0])
    assert outage.over() is None
    for _ in range(131):
        outage.report(logs.REDIS_DOWN, error="refused")
        now[0] += 1.0
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each.get("away") for each in told] == [None, 30.0, 60.0, 90.0, 120.0]
    assert {each["error"] for each in told} == {"refused"}
    assert outage.over() == 131.0
    assert outage.over() is None
    outage.report(logs.REDIS_DOWN, error="again")
    assert len(stream.getvalue().splitlines()) == 6
