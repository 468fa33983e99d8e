"""How a group goes through its rounds: retries, limits, what is kept, and whose fault is whose."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.errors import CollimateDrainingError, CollimateError, UnreachableError
from collimate_rl.grading.execute import ExecRequest, Executor, Role
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult, SpecFault
from collimate_rl.grading.run import GroupRun
from collimate_rl.grading.test_judge import Plan
from collimate_rl.grading.test_plan import Row, RowCache, ready_row
from collimate_rl.grading.test_rounds import MAX_ROUNDS
from collimate_rl.sandbox import ExecResult
from collimate_rl.specs import AssertReward
from tests.fixtures.plain_executor import PlainExecutor, answer

GOOD = "def f(x): return x\n"
BAD = "def f(x): return None\n"


def spec_of(n: int) -> AssertReward:
    """A spec that no other test has: rows are kept per process."""
    return AssertReward(f"assert f({n}) == {n}\n")


class Scripted:
    """Hands requests on, but for those that `trouble(role, index, nth)` has an answer or an error for."""

    def __init__(self, inner: Executor, trouble: Callable[[Role, int | None, int], Any] = lambda *_: None) -> None:
        self.inner = inner
        self.trouble = trouble
        self.asked: list[tuple[Role, int | None]] = []
        self.seeds: list[str | None] = []
        self.lock = threading.Lock()

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        with self.lock:
            nth = sum(asked[0] == role for asked in self.asked)
            self.asked.append((role, index))
            self.seeds.append(request.seed)
        what = self.trouble(role, index, nth)
        if isinstance(what, CollimateError):
            raise what
        if isinstance(what, str):
            return answer(what, 137, request)
        return self.inner.run(request, role=role, index=index)


def rewards(execute: Any, spec: AssertReward, candidates: list[str], **more: Any) -> list[Any]:
    grades = grade_group(execute, spec, candidates, seeds=[None] * len(candidates), **more)
    return [grade.reward if isinstance(grade, GradeResult) else grade and grade.error_code for grade in grades]


def test_a_judge_is_asked_for_twice_before_it_is_an_infra_failure(plain_executor: PlainExecutor) -> None:
    once = Scripted(
        plain_executor,
        lambda role, _, nth: CollimateError("full", 503, "at_capacity") if (role, nth) == ("judge", 0) else None,
    )
    assert rewards(once, spec_of(1), [GOOD, BAD]) == [1.0, 0.0]
    never = Scripted(
        plain_executor, lambda role, *_: CollimateError("full", 503, "at_capacity") if role == "judge" else None
    )
    assert rewards(never, spec_of(2), [GOOD, BAD]) == ["judge_failed"] * 2
    assert [role for role, _ in never.asked] == ["judge"] * 2
    verdicts = Scripted(
        plain_executor, lambda role, _, nth: CollimateError("gone") if role == "judge" and nth > 0 else None
    )
    assert rewards(verdicts, spec_of(3), [GOOD, BAD, ""]) == ["judge_failed", "judge_failed", 0.0]


@pytest.mark.parametrize(
    ("n", "error"), [(40, UnreachableError("no such socket")), (50, CollimateDrainingError("going away"))]
)
def test_a_daemon_that_is_away_keeps_its_kind_of_error(
    plain_executor: PlainExecutor, n: int, error: CollimateError
) -> None:
    """What pauses a node, or takes its batches elsewhere, goes by the class."""
    away = Scripted(plain_executor, lambda role, *_: error if role == "judge" else None)
    assert grade_group(away, spec_of(n), [GOOD, BAD], seeds=[None] * 2) == [error] * 2
    assert len(away.asked) == 1
    later = Scripted(plain_executor, lambda role, _, nth: error if role == "judge" and nth > 0 else None)
    assert grade_group(later, spec_of(n + 1), [GOOD, BAD], seeds=[None] * 2) == [error] * 2


def test_a_misconfigured_run_keeps_its_code(plain_executor: PlainExecutor) -> None:
    wrong = Scripted(plain_executor, lambda *_: CollimateError("no such template", 404, "no_template"))
    assert rewards(wrong, spec_of(4), [GOOD]) == ["no_template"]
    assert len(wrong.asked) == 1


def test_one_runners_infra_failure_is_its_own(plain_executor: PlainExecutor) -> None:
    execute = Scripted(
        plain_executor, lambda role, index, _: CollimateError("lost") if (role, index) == ("runner", 1) else None
    )
    grades = grade_group(execute, spec_of(5), [GOOD, GOOD, BAD], seeds=[None] * 3)
    assert [isinstance(grade, GradeResult) for grade in grades] == [True, False, True]


def test_a_judge_that_dies_on_the_group_is_asked_for_each_alone(plain_executor: PlainExecutor) -> None:
    """The second judge exec, the group's verdict, answers nothing; alone, each candidate is judged."""
    execute = Scripted(plain_executor, lambda role, _, nth: "Killed\n" if (role, nth) == ("judge", 1) else None)
    assert rewards(execute, spec_of(6), [GOOD, BAD, GOOD], concurrency=1) == [1.0, 0.0, 1.0]
    assert [role for role, _ in execute.asked].count("judge") == 2 + 3


