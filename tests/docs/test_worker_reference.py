"""The worker's reference names every setting and every log event, and no other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from worker.logs import EVENTS
from worker.settings import WorkerSettings, environment_name, option_name

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "worker.md").read_text(encoding="utf-8")


def test_every_setting_has_its_row() -> None:
    for item in dataclasses.fields(WorkerSettings):
        row = rf"^\| `{option_name(item.name)}[ `].*\| `{environment_name(item.name)}` \| `{item.name}` \|"
        assert re.search(row, TEXT, re.MULTILINE), item.name


def test_every_log_event_is_there() -> None:
    section = TEXT.split("## Log events")[1]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(EVENTS)
