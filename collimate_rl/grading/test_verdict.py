"""What a judged contender comes to: outcome, reward, and words for people that name no expected value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collimate_rl.grading.calls import SHOWN_CASES
from collimate_rl.grading.frames import exception_of, failure_of
from collimate_rl.grading.result import MAX_DETAIL, MAX_TAIL, CaseResult, GradeResult
from collimate_rl.grading.smells import smells_of
from collimate_rl.grading.test_judge import Told
from collimate_rl.grading.test_rounds import MAX_ROUNDS, Contender
from collimate_rl.grading.test_row import Row
from collimate_rl.specs.asserts import AssertReward
from collimate_rl.specs.code import TestCodeReward
from collimate_rl.specs.options import Credit
from collimate_rl.specs.testfiles import TestFileReward

_REFUSED = {
    "nan": "a result holds NaN, which slips through comparisons, and the test knows of none",
    "ends_iteration": "a call raised what ends the test's own loops",
    "skips": "a call raised what skips the test's own cases",
}


@dataclass(frozen=True, kw_only=True)
class Cases:
    """What a test's cases are: the whole of it, or (`per_assert`) its outer asserts, or the `tests` of a file by name.

    `credit` says what they are worth, by how many there are.
    """

    per_assert: bool = False
    tests: tuple[str, ...] | None = None
    credit: Callable[[int], Credit] = lambda _: Credit()


def cases_of(spec: TestCodeReward, row: Row, *, gate: bool = False) -> Cases:
    """A row's cases. At the `gate` all or nothing is asked."""
    if isinstance(spec, TestFileReward):
        credit = Credit(mode="all") if gate else spec.credit_of(row.tests)
        return Cases(tests=row.tests, credit=lambda _: credit)
    if gate or not isinstance(spec, AssertReward):
        return Cases()
    return Cases(per_assert=spec.per_assert, credit=spec.credit_of)


def graded(contender: Contender, told: Told | None, *, cases: Cases) -> GradeResult:
    """The grade of a contender whose runs are over. `told` None: it was never judged to the end."""
    outcome, words = _outcome(contender, told)
    if cases.tests is not None:
        return graded_tests(contender, told, cases, outcome, words)
    return _grade(contender, told, _cases(contender, told, outcome, cases.per_assert), cases, outcome, words)


def graded_tests(contender: Contender, told: Told | None, cases: Cases, outcome: str, words: str) -> GradeResult:
    """The grade by a file's tests. One that did not run has failed."""
    assert cases.tests is not None
    times = [case.ms for case in contender.report.cases] if contender.report else []
    report = told.report if told is not None else {}
    if told is None or not report or report["unsafe"]:
        return _grade(contender, told, [CaseResult(outcome, 0.0) for _ in cases.tests], cases, outcome, words)
    places = {name: k for k, name in enumerate(report["tests"])}
    lost, spans, said = dict(report["lost"]), dict(report["spans"]), dict(report["words"])
    whole = report["returned"] is True and report["off"] is False and report["dead"] is None
    found: list[CaseResult] = []
    first = ""
    for name in cases.tests:
        k = places.get(name, -1)
        came_to, why = "wrong_answer", "it was expected, and did not run"
        if k in report["passed"] and whole:
            came_to, why = "passed", ""
        elif k in lost:
            came_to, why = _dead(contender, lost[k])
            why = f"call {lost[k] + 1}: {why or came_to}"
        elif k in said:
            came_to, why = _failed(contender, {"failure": said[k], "calls": report["calls"]})
        elif k >= 0:
            why = words if not whole else "it was skipped" if k in report["skipped"] else "a result spoils it"
        begin, end = spans.get(k, (0, 0))
        found.append(CaseResult(came_to, sum(times[begin:end])))
        if came_to != "passed" and not first:
            outcome, first = came_to, f"{name}: {why}"
    return _grade(contender, told, found, cases, outcome, first)


def _grade(
    contender: Contender, told: Told | None, cases: list[CaseResult], how: Cases, outcome: str, words: str
) -> GradeResult:
    passed = sum(case.outcome == "passed" for case in cases)
    answer, report = contender.answer, contender.report
    assert answer is not None
    return GradeResult(
        reward=how.credit(len(cases)).reward([case.outcome == "passed" for case in cases]),
        seed=answer.seed,
        seed_ack=answer.seed_ack,
        exit_code=answer.exit_code,
        fork_time_ms=answer.fork_time_ms,
        exec_time_ms=answer.exec_time_ms,
        raw=answer.raw,
        outcome="passed" if passed == len(cases) else outcome,
        cases=tuple(cases[:SHOWN_CASES]),
        cases_total=len(cases),
        cases_passed=passed,
        detail=words[:MAX_DETAIL] if words else None,
        output_tail=report.tail[-MAX_TAIL:] if report else b"",
        truncated=bool(report and report.seen > MAX_TAIL),
        judge_time_ms=contender.judge_ms,
        flags=_flags(contender, told),
        python=report.python if report else "",
    )


