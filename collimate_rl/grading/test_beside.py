"""Tests that run beside the candidate: what needs its live objects, with integrity "shared".

Which tests there are is counted in a fork without a candidate. The runner then loads a candidate with the tests sealed
beside it, and is given the key with each test to run; a pass is a word that the sealed text holds for that test.
"""

from __future__ import annotations

import ast
import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from collimate_rl import guest
from collimate_rl.grading.calls import SHOWN_CASES, runner_fields, runner_job
from collimate_rl.grading.execute import Role
from collimate_rl.grading.frames import Case, Report, compose, exception_of, failure_of, read_report
from collimate_rl.grading.result import MAX_DETAIL, MAX_TAIL, CaseResult, GradeResult, SpecFault
from collimate_rl.grading.run import Graded, GroupRun
from collimate_rl.grading.smells import smells_of
from collimate_rl.grading.test_judge import Judge, Plan
from collimate_rl.grading.test_row import PASSING_TROUBLE, MachineTrouble, Row, counted
from collimate_rl.guest.beside import mixed
from collimate_rl.guest.codec import BadTree, Tree, encode, loads
from collimate_rl.guest.planner import reads_check
from collimate_rl.specs.asserts import AssertReward
from collimate_rl.specs.code import TestCodeReward
from collimate_rl.specs.options import Credit, chosen
from collimate_rl.specs.testfiles import TestFileReward

