"""Grading by calls of a function: the runner's job, and judging what came back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict

from collimate_rl.grading.continued import run_calls
from collimate_rl.grading.frames import Case, Ops, Report, exception_of, failure_of
from collimate_rl.grading.result import MAX_DETAIL, MAX_TAIL, CaseResult, GradeResult, SpecFault
from collimate_rl.grading.run import Graded, GroupRun
from collimate_rl.grading.smells import smells_of
from collimate_rl.guest.codec import BadTree, Tree, decode, loads
from collimate_rl.sandbox import ExecResult
from collimate_rl.specs.options import Credit
from collimate_rl.values import Expected

VALUE_BYTES: Final = 1 << 20
ALL_BYTES: Final = 8 << 20
MOST_BYTES: Final = 14 << 20
"""What one exec can give back, with room for the report around it below the daemon's limit of 16 MiB."""
INT_AS_FLOAT: Final = 16
"""How much longer the text of an equal value may be: that of a float is, beside a small integer's."""
SHOWN_CASES: Final = 256
MAX_RAW_STDOUT: Final = 64 << 10
STDIN_CASE_S: Final = 6.0

Verdicts = list[tuple[str, float, str]]
"""Per case: outcome, milliseconds, words for people."""
Judge = Callable[[int, Case], tuple[str, str]]
"""Outcome and words of the case at a place."""
Check = Callable[[Sequence[Case]], tuple[Judge, float]]
"""Judges all of a candidate's cases elsewhere; the milliseconds that it took."""
FRACTION: Final = Credit()


def total_s(timeout_seconds: int) -> float:
    """The candidate's total time inside the exec's limit, with room for the runner to answer before that strikes."""
    return timeout_seconds - min(0.5, 0.1 + 0.02 * timeout_seconds)


def runner_job(
    candidate: str, ops: Sequence[Any], *, timeout_seconds: int, case_s: float, **fields: Any
) -> dict[str, Any]:
    """A job for the runner; `fields` are those of its docstring that aren't at their usual values."""
    return {
        "id": None,
        "code": candidate,
        "prelude": "",
        "program": False,
        "entry": None,
        "ops": ops if isinstance(ops, Ops) else list(ops),
        "total_s": total_s(timeout_seconds),
        "case_s": case_s,
        "value_bytes": VALUE_BYTES,
        "all_bytes": ALL_BYTES,
        "arguments": False,
        "handles": False,
        "prints": False,
        "stop": False,
        "sole": False,
        **fields,
    }


def output_room(sizes: Sequence[int], slack: int) -> dict[str, int]:
    """The job's output limits: the usual ones, and more where the right results themselves are large.

    `sizes` are those of the expected results as JSON text; a right one may be written `slack` times as long. SpecFault
    when nobody could send all of them.
    """
    largest, total = max(sizes, default=0), sum(sizes)
    if total > MOST_BYTES:
        raise SpecFault(
            f"the expected results are {total:,} bytes of text, and one sandbox gives back at most {MOST_BYTES:,}: "
            "take fewer cases (max_cases)"
        )
    value_bytes = min(MOST_BYTES, max(VALUE_BYTES, slack * largest))
    return {"value_bytes": value_bytes, "all_bytes": min(MOST_BYTES, max(ALL_BYTES, 2 * total))}


def call_op(entry: str, arguments: Tree) -> dict[str, Any]:
    """The op that calls `entry` with a tuple of arguments, given as a tree."""
    return {"f": ["n", entry], "a": arguments}


def grade_calls(
    run: GroupRun,
    index: int,
    *,
    entry: str,
    ops: Sequence[Any],
    expected: Sequence[Expected],
    case_timeout_s: float | None,
    seed: str | None,
    judge_time_ms: float = 0.0,
    credit: Credit = FRACTION,
    flags: Sequence[str] = (),
    check: Check | None = None,
    prelude: str = "",
) -> Graded:
    """Run one candidate's calls and compare what came back; `check` judges values instead, all of a candidate's at
    once."""
    candidate = run.candidates[index]
    if not candidate.strip():
        return no_code(seed, flags)
    job = runner_job(
        candidate,
        ops,
        timeout_seconds=run.timeout_seconds,
        case_s=case_timeout_s or run.timeout_seconds / 2,
        entry=entry,
        stop=credit.stops,
        prelude=prelude,
        **output_room([len(each.text) for each in expected], INT_AS_FLOAT),
    )
    answer, report = run_calls(run, index, job, seed=seed)
    judge: Judge = lambda n, case: _judge(case, expected[n])  # noqa: E731 - one of two
    if check is not None and report is not None:
        judge, spent_ms = check(report.cases)
        judge_time_ms += spent_ms
    verdicts = verdicts_of(report, len(ops), judge, answer)
    return result_of(answer, report, verdicts, judge_time_ms=judge_time_ms, credit=credit, flags=flags)


