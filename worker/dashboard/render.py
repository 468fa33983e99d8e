"""Templates filled: escaped always, and every value made harmless on its way."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from collimate_rl.queue.numbers import Numbers, RunNumbers
from worker.dashboard import batch_pages, plots, texts, views
from worker.dashboard.feed import Look

HERE = Path(__file__).parent
MAX_KEPT = 64


class Renderer:
    """Fills templates for one queue; of a live part at most one rendering per look, whoever watches."""

    def __init__(self, queue: str) -> None:
        files = sorted((HERE / "static").iterdir())
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            finalize=texts.harmless,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            # A package that is replaced under a running dashboard must not have it fill templates of another release.
            auto_reload=False,
            cache_size=-1,
        )
        self._environment.filters.update(
            seconds=texts.seconds,
            millis=texts.millis,
            ago=texts.ago,
            count=texts.count,
            rate=texts.rate,
            reward=texts.reward,
            clip=texts.clip,
            urlencode=texts.address,
            sentence=texts.sentence,
            clock=clock,
            stamp=stamp,
            iso=iso,
            moment=moment,
        )
        self._environment.globals.update(
            queue=queue,
            version=digest,
            views=views,
            plots=plots,
            share=texts.share,
            plural=texts.plural,
            read_of=texts.read_of,
            trouble_words=trouble_words,
            status_mark=batch_pages.status_mark,
        )
        for name in self._environment.list_templates():
            self._environment.get_template(name)
        self._kept: dict[str, str] = {}
        self._kept_of = -1

    def page(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(**values)

    def run_of(self, look: Look[Numbers], name: str) -> RunNumbers | None:
        """The run's numbers; None where it is not among those that are looked at."""
        runs = () if look.numbers is None else look.numbers.runs
        return next((run for run in runs if run.name == name), None)

    def event(self, look: Look[Numbers], live: str) -> Mapping[str, Any]:
        """The data of an event for a page whose live part is `live`: '', `overview` or `run:NAME`."""
        numbers = look.numbers
        return {
            "ok": not look.trouble,
            "trouble": trouble_words(look),
            "at": "" if numbers is None else clock(numbers.at),
            "answered": 0 if numbers is None else numbers.total.batches,
            "html": "" if look.trouble else self._live(look, live),
        }

    def _live(self, look: Look[Numbers], live: str) -> str:
        if self._kept_of != look.serial:
            self._kept, self._kept_of = {}, look.serial
        if live not in self._kept:
            made = ""
            if live == "overview":
                made = self.page("overview_live.html", look=look, span="hour")
            elif live.startswith("run:"):
                run = self.run_of(look, live[4:])
                made = "" if run is None else self.page("run_live.html", look=look, run=run, span="hour")
            if len(self._kept) >= MAX_KEPT:
                return made
            self._kept[live] = made
        return self._kept[live]


def trouble_words(look: Look[Numbers]) -> str:
    """What is in the way, for the strip above every page; '' when nothing is."""
    if not look.trouble:
        return ""
    since = "" if look.since is None else f" since {clock(look.since)}"
    what = "Redis is away" if look.away else "The queue can\u2019t be read"
    shown = "" if look.numbers is None else f" What is shown is of {clock(look.numbers.at)}."
    return f"{what}{since}: {texts.sentence(look.trouble)}{shown} It is tried again every two seconds."


def _written(at: float | None, form: str) -> str:
    """A time in UTC; a dash for None, and for what lies beyond all calendars: producers say when they submitted."""
    try:
        return "\u2013" if at is None else time.strftime(form, time.gmtime(at))
    except (ValueError, OverflowError, OSError):
        return "\u2013"


def clock(at: float | None) -> str:
    """`12:03:04 UTC`."""
    return _written(at, "%H:%M:%S UTC")


def moment(at: float, now: float) -> str:
    """The time of day, with the date where it is not of the last twelve hours."""
    return clock(at) if abs(now - at) < 43_200 else stamp(at)


def stamp(at: float | None) -> str:
    """`2026-03-01 12:03:04 UTC`."""
    return _written(at, "%Y-%m-%d %H:%M:%S UTC")


def iso(at: float) -> str:
    """For `<time datetime>`."""
    return _written(at, "%Y-%m-%dT%H:%M:%SZ")
