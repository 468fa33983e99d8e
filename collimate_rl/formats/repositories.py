"""Rows whose task is a repository: SWE-bench and its kin, and rows that are a `CommandReward`'s own fields."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from collimate_rl.formats.pairs import shown
from collimate_rl.specs import CommandReward

IN_PLACE: Final = "/testbed"
"""Where the images of such data sets have the repository."""
_OURS: Final = frozenset(CommandReward.__dataclass_fields__)
_NAMED: Final = re.compile(r"^\+\+\+ b/(\S+)", re.MULTILINE)
_TEST_FILE: Final = re.compile(r"(?:^|/)(?:test_[^/]*|[^/]*_test|tests?)\.py$")


def is_repository_row(row: Mapping[str, Any]) -> bool:
    """Whether the row is one of these."""
    return row.get("FAIL_TO_PASS") is not None or row.get("command") is not None


def repository_spec(row: Mapping[str, Any]) -> CommandReward:
    """The spec of such a row. Raises ValueError.

    `FAIL_TO_PASS` and `PASS_TO_PASS` are lists, or JSON text of them; `test_patch` is written over every candidate's
    work; `patch`, the reference, has to pass first. The repository is at `base` in the template (copied to `root`), or
    in the row's `files`; where the row names neither it is patched in place, in /testbed. Without a `command` pytest
    runs the test files of `test_patch` and of the named tests. Other fields of `CommandReward` are taken as they are.
    """
    fields = {name: value for name, value in row.items() if name in _OURS and value is not None}
    if row.get("FAIL_TO_PASS") is None:
        return CommandReward.from_wire(fields)
    for ours, theirs in (("fail_to_pass", "FAIL_TO_PASS"), ("pass_to_pass", "PASS_TO_PASS")):
        fields.setdefault(ours, _names(row.get(theirs), theirs))
    if not fields["fail_to_pass"]:
        raise ValueError("FAIL_TO_PASS is empty: a candidate that does nothing would pass")
    # Some rows list a test on both sides; it is the same test.
    failing = set(fields["fail_to_pass"])
    fields["fail_to_pass"] = list(dict.fromkeys(fields["fail_to_pass"]))
    fields["pass_to_pass"] = [name for name in dict.fromkeys(fields["pass_to_pass"]) if name not in failing]
    if row.get("test_patch") is not None:
        fields.setdefault("test_patch", row["test_patch"])
    if row.get("patch"):
        fields.setdefault("reference", row["patch"])
    if "base" not in fields and "files" not in fields and "root" not in fields:
        fields["base"] = fields["root"] = IN_PLACE
    if "command" not in fields:
        fields["command"] = _pytest(fields)
    return CommandReward.from_wire(fields)


def _names(value: Any, column: str) -> list[str]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as fault:
            raise ValueError(f"{column} is no JSON: {fault}") from fault
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{column} is a list of tests' names, not {shown(value)}")
    return list(value)


def _pytest(fields: Mapping[str, Any]) -> str:
    names = [*fields["fail_to_pass"], *fields["pass_to_pass"]]
    odd = [name for name in names if "::" not in name.partition("[")[0]]
    if odd:
        raise ValueError(
            f"{shown(odd[0])} is no test that pytest would find by that name: give the row a command that runs the "
            "tests and writes JUnit XML to {results}"
        )
    patch = fields.get("test_patch")
    patched = _NAMED.findall(patch) if isinstance(patch, str) else []
    files = dict.fromkeys([path for path in patched if _TEST_FILE.search(path)])
    files.update(dict.fromkeys(name.partition("::")[0] for name in names))
    places = " ".join(shlex.quote(path) for path in files)
    return f"{{python}} -m pytest -q -p no:cacheprovider --junitxml={{results}} {places} {{decoys}}"
