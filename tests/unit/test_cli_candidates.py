"""The demo's rows and candidates are what they claim to be, before any sandbox is involved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.cli.candidates import rollouts
from collimate_rl.cli.demo_command import FIELDS, load_rows
from tests.fixtures.fences import ROOT

SHIPPED = ROOT / "collimate_rl" / "data" / "demo.jsonl"
ROWS = [json.loads(line) for line in SHIPPED.read_text().splitlines()]
TURNS = range(10)


def code_of(completion: str) -> str:
    blocks = re.findall(r"```python\n(.*?)\n```", completion, re.DOTALL)
    return str(blocks[-1]) if blocks else completion


def passes(row: dict[str, str], code: str) -> bool:
    namespace: dict[str, Any] = {}
    try:
        exec(row["prompt"] + code if code.startswith(" ") else code, namespace)
        exec(row["test"], namespace)
        namespace["check"](namespace[row["entry_point"]])
    except (AssertionError, TypeError):
        return False
    return True


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["task_id"])
def test_a_shipped_row_has_the_form_and_its_solution_passes(row: dict[str, str]) -> None:
    assert tuple(row) == FIELDS
    assert passes(row, row["canonical_solution"])
    assert not passes(row, "    return None\n")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["task_id"])
def test_the_right_wordings_are_right_and_the_wrong_answer_is_wrong(row: dict[str, str]) -> None:
    group = rollouts(row, 0)
    header = row["prompt"].partition("def ")[0]
    helpers = row["prompt"][: row["prompt"].index(f"def {row['entry_point']}(")]
    for rollout in group:
        if rollout.right:
            code = code_of(rollout.completion)
            assert passes(row, code if code.startswith(" ") else header + helpers + code), rollout.kind
    assert not passes(row, code_of(group[3].completion))


def test_a_group_has_three_right_and_five_wrong_and_the_kinds_take_turns() -> None:
    groups = [rollouts(ROWS[0], turn) for turn in TURNS]
    assert {tuple(one.right for one in group) for group in groups} == {(True,) * 3 + (False,) * 5}
    assert len({group[4].kind for group in groups}) == 5
    assert len({group[5].kind for group in groups}) == 3
    assert len({group[7].kind for group in groups}) == 10


def test_cheats_and_endless_ones_are_valid_code() -> None:
    for turn in TURNS:
        for place in (5, 7):
            compile(code_of(rollouts(ROWS[0], turn)[place].completion), "cheat", "exec")


def test_rows_are_read_up_to_the_limit_and_other_data_is_refused(tmp_path: Path) -> None:
    assert [row["task_id"] for row in load_rows(SHIPPED, 2)] == ["Demo/0", "Demo/1"]
    assert len(load_rows(SHIPPED, 99)) == 5
    other = tmp_path / "other.jsonl"
    other.write_text('{"task_id": "x"}\n')
    with pytest.raises(ValueError, match="line 1"):
        load_rows(other, 2)
    other.write_text("\n")
    with pytest.raises(ValueError, match="no rows"):
        load_rows(other, 2)
