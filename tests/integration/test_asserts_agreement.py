"""Split grading of test code comes to the verdict of a direct run, on mutants of right solutions.

One per row in the suite; MUTANTS=long in the environment takes five, more than 500 over HumanEval.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.specs import AssertReward
from tests.fixtures.mutants import direct_passes, mutants
from tests.fixtures.rows import rows

PER_ROW = 5 if os.environ.get("MUTANTS") == "long" else 1


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

    def compare(
        row: tuple[str, AssertReward, list[str]], direct: list[bool]
    ) -> list[tuple[str, bool, GradeResult, str]]:
        name, spec, programs = row
        grades = grade_group(execute, spec, programs, seeds=[None] * len(programs), timeout_seconds=4, concurrency=2)
        told = [grade for grade in grades if isinstance(grade, GradeResult)]
        assert len(told) == len(programs), (name, grades)
        return [(name, *found) for found in zip(direct, told, programs, strict=True)]

    made = list(specs())
    direct = direct_passes([(spec, programs) for _, spec, programs in made], limit_s=3.0)
    with ThreadPoolExecutor(3) as pool:
        compared = [found for row in pool.map(compare, made, direct) for found in row]
    disagreeing = [
        (name, passes, grade.outcome, grade.detail, program)
        for name, passes, grade, program in compared
        if passes != (grade.reward == 1.0)
    ]
    assert disagreeing == []
    assert len(compared) > 100 * PER_ROW
    assert sum(passes for _, passes, _, _ in compared) > 5 * PER_ROW
