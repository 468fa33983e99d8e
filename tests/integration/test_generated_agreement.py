"""UnitTestReward passes what Python's own == passes beside the expected values, case by case, on generated programs.

None of them cheats: so the way of grading that is easily cheated is the truth here. DIFFERENTIAL=long draws thousands.
"""

from __future__ import annotations

import os
from collections import Counter

from collimate_rl.client import CollimateClient
from collimate_rl.rewards import UnitTestReward, grade_batch
from tests.fixtures.mutants import few_mutants
from tests.fixtures.plain_grader import plain_passes
from tests.fixtures.programs import ALIKE, dressed, problem

LONG = os.environ.get("DIFFERENTIAL") == "long"
PROBLEMS = 250 if LONG else 20
MUTANTS, DRESSED = 5, 3


def candidates(source: str, number: int) -> list[str]:
    """The right program, some mutants, and the right one with its results in another type."""
    names = sorted(ALIKE)
    worn = [names[(DRESSED * number + k) % len(names)] for k in range(DRESSED)]
    return [source, *few_mutants(source, MUTANTS, number), *[dressed(source, ALIKE[name]) for name in worn]]


def test_generated_candidates_are_judged_as_python_judges_them(daemon_socket: str) -> None:
    client = CollimateClient(unix_socket=daemon_socket)
    differing = []
    told: Counter[str] = Counter()
    problems = [problem(number) for number in range(PROBLEMS)]
    groups = [(made.tests, candidates(made.source, number)) for number, made in enumerate(problems)]
    for (tests, programs), plain in zip(groups, plain_passes(groups), strict=True):
        grades = grade_batch(client, "py", programs, UnitTestReward(tests), timeout_seconds=20, concurrency=4)
        for program, passes, grade in zip(programs, plain, grades, strict=True):
            if passes is None:
                told["too long for the plain grader"] += 1
                continue
            ours = [case.outcome == "passed" for case in grade.cases]
            if ours != passes or grade.reward != sum(passes) / len(passes):
                differing.append((passes, ours, grade.detail, program))
            told["right" if all(passes) else "partly" if any(passes) else "wrong"] += 1
    print(dict(told))
    assert differing == []
    assert sum(told.values()) - told["too long for the plain grader"] > PROBLEMS * (MUTANTS + DRESSED)
    assert min(told["right"], told["partly"], told["wrong"]) > PROBLEMS / 4