WHOLE: Final = "the test"
"""The name of the one test of code that is no file."""
SPOILING: Final = ("own_equality", "patched_modules")
"""What spoils a pass, unless the row's own reference does it, too."""
LINES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What one test came to: an outcome, words for people, the flags that it raised, the asserts that passed."""

    outcome: str
    words: str
    ms: float = 0.0
    flags: tuple[str, ...] = ()
    passed: tuple[int, ...] = ()
    skipped: bool = False


def prepare_shared(
    run: GroupRun, spec: TestCodeReward, clock: float, names: Sequence[str], why: str, report: dict[str, Any]
) -> Row:
    """The row for tests beside the candidate; SpecFault when its reference does not pass, or nothing can be counted."""
    tests: tuple[str, ...] = (WHOLE,)
    asserts = max(1, int(report.get("cases", 1))) if getattr(spec, "per_assert", False) else 1
    if spec.is_file:
        tests = _tests_of(run, spec, clock, names, why, report)
    nothing = Plan(ops=(), steps=(), texts=(), prints=False)
    row = Row(plan=nothing, clock=clock, entry=spec.entry, refused=SPOILING, tests=tests, shared=why, asserts=asserts)
    if spec.reference is None:
        return row
    said: Sequence[_Said] = ()
    for _ in range(2):
        said, _, _ = _run(run, spec, row, spec.program(spec.reference), None)
        if not {each.outcome for each in said} & set(PASSING_TROUBLE):
            break
    kept = tuple(name for name, each in zip(row.tests, said, strict=True) if not each.skipped)
    if not kept:
        raise SpecFault("every test of the file is skipped: there is nothing to pass")
    for name, each in zip(row.tests, said, strict=True):
        if each.outcome != "passed" and not each.skipped:
            kind: Any = MachineTrouble if each.outcome in PASSING_TROUBLE else SpecFault
            raise kind(f"the row's own reference does not pass its test: {name}: {each.outcome}: {each.words} ({why})")
    shown = {flag for each in said for flag in each.flags}
    refused = tuple(flag for flag in SPOILING if flag not in shown)
    return Row(plan=nothing, clock=clock, entry=spec.entry, refused=refused, tests=kept, shared=why, asserts=asserts)


def _tests_of(
    run: GroupRun, spec: TestCodeReward, clock: float, names: Sequence[str], why: str, report: dict[str, Any]
) -> tuple[str, ...]:
    """The tests that a file has, counted where no candidate is."""
    if not report.get("tests"):
        judge = Judge(run, spec, clock=clock, reference_names=names, refused=(), lenient=True)
        told = judge.plan()
        report = told.report
        if told.end != "told" or not report.get("tests"):
            failure = report.get("failure")
            words = f"{failure[0]}: {failure[2]}" if failure else "there are none"
            raise SpecFault(f"the file's tests can't be counted without a candidate: {words} ({why})")
    tests = counted(report)
    return tuple(tests[place] for place in chosen(len(tests), spec.max_cases, tests))


def grade_beside(run: GroupRun, spec: TestCodeReward, row: Row) -> None:
    """Grade every pending candidate by tests that run beside it."""

    def grade_one(index: int) -> Graded:
        said, answer, report = _run(run, spec, row, spec.program(run.candidates[index]), index)
        cases = [_judged(each, row.refused) for each in said]
        flags = {flag for each in said for flag in each.flags} | set(smells_of(report, answer))
        first = next((k for k, each in enumerate(cases) if each[0] != "passed"), None)
        outcomes = [CaseResult(outcome, each.ms) for (outcome, _), each in zip(cases, said, strict=True)]
        if not spec.is_file and row.asserts > 1:
            outcomes = _asserts(said[0], cases[0][0], row.asserts)
        passed = [each.outcome == "passed" for each in outcomes]
        detail = None
        if first is not None:
            detail = f"{row.tests[first]}: {cases[first][0]}: {cases[first][1]}"
        return GradeResult(
            reward=_credit(spec, row, len(outcomes)).reward(passed),
            **runner_fields(answer),
            outcome=next((each.outcome for each in outcomes if each.outcome != "passed"), "passed"),
            integrity="shared",
            cases=tuple(outcomes[:SHOWN_CASES]),
            cases_total=len(outcomes),
            cases_passed=sum(passed),
            detail=detail[:MAX_DETAIL] if detail else None,
            output_tail=report.tail[-MAX_TAIL:] if report else b"",
            truncated=bool(report and report.seen > MAX_TAIL),
            flags=tuple(sorted(flags)),
            python=report.python if report else "",
        )

    run.each(grade_one)


def _asserts(said: _Said, whole: str, count: int) -> list[CaseResult]:
    """A case per assert; one more, failed, for a test that broke off between them, or was spoilt."""
    failed = "wrong_answer" if whole == "passed" else whole
    if said.outcome == "passed" and whole != "passed":
        return [CaseResult(failed, 0.0)] * count
    cases = [CaseResult("passed" if k in said.passed else failed, 0.0) for k in range(count)]
    return cases if whole == "passed" else [*cases, CaseResult(failed, 0.0)]


def _credit(spec: TestCodeReward, row: Row, cases: int) -> Credit:
    if isinstance(spec, TestFileReward):
        return spec.credit_of(row.tests)
    return spec.credit_of(cases) if isinstance(spec, AssertReward) else Credit()


def _judged(said: _Said, refused: Sequence[str]) -> tuple[str, str]:
    """Outcome and words of a test, with what spoils a pass."""
    if said.outcome == "passed":
        if "patched_modules" in said.flags and "patched_modules" in refused:
            return "tampered", "the code changed what the test relies on"
        if "own_equality" in said.flags and "own_equality" in refused:
            return "wrong_answer", "an object of the code's own class claimed to equal plain data"
    return said.outcome, said.words


def _run(
    run: GroupRun, spec: TestCodeReward, row: Row, program: str, index: int | None
) -> tuple[list[_Said], Any, Report | None]:
    """One runner fork, and what each of the row's tests came to in it."""
    exec_id = run.exec_id(index) if index is not None else None
    key, words = _secrets(spec, row, exec_id)
    sealed = seal(_sealed(spec, words), key)
    mocks = "mock" in spec.test
    begin = f"collimate_begin({program!a}, {sealed!r}, {spec.module!r}, {mocks})"
    ops = [{"f": ["n", "collimate_test"], "a": encode((key, name), LINES)} for name in row.tests]
    job = runner_job(
        guest.program("beside") + begin + "\n",
        ops,
        timeout_seconds=run.timeout_seconds,
        case_s=spec.case_timeout_s or run.timeout_seconds / 2,
        id=exec_id,
    )
    seed = run.seeds[index] if index is not None else None
    framed = compose("runner", job, timeout_seconds=run.timeout_seconds, seed=seed)
    role: Role = "judge" if index is None else "runner"
    answer = run.run(framed.request, role=role, index=index)
    report = read_report(answer.stdout, framed.mark, len(ops))
    if report is None:
        late = answer.exit_code == -1
        outcome, why = ("timeout", "the time limit struck") if late else ("tampered", "the runner gave no answer")
        return [_Said(outcome=outcome, words=why) for _ in ops], answer, report
    if report.load.kind != "v":
        outcome, why = exception_of(report.load.line) if report.load.kind == "x" else failure_of(report.load)
        return [_Said(outcome=outcome, words=why or "while the code was loaded") for _ in ops], answer, report
    said = [_said(case, words[name]) for case, name in zip(report.cases, row.tests, strict=False)]
    rest = _Said(outcome="tampered" if report.lost else "timeout", words="it was expected, and did not run")
    return said + [rest] * (len(ops) - len(said)), answer, report


