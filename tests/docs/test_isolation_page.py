"""Every line of what a fork sees names tests, and they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fixtures.hostile_bombs import BOMBS
from tests.fixtures.hostile_refused import REFUSED

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/explanation/isolation.md").read_text(encoding="utf-8")
TABLES = PAGE[PAGE.index("## What a fork sees") : PAGE.index("## What is limited")]
LINES = [
    line.split(" | ")
    for line in TABLES.splitlines()
    if line.startswith("| ") and not line.startswith("| what | how far")
]
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(\w+)(?:\[([^`]+)\])?`", TABLES)))


def test_every_line_names_a_test() -> None:
    assert len(LINES) > 25
    assert not [what for what, _, held in LINES if "::" not in held]


def test_all_that_is_named_is_understood() -> None:
    assert len(NAMED) == len(set(re.findall(r"`([^`]*::[^`]*)`", TABLES)))


@pytest.mark.parametrize(("file", "test", "attack"), NAMED)
def test_it_is_there(file: str, test: str, attack: str) -> None:
    found = list((ROOT / "tests").glob(f"*/{file}"))
    assert len(found) == 1
    assert re.search(rf"^def {test}\(", found[0].read_text(encoding="utf-8"), re.MULTILINE)
    assert not attack or attack in {known.name for known in (*REFUSED, *BOMBS)}