def _judge(case: Case, expected: Expected) -> tuple[str, str]:
    if case.kind != "v":
        return failure_of(case)
    text = case.line[len('{"v":') : -1]
    try:
        if case.line[: len('{"v":')] != '{"v":' or case.line[-1:] != "}":
            raise BadTree("no frame of a value")
        if expected.matches(text):
            return "passed", ""
    except BadTree:
        return "tampered", "a frame that is none of ours"
    return "wrong_answer", "returned " + shown(text)


def shown(text: str) -> str:
    """A tree's value for people, short."""
    try:
        return repr(decode(loads(text)))[:300] if len(text) <= 2000 else text[:300] + " …"
    except (BadTree, ValueError, RecursionError):
        return text[:300]


def verdicts_of(report: Report | None, total: int, judge: Any, answer: ExecResult) -> Verdicts:
    """One verdict per case, whatever the runner's answer is."""
    if report is None:
        outcome = "timeout" if answer.exit_code == -1 else "tampered"
        words = (
            "the time limit struck" if outcome == "timeout" else "the runner gave no answer: the code meddled with it"
        )
        return [(outcome, 0.0, words)] * total
    if report.load.kind != "v":
        outcome, words = exception_of(report.load.line) if report.load.kind == "x" else failure_of(report.load)
        return [(outcome, 0.0, words or "while the code was loaded")] * total
    verdicts = [(*judge(n, case), case.ms) for n, case in enumerate(report.cases)]
    unreached = (
        ("tampered", 0.0, "no process could be had") if report.lost else ("timeout", 0.0, "the total time was up")
    )
    late = [unreached] * (total - len(verdicts))
    return [(outcome, ms, words) for outcome, words, ms in verdicts] + late


def result_of(
    answer: ExecResult,
    report: Report | None,
    verdicts: Verdicts,
    *,
    judge_time_ms: float = 0.0,
    program: bool = False,
    credit: Credit = FRACTION,
    flags: Sequence[str] = (),
) -> GradeResult:
    """The grade: what the passed cases are worth, and the first failure's outcome. `program`: it ran as a whole one;
    `flags` are those of the spec itself."""
    failing = next((n for n, verdict in enumerate(verdicts) if verdict[0] != "passed"), None)
    outcome, detail = "passed", None
    if failing is not None:
        outcome, _, words = verdicts[failing]
        detail = f"case {failing + 1} of {len(verdicts)}: {outcome}" + (f": {words}" if words else "")
    elif not verdicts:
        outcome, detail = _without_cases(report)
    shown = verdicts[: failing + 1] if credit.stops and failing is not None else verdicts
    return GradeResult(
        reward=credit.reward([outcome == "passed" for outcome, _, _ in verdicts]),
        **runner_fields(answer),
        outcome=outcome,
        cases=tuple(CaseResult(each, ms) for each, ms, _ in shown[:SHOWN_CASES]),
        cases_total=len(verdicts),
        cases_passed=sum(outcome == "passed" for outcome, _, _ in shown),
        detail=detail[:MAX_DETAIL] if detail else None,
        output_tail=report.tail[-MAX_TAIL:] if report else b"",
        truncated=bool(report and report.seen > MAX_TAIL),
        judge_time_ms=judge_time_ms,
        flags=tuple(sorted({*smells_of(report, answer, program=program), *flags})),
        python=report.python if report else "",
    )


class RunnerFields(TypedDict):
    """What a `GradeResult` has of the runner fork, whatever the spec."""

    seed: str | None
    seed_ack: str | None
    exit_code: int
    fork_time_ms: float
    exec_time_ms: float
    raw: Mapping[str, Any]


def runner_fields(answer: ExecResult) -> RunnerFields:
    """To be given to a `GradeResult`, beside what the spec makes of the answer."""
    return {
        "seed": answer.seed,
        "seed_ack": answer.seed_ack,
        "exit_code": answer.exit_code,
        "fork_time_ms": answer.fork_time_ms,
        "exec_time_ms": answer.exec_time_ms,
        "raw": _raw_of(answer),
    }


def _raw_of(answer: ExecResult) -> Mapping[str, Any]:
    """The wire's dict, its output cut where keeping all of it for a whole group would cost too much."""
    if len(answer.stdout) <= MAX_RAW_STDOUT:
        return answer.raw
    return {**answer.raw, "stdout": answer.stdout[:MAX_RAW_STDOUT], "stdout_cut": True}


def _without_cases(report: Report | None) -> tuple[str, str]:
    if report is None:
        return "tampered", "the runner gave no answer: the code meddled with it"
    if report.load.kind != "v":
        return exception_of(report.load.line) if report.load.kind == "x" else failure_of(report.load)
    return "wrong_answer", "there is no case to pass"


def no_code(seed: str | None, flags: Sequence[str] = ()) -> GradeResult:
    """The grade of a completion without code: nothing is run."""
    return GradeResult(
        reward=0.0, seed=seed, outcome="no_code", detail="the completion holds no code", flags=tuple(flags)
    )