def _outcome(contender: Contender, told: Told | None) -> tuple[str, str]:
    """The whole run's outcome and words; "passed" only when everything that a pass needs was told outright."""
    report = contender.report
    if report is None:
        assert contender.answer is not None
        if contender.answer.exit_code == -1:
            return "timeout", "the time limit struck"
        return "tampered", "the runner gave no answer: the code meddled with it"
    if report.load.kind != "v":
        outcome, words = exception_of(report.load.line) if report.load.kind == "x" else failure_of(report.load)
        return outcome, words or "while the code was loaded"
    if told is None:
        return "off_plan", f"the test's calls follow from the results, and were not all known after {MAX_ROUNDS} rounds"
    if told.end == "timeout":
        return "timeout", "the test did not come to an end on these results"
    if told.end != "told":
        return "wrong_answer", "the test broke down on these results"
    return _told_outcome(contender, told.report)


def _told_outcome(contender: Contender, told: dict[str, Any]) -> tuple[str, str]:
    if told["unsafe"]:
        return "wrong_answer", "the test would have run a result as code"
    if told["dead"] is not None:
        outcome, words = _dead(contender, told["dead"])
        return outcome, f"call {told['dead'] + 1}: {words or outcome}"
    if told["lost"]:
        outcome, words = _dead(contender, told["lost"][0][1])
        return outcome, f"call {told['lost'][0][1] + 1}: {words or outcome}"
    if told["failure"] is not None:
        return _failed(contender, told)
    if told["refused"]:
        return "wrong_answer", _REFUSED[told["refused"][0]]
    if told["returned"] is True and told["off"] is False and len(told["passed"]) == told["cases"]:
        return "passed", ""
    return "wrong_answer", f"{told['cases'] - len(told['passed'])} of {told['cases']} asserts failed"


def _dead(contender: Contender, op: int) -> tuple[str, str]:
    """Why a call has no answer."""
    cases = contender.report.cases if contender.report else ()
    if op >= len(cases):
        return "timeout", "the total time was up"
    if cases[op].kind in ("v", "x"):
        return "tampered", "a frame that is none of ours"
    return failure_of(cases[op])


def _failed(contender: Contender, told: dict[str, Any]) -> tuple[str, str]:
    """An exception ended the test: the candidate's own, or an assert's, or what the test met in the results."""
    name, line, _, *raised_by = told["failure"]
    if raised_by and contender.report and raised_by[0] < len(contender.report.cases):
        outcome, words = exception_of(contender.report.cases[raised_by[0]].line)
        return outcome, f"call {raised_by[0] + 1}: {words}"
    where = f"line {line} of the test" if line else "the test"
    what = "an assertion failed" if name == "AssertionError" else f"{name} was raised"
    return "wrong_answer", f"{what} in {where}, after {told['calls']} calls"


def _cases(contender: Contender, told: Told | None, outcome: str, per_assert: bool) -> list[CaseResult]:
    """One case for the whole test; or one per assert, and one more for a test that broke off, or that
    a result spoiled between its asserts."""
    times = [case.ms for case in contender.report.cases] if contender.report else []
    count = told.report["cases"] if told is not None and told.report else 0
    if not per_assert or not count or told is None or told.report["unsafe"]:
        return [CaseResult(outcome, sum(times))]
    passed, lost = set(told.report["passed"]), dict(told.report["lost"])
    spans = dict(told.report["spans"])
    cases = []
    for k in range(count):
        begin, end = spans.get(k, (0, 0))
        came_to = "passed" if k in passed else _dead(contender, lost[k])[0] if k in lost else "wrong_answer"
        cases.append(CaseResult(came_to, sum(times[begin:end])))
    broke_off = told.report["returned"] is not True or told.report["dead"] is not None
    if broke_off or (told.report["refused"] and len(passed) == count):
        cases.append(CaseResult(outcome, 0.0))
    return cases


def _flags(contender: Contender, told: Told | None) -> tuple[str, ...]:
    flags = set(told.report["flags"]) if told is not None and told.report else set()
    if contender.answer is not None:
        flags.update(smells_of(contender.report, contender.answer))
    if contender.turn:
        flags.add("replanned")
    if told is not None and told.report.get("unsafe"):
        flags.add("runs_result")
    return tuple(sorted(flags))
