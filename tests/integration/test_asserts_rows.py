"""HumanEval and MBPP rows, graded against the real daemon: solutions pass with one runner fork each."""

from __future__ import annotations

from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.specs import AssertReward
from tests.fixtures.recording import RecordingExecutor
from tests.fixtures.rows import rows

HUMANEVAL = rows("humaneval")
MBPP = rows("mbpp")


@pytest.fixture
def execute(daemon_socket: str) -> RecordingExecutor:
    return RecordingExecutor(OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py"))


def graded(execute: RecordingExecutor, spec: AssertReward, candidates: list[str]) -> list[GradeResult]:
    grades = grade_group(execute, spec, candidates, seeds=[None] * len(candidates), timeout_seconds=20)
    told = [grade for grade in grades if isinstance(grade, GradeResult)]
    assert len(told) == len(candidates), grades
    return told


@pytest.mark.skipif(not HUMANEVAL, reason="no data set beside the checkout")
@pytest.mark.parametrize("row", HUMANEVAL, ids=[row["task_id"] for row in HUMANEVAL])
def test_humaneval(execute: RecordingExecutor, row: dict[str, Any]) -> None:
    # A set-up of its own keeps it apart from what other files planned of the row before.
    spec = AssertReward(row["test"], entry=row["entry_point"], prompt=row["prompt"], setup="pass")
    body = row["canonical_solution"]
    whole, as_body, nothing = graded(execute, spec, [row["prompt"] + body, body, "    return None\n"])
    assert (whole.reward, as_body.reward) == (1.0, 1.0), (whole.detail, as_body.detail)
    assert nothing.reward is not None
    assert nothing.reward < 1.0
    assert nothing.outcome not in (None, "passed")
    # The row is planned once, the group judged once, and each candidate runs in one fork.
    assert [role for role, _, _ in execute.requests].count("judge") == 2
    assert sorted(index for role, index, _ in execute.requests if role == "runner" and index is not None) == [0, 1, 2]


@pytest.mark.skipif(not MBPP, reason="no data set beside the checkout")
@pytest.mark.parametrize("row", MBPP, ids=[f"MBPP/{row['task_id']}" for row in MBPP])
@pytest.mark.parametrize("per_assert", [False, True], ids=["all", "each"])
def test_mbpp(execute: RecordingExecutor, row: dict[str, Any], per_assert: bool) -> None:
    asserts = row["test_list"] + row["challenge_test_list"]
    spec = AssertReward("\n".join(asserts), setup=row["test_setup_code"], per_assert=per_assert)
    right, empty, other = graded(execute, spec, [row["code"], "", "x = 1\n"])
    assert right.reward == 1.0, right.detail
    assert right.cases_total == (len(asserts) if per_assert else 1)
    assert (empty.reward, empty.outcome) == (0.0, "no_code")
    assert (other.reward, other.outcome) == (0.0, "no_entry_point")
    assert [role for role, _, _ in execute.requests].count("runner") == 2


@pytest.mark.skipif(not HUMANEVAL, reason="no data set beside the checkout")
def test_a_row_is_its_own_gate(execute: RecordingExecutor) -> None:
    row = HUMANEVAL[0]
    fields = {"entry": row["entry_point"], "prompt": row["prompt"]}
    good = AssertReward(row["test"], reference=row["canonical_solution"], **fields)
    assert graded(execute, good, ["    return None\n"])[0].reward == 0.0
    bad = AssertReward(row["test"], reference="    return None\n", **fields)
    for _ in range(2):
        before = len(execute.requests)
        with pytest.raises(ValueError, match="own reference"):
            graded(execute, bad, [row["canonical_solution"]])
    assert len(execute.requests) == before, "a fault that is known isn't looked for again"
    assert not [index for role, index, _ in execute.requests[-3:] if role == "runner"]
