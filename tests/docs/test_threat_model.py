"""Every line of the threat model that says what holds it names tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.fixtures.acl_users import USERS
from tests.fixtures.fences import ROOT
from tests.fixtures.hostile_bombs import BOMBS
from tests.fixtures.hostile_refused import REFUSED

PAGE = (ROOT / "docs/explanation/threat-model.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(\w+)(?:\[([^`]+)\])?`", PAGE)))


def rows(text: str) -> list[list[str]]:
    """The cells of a section's tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines if not line.rstrip("| ").endswith("held by")]


def test_every_boundary_has_its_lines() -> None:
    assert len(SECTIONS) == 9
    for title, text in SECTIONS.items():
        assert len(rows(text)) >= 2, title


def test_every_line_names_a_test() -> None:
    for title, text in SECTIONS.items():
        for row in rows(text):
            assert "::" in row[-1], (title, row[0])


def test_all_that_is_named_is_understood() -> None:
    assert len(NAMED) == len(set(re.findall(r"`([^`]*::[^`]*)`", PAGE)))


@pytest.mark.parametrize(("file", "test", "case"), NAMED)
def test_it_is_there(file: str, test: str, case: str) -> None:
    found = list((ROOT / "tests").glob(f"*/{file}"))
    assert len(found) == 1
    assert re.search(rf"^(async )?def {test}\(", found[0].read_text(encoding="utf-8"), re.MULTILINE)
    assert not case or case in {*USERS, *(known.name for known in (*REFUSED, *BOMBS))}


def test_every_user_of_the_server_is_told_of() -> None:
    how = (ROOT / "docs/howto/secure-redis.md").read_text(encoding="utf-8")
    assert all(f"| `{user}` |" in how for user in (*USERS, "probe"))