def _secrets(spec: TestCodeReward, row: Row, exec_id: str | None) -> tuple[str, dict[str, str]]:
    """The key of the seal, and a word for each test. Where an exec may be asked for again by somebody else, they follow
    from its name and the test's text, which nobody in the sandbox has."""
    root = secrets.token_hex(32) if exec_id is None else f"{exec_id} {spec.digest}"
    words = {name: hashlib.sha256(f"word {root} {name}".encode()).hexdigest() for name in row.tests}
    return hashlib.sha256(f"key {root}".encode()).hexdigest(), words


def _sealed(spec: TestCodeReward, words: dict[str, str]) -> str:
    job = {
        "test": spec.test,
        "setup": spec.setup,
        "file": spec.is_file,
        "per_assert": getattr(spec, "per_assert", False),
        "check": _check(spec),
        "seed": spec.random_seed,
        "words": words,
    }
    return json.dumps(job)


def _check(spec: TestCodeReward) -> list[str] | None:
    """What the harness has to call `check` with; None where it is not to call it."""
    calls, takes = reads_check(ast.parse(spec.test))
    if not calls or spec.is_file:
        return None
    return [spec.entry] if takes and spec.entry else []


def seal(text: str, key: str) -> str:
    """The text as `opened` reads it, bytes in hex."""
    return mixed(text.encode("utf-8", "surrogatepass"), key).hex()


def _parts(tree: Tree) -> Sequence[Any]:
    """What the harness returned for a test: four texts or numbers and two lists of such. Nothing is built of the tree:
    the candidate may have written it, and iterators among plain values can raise what ends a process."""
    if type(tree) is not list or len(tree) != 7 or tree[0] != "t":
        raise BadTree("no tuple of six")
    flat = [*tree[1:5], *tree[5][:], *tree[6][:]] if all(type(part) is list for part in tree[5:]) else [[]]
    if not all(type(part) in (str, int) for part in flat) or any(part[:1] != ["l"] for part in tree[5:]):
        raise BadTree("no plain parts")
    return tree[1:]


def _said(case: Case, word: str) -> _Said:
    """What a test's frame says. Only its own word is a pass."""
    if case.kind == "x":
        outcome, why = exception_of(case.line)
        missing = "cannot import name" in why and "ImportError" in why
        return _Said(outcome="no_entry_point" if missing else outcome, words=why, ms=case.ms)
    if case.kind != "v":
        outcome, why = failure_of(case)
        return _Said(outcome=outcome, words=why, ms=case.ms)
    try:
        outcome, given, name, line, (_, *raised), (_, *passed) = _parts(loads(case.line[len('{"v":') : -1]))
    except BadTree:
        return _Said(outcome="tampered", words="a frame that is none of ours", ms=case.ms)
    flags = tuple(flag for flag in SPOILING if flag in raised)
    numbers = tuple(k for k in passed if type(k) is int)
    if outcome == "passed" and given == word:
        return _Said(outcome="passed", words="", ms=case.ms, flags=flags, passed=numbers)
    if outcome == "passed":
        return _Said(outcome="tampered", words="a pass without its word", ms=case.ms, flags=flags)
    if outcome == "skipped":
        return _Said(outcome="wrong_answer", words="it was skipped", ms=case.ms, flags=flags, skipped=True)
    what = "an assertion failed" if name == "AssertionError" else f"{str(name)[:80]} was raised"
    where = f" in line {line}" if type(line) is int and line > 0 else ""
    return _Said(outcome="wrong_answer", words=what + where, ms=case.ms, flags=flags, passed=numbers)
