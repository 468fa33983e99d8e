"""Grading by unit tests and by whole programs: the cases are data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from collimate_rl.grading.calls import (
    STDIN_CASE_S,
    Judge,
    call_op,
    grade_calls,
    no_code,
    output_room,
    result_of,
    runner_job,
    verdicts_of,
)
from collimate_rl.grading.checked import checker_of
from collimate_rl.grading.frames import Case, Ops, compose, failure_of, read_report
from collimate_rl.grading.result import SpecFault
from collimate_rl.grading.run import Graded, GroupRun
from collimate_rl.grading.texts import same_text
from collimate_rl.guest.codec import Unencodable, dumps, encode
from collimate_rl.specs import StdioReward, UnitTestReward
from collimate_rl.specs.options import CompareOptions, Credit, chosen
from collimate_rl.values import Expected, Rules

MAX_SPEC_VALUE: Final = 8 << 20


def rules_of(options: CompareOptions) -> Rules:
    """The comparison that a spec's options ask for."""
    return Rules(options.mode == "json", options.tolerance, options.unordered, options.relative)


def flags_of(spec: UnitTestReward | StdioReward) -> tuple[str, ...]:
    """What every grade by this spec is marked with."""
    return ("checker_missing",) if spec.checker_missing and spec.checker is None else ()


def grade_unit_tests(run: GroupRun, spec: UnitTestReward) -> None:
    """Call the entry once per test, the input splatted where it is a list."""
    places = chosen(len(spec.tests), spec.max_cases, [dict(test) for test in spec.tests])
    tests = [spec.tests[place] for place in places]
    rules = rules_of(spec.options())
    try:
        given = [test["input"] if isinstance(test["input"], list) else [test["input"]] for test in tests]
        ops = Ops(call_op(spec.entry, encode(tuple(arguments), MAX_SPEC_VALUE)) for arguments in given)
        expected = [_expected(test["expected"], rules, wrapped=spec.wrapped) for test in tests]
        check = None
        if spec.checker is not None:
            inputs = [encode(test["input"], MAX_SPEC_VALUE) for test in tests]
            pairs = [(mine, encode(test["expected"], MAX_SPEC_VALUE)) for mine, test in zip(inputs, tests, strict=True)]
            check = checker_of(run, spec.checker, pairs)
    except Unencodable as fault:
        raise SpecFault(f"a test's input or expected value can't be given to a sandbox: {fault.reason}") from None
    if check is None:
        _refuse_the_unequal(places, expected)

    def grade_one(index: int) -> Graded:
        return grade_calls(
            run,
            index,
            entry=spec.entry,
            ops=ops,
            expected=expected,
            case_timeout_s=spec.case_timeout_s,
            seed=run.seeds[index],
            credit=Credit(mode=spec.credit, weights=spec.weights).of(places),
            flags=flags_of(spec),
            check=check,
            prelude=spec.prelude,
        )

    run.each(grade_one)


def _expected(value: Any, rules: Rules, *, wrapped: bool) -> Expected:
    also = Expected(encode([value], MAX_SPEC_VALUE), rules) if wrapped else None
    return Expected(encode(value, MAX_SPEC_VALUE), rules, also)


def _refuse_the_unequal(places: Sequence[int], expected: Sequence[Expected]) -> None:
    """SpecFault where an expected value holds what equals nothing, not even itself: no answer would be right."""
    for place, each in zip(places, expected, strict=True):
        if not each.matches(each.text):
            raise SpecFault(
                f"test {place} expects what equals nothing, such as nan: compare='json' lets nan equal nan, and a "
                "checker may judge anything"
            )


def grade_programs(run: GroupRun, spec: StdioReward) -> None:
    """Run the candidate once per case, with the case's text on its standard input."""
    places = chosen(len(spec.cases), spec.max_cases, [dict(case) for case in spec.cases])
    cases = [spec.cases[place] for place in places]
    credit = Credit(mode=spec.credit, weights=spec.weights).of(places)
    options = spec.options()
    ops = Ops({"stdin": case["stdin"]} for case in cases)
    room = output_room([len(dumps(case["stdout"])) for case in cases], 2)
    check = None
    if spec.checker is not None:
        pairs = [(encode(c["stdin"], MAX_SPEC_VALUE), encode(c["stdout"], MAX_SPEC_VALUE)) for c in cases]
        check = checker_of(run, spec.checker, pairs)

    def judge(n: int, case: Case) -> tuple[str, str]:
        if case.kind != "p":
            return failure_of(case) if case.kind != "v" else ("tampered", "")
        try:
            printed = json.loads(case.line)
        except ValueError:
            printed = None
        if not isinstance(printed, str):
            return "tampered", "a frame that is none of ours"
        if same_text(printed, cases[n]["stdout"], options):
            return "passed", ""
        return "wrong_answer", f"printed {printed[:200]!r}"

    def grade_one(index: int) -> Graded:
        candidate = run.candidates[index]
        if not candidate.strip():
            return no_code(run.seeds[index], flags_of(spec))
        job = runner_job(
            candidate,
            ops,
            timeout_seconds=run.timeout_seconds,
            case_s=spec.case_timeout_s or STDIN_CASE_S,
            program=True,
            stop=credit.stops,
            id=run.exec_id(index),
            **room,
        )
        framed = compose("runner", job, timeout_seconds=run.timeout_seconds, seed=run.seeds[index])
        answer = run.run(framed.request, role="runner", index=index)
        report = read_report(answer.stdout, framed.mark, len(ops))
        judging: Judge = judge
        judge_ms = 0.0
        if check is not None and report is not None:
            judging, judge_ms = check(report.cases)
        return result_of(
            answer,
            report,
            verdicts_of(report, len(ops), judging, answer),
            judge_time_ms=judge_ms,
            program=True,
            credit=credit,
            flags=flags_of(spec),
        )

    run.each(grade_one)
