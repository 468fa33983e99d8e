"""Split grading of test code comes to the verdict of a direct run, on mutants of right solutions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.specs import AssertReward
from tests.fixtures.mutants import direct_passes, mutants
from tests.fixtures.rows import rows

PER_ROW = 2


def specs() -> Iterator[tuple[str, AssertReward, list[str]]]:
    """Every row's name and spec, and mutants of its solution."""
    for row in rows("humaneval"):
        spec = AssertReward(row["test"], entry=row["entry_point"], prompt=row["prompt"])
        source = row["prompt"] + row["canonical_solution"]
        yield row["task_id"], spec, mutants(source, PER_ROW, 20240601, row["entry_point"])
    for row in rows("mbpp"):
        spec = AssertReward("\n".join(row["test_list"] + row["challenge_test_list"]), setup=row["test_setup_code"])
        yield f"MBPP/{row['task_id']}", spec, mutants(row["code"], PER_ROW, 20240601)


@pytest.mark.skipif(not rows("humaneval"), reason="no data set beside the checkout")
def test_mutants_are_judged_as_a_direct_run_judges_them(daemon_socket: str) -> None:
    execute = OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py")
    compared, passing, disagreeing = 0, 0, []
    for name, spec, programs in specs():
        direct = direct_passes(spec, [spec.program(program) for program in programs], limit_s=4.0)
        grades = grade_group(execute, spec, programs, seeds=[None] * len(programs), timeout_seconds=4, concurrency=4)
        for program, passes, grade in zip(programs, direct, grades, strict=True):
            assert isinstance(grade, GradeResult), (name, grade)
            compared += 1
            passing += passes
            if passes != (grade.reward == 1.0):
                disagreeing.append((name, passes, grade.outcome, grade.detail, program))
    assert disagreeing == []
    assert compared > 200
    assert passing > 10
