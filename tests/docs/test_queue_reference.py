"""docs/reference/queue.md names every script, reply, key and message field that there is."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from enum import Enum

from collimate_rl.protocol import BatchResult, BatchStatus, GradeBatch, ResultStatus, Timing, Verdict, keys
from collimate_rl.queue import lua, replies
from tests.fixtures.fences import ROOT

TEXT = (ROOT / "docs" / "reference" / "queue.md").read_text(encoding="utf-8")


def lacking(names: object) -> list[str]:
    return sorted(str(name) for name in names if f"`{name}`" not in TEXT)  # type: ignore[attr-defined]


def test_scripts_and_replies() -> None:
    assert not lacking((*lua.SCRIPTS, *lua.READING))
    enums = [v for _, v in inspect.getmembers(replies, inspect.isclass) if issubclass(v, Enum) and v is not Enum]
    assert not lacking({member.value for enum in enums for member in enum})


def test_keys() -> None:
    source = inspect.getsource(keys)
    named = {re.sub(r"\{(?:self\.)?(\w+)\}", r"\1", name) for name in re.findall(r'"(col:[^"]+)"', source)}
    named = {re.sub(r"^col:node:name$", "col:node:node", name) for name in named}
    assert len(named) > 15
    assert not lacking(named)


def test_states_and_message_fields() -> None:
    assert not lacking([s.value for s in BatchStatus] + [s.value for s in ResultStatus])
    for message in (GradeBatch, Verdict, BatchResult):
        assert not lacking(field.name for field in fields(message))


def test_state_fields_are_those_of_the_scripts() -> None:
    prelude = lua.script_text("claim", Timing())
    lists = re.findall(r"local (?:TEXT|INT)_FIELDS = \{(.*?)\}", prelude, re.DOTALL)
    names = {name for block in lists for name in re.findall(r"'(\w+)'", block)}
    assert len(names) > 25
    assert not lacking(names)