def test_a_judge_that_dies_on_one_candidate_alone_is_that_candidates_doing(plain_executor: PlainExecutor) -> None:
    execute = Scripted(plain_executor, lambda role, _, nth: "Killed\n" if role == "judge" and nth > 0 else None)
    grades = grade_group(execute, spec_of(7), [GOOD], seeds=[None])
    assert [(grade.reward, grade.outcome) for grade in grades if isinstance(grade, GradeResult)] == [
        (0.0, "wrong_answer")
    ]
    assert [role for role, _ in execute.asked].count("judge") == 3


def test_a_test_that_cannot_be_planned_is_the_specs_fault(plain_executor: PlainExecutor) -> None:
    execute = Scripted(plain_executor, lambda role, *_: "Killed\n" if role == "judge" else None)
    with pytest.raises(SpecFault, match="can't be planned"):
        grade_group(execute, spec_of(8), [GOOD], seeds=[None])


def test_rounds_have_an_end_and_one_seed(plain_executor: PlainExecutor) -> None:
    """Every call follows from the last result, changed: no plan ever holds more than the next one."""
    spec = AssertReward("x = 1\nfor _ in range(50):\n    x = f(x) + 1\nassert x == 51\n")
    execute = Scripted(plain_executor)
    [grade] = grade_group(execute, spec, ["def f(x): return x"], seeds=[None])
    assert isinstance(grade, GradeResult)
    assert (grade.reward, grade.outcome) == (0.0, "off_plan")
    runners = [seed for (role, _), seed in zip(execute.asked, execute.seeds, strict=True) if role == "runner"]
    assert len(runners) == MAX_ROUNDS
    assert runners[0] is None
    assert set(runners[1:]) == {grade.seed}
    assert "replanned" in grade.flags


def test_a_row_is_planned_once_for_all_groups(plain_executor: PlainExecutor) -> None:
    execute = Scripted(plain_executor)
    spec = spec_of(9)
    assert rewards(execute, spec, [GOOD]) == [1.0]
    assert rewards(execute, AssertReward(spec.test), [BAD, GOOD]) == [0.0, 1.0]
    assert [role for role, _ in execute.asked].count("judge") == 1 + 2


class Store:
    """A batch's store: what is put first stands."""

    def __init__(self) -> None:
        self.blob: bytes | None = None

    def get(self) -> bytes | None:
        return self.blob

    def put(self, blob: bytes) -> bytes:
        if self.blob is None:
            self.blob = blob
        return self.blob


def test_a_recovery_judges_the_plan_that_stands(plain_executor: PlainExecutor) -> None:
    execute = Scripted(plain_executor)
    spec = AssertReward("import random\nx = random.random()\nassert f(x) == x\n", reference=GOOD)
    store = Store()
    assert rewards(execute, spec, [GOOD], case_store=store) == [1.0]
    run = GroupRun(execute, [GOOD], seeds=[None], case_store=store)
    before = len(execute.asked)
    row = ready_row(run, spec, cache=RowCache(), clock=lambda: 0.0)
    assert len(execute.asked) == before, "nothing is planned, and no reference graded, a second time"
    assert row.clock > 0.0
    assert Row.unpack(row.pack()) == row
    assert Row.unpack(b'{"v":0}') is None


def test_skipped_and_stopped_candidates_stay_ungraded(plain_executor: PlainExecutor) -> None:
    execute = Scripted(plain_executor)
    assert rewards(execute, spec_of(10), [GOOD, GOOD], skip={0}) == [None, 1.0]
    stop = threading.Event()
    stop.set()
    asked = len(execute.asked)
    assert rewards(execute, spec_of(11), [GOOD], stop=stop) == [None]
    assert len(execute.asked) == asked


def test_verdicts_are_told_once_each(plain_executor: PlainExecutor) -> None:
    told: list[tuple[int, float | None]] = []
    execute = Scripted(plain_executor)
    grade_group(
        execute,
        spec_of(12),
        [GOOD, "", BAD, "def g(x): return x\n"],
        seeds=[None] * 4,
        on_grade=lambda i, grade: told.append((i, grade.reward if isinstance(grade, GradeResult) else None)),
    )
    assert sorted(told) == [(0, 1.0), (1, 0.0), (2, 0.0), (3, 0.0)]


def test_what_on_grade_raises_stops_the_group(plain_executor: PlainExecutor) -> None:
    def refuse(index: int, grade: object) -> None:
        raise KeyError(index)

    with pytest.raises(KeyError):
        grade_group(Scripted(plain_executor), spec_of(13), [GOOD], seeds=[None], on_grade=refuse)


def test_the_cache_of_rows_is_bounded() -> None:
    def row(ops: list[Any]) -> Row:
        plan = Plan(ops=ops, steps=[1] * len(ops), texts=[], prints=False)
        return Row(plan=plan, clock=0.0, entry=None, refused=())

    cache = RowCache(rows=3, size=10_000)
    for name in "abcd":
        cache.put(name, row([]))
    assert [cache.get(name) is not None for name in "abcd"] == [False, True, True, True]
    cache.get("b")
    cache.put("e", row([]))
    assert [cache.get(name) is not None for name in "bcde"] == [True, False, True, True]
    cache.put("large", row(["x" * 20_000]))
    assert cache.get("large") is None
    cache.put("fault", SpecFault("no"))
    assert isinstance(cache.get("fault"), SpecFault)
