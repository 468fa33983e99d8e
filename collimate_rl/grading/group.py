"""Grading one group of candidates by one spec: picks the way, and hands the verdicts out as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from collimate_rl.grading.classic import grade_classic
from collimate_rl.grading.command import grade_command
from collimate_rl.grading.execute import Executor
from collimate_rl.grading.properties import grade_property
from collimate_rl.grading.run import CaseStore, Graded, GroupRun
from collimate_rl.grading.test_code import grade_test_code
from collimate_rl.grading.unit import grade_programs, grade_unit_tests
from collimate_rl.specs import (
    AssertReward,
    CommandReward,
    PropertyReward,
    RewardSpec,
    StdioReward,
    TestFileReward,
    UnitTestReward,
)

__all__ = ["CaseStore", "Graded", "grade_group"]


def grade_group(
    execute: Executor,
    spec: RewardSpec,
    candidates: Sequence[str],
    *,
    seeds: Sequence[str | None],
    timeout_seconds: int = 30,
    concurrency: int = 24,
    skip: Collection[int] = (),
    on_grade: Callable[[int, Graded], None] | None = None,
    stop: threading.Event | None = None,
    case_store: CaseStore | None = None,
    exec_prefix: str | None = None,
) -> list[Graded | None]:
    """One grade per candidate, in order; a CollimateError object stands for the infrastructure's failure of one.

    `on_grade(i, graded)` is called as soon as candidate i is final, from the thread that graded it; what it raises
    stops the group and is raised here. Indices in `skip` are not graded and come back as None, as do those that were
    unfinished when `stop` was set: no exec is started after that. `case_store` keeps what judge forks made, and
    `exec_prefix` names the execs, so that another process can go on with the same ones. A fault of the spec is a
    ValueError (`SpecFault`).
    """
    if isinstance(candidates, str):  # a sequence of texts, too, of one character each
        raise ValueError("candidates is one text: give a list of source texts")
    if not hasattr(spec, "build"):
        raise ValueError(f"a {type(spec).__name__} is no reward spec: reward_spec_from_ground_truth makes one of a row")
    run = GroupRun(
        execute,
        candidates,
        seeds=seeds,
        timeout_seconds=timeout_seconds,
        concurrency=concurrency,
        skip=skip,
        on_grade=on_grade,
        stop=stop,
        case_store=case_store,
        exec_prefix=exec_prefix,
    )
    if isinstance(spec, StdioReward):
        grade_programs(run, spec)
    elif isinstance(spec, UnitTestReward) and not _overrides(spec, UnitTestReward):
        grade_unit_tests(run, spec)
    elif isinstance(spec, PropertyReward) and not _overrides(spec, PropertyReward):
        grade_property(run, spec)
    elif isinstance(spec, TestFileReward) or (isinstance(spec, AssertReward) and not _overrides(spec, AssertReward)):
        grade_test_code(run, spec)
    elif isinstance(spec, CommandReward):
        grade_command(run, spec)
    else:
        grade_classic(run, spec)
    return run.results


def _overrides(spec: RewardSpec, base: type[RewardSpec]) -> bool:
    """Whether a subclass has its own one-program form, which is then what grades."""
    return type(spec).build is not base.build or type(spec).parse is not base.parse
