"""What each case was about: what went in, what was expected, what came. Texts as they are, not yet for a terminal."""

from __future__ import annotations

import ast
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collimate_rl.grading.frames import Case, Report, failure_of, framed_lines
from collimate_rl.grading.result import GradeResult
from collimate_rl.guest.codec import BadTree, decode, loads
from collimate_rl.replay.again import Again, Listener
from collimate_rl.specs import AssertReward, PropertyReward, StdioReward, TestFileReward, UnitTestReward
from collimate_rl.specs.options import chosen

MAX_TEXT: Final = 2000
"""Characters of one value that are kept."""
MAX_UNPACKED: Final = 64 << 20
CALLS_SHOWN: Final = 10


@dataclass(frozen=True, kw_only=True)
class CaseView:
    """One case. `came` is a value, an exception or why there is none; a text is empty where nobody can say."""

    outcome: str
    ms: float
    given: str = ""
    expected: str = ""
    came: str = ""


def views_of(again: Again) -> list[CaseView]:
    """One per case of the grade, first to last; the test's asserts where the test is one case."""
    result, listener = again.detailed or (again.now, again.listener)
    found = listener.last_run(again.then.index)
    job, report = found if found is not None else ({}, None)
    spec = again.spec
    told: Sequence[tuple[str, str, str]] = ()
    if isinstance(spec, UnitTestReward):
        tests = [spec.tests[n] for n in chosen(len(spec.tests), spec.max_cases, [dict(test) for test in spec.tests])]
        told = [(_call(op), _shown(test["expected"]), "") for op, test in zip(_ops(job), tests, strict=False)]
        told = told or [(_shown(test["input"]), _shown(test["expected"]), "") for test in tests]
    elif isinstance(spec, StdioReward):
        cases = [spec.cases[n] for n in chosen(len(spec.cases), spec.max_cases, [dict(case) for case in spec.cases])]
        told = [(_cut(case["stdin"]), _cut(case["stdout"]), "") for case in cases]
    elif isinstance(spec, PropertyReward):
        pairs = _made(listener, again)
        told = [(f"{spec.entry}({_value(given)})", _value(expected), "") for given, expected in pairs]
    elif isinstance(spec, AssertReward | TestFileReward) and result.integrity == "split":
        return _test_code(spec, result, listener, job, report)
    views = []
    for n, case in enumerate(result.cases):
        given, expected, came = told[n] if n < len(told) else ("", "", "")
        views.append(CaseView(outcome=case.outcome, ms=case.ms, given=given, expected=expected, came=came))
    return _with_answers(views, report) if found is not None else views


def _with_answers(views: Sequence[CaseView], report: Report | None) -> list[CaseView]:
    if report is None:
        return [_with(view, "the runner gave no answer") for view in views]
    if report.load.kind != "v":
        return [_with(view, f"while it was loaded: {came_of(report.load)}") for view in views]
    answers = [came_of(case) for case in report.cases]
    return [_with(view, answers[n] if n < len(answers) else "it was never reached") for n, view in enumerate(views)]


def _with(view: CaseView, came: str) -> CaseView:
    return CaseView(outcome=view.outcome, ms=view.ms, given=view.given, expected=view.expected, came=came)


def came_of(case: Case) -> str:
    """What one op came to."""
    if case.kind == "p":
        try:
            return _cut(str(json.loads(case.line)))
        except ValueError:
            return "a frame that is none of ours"
    if case.kind == "v":
        try:
            return _value(loads(case.line)["v"])
        except (BadTree, KeyError, TypeError):
            return "a frame that is none of ours"
    outcome, words = failure_of(case)
    return f"{outcome}: {words}" if words else outcome


def _test_code(
    spec: AssertReward | TestFileReward,
    result: GradeResult,
    listener: Listener,
    job: Mapping[str, Any],
    report: Report | None,
) -> list[CaseView]:
    """One view per assert, or per test of a file, with the calls that it made; the whole test where there are none to
    tell apart."""
    ops = _ops(job)
    told = _last_told(listener)
    statements = _tests(spec, told) if isinstance(spec, TestFileReward) else _statements(spec)
    spans = dict(told.get("spans") or ())
    views = []
    for n, case in enumerate(result.cases):
        one = len(result.cases) == 1 and n not in spans
        begin, end = (0, len(ops)) if one else spans.get(n, (0, 0))
        calls = [f"{_call(op)} gave {_came(report, at)}" for at, op in list(enumerate(ops))[begin:end]]
        left = len(calls) - CALLS_SHOWN
        shown = calls[:CALLS_SHOWN] + ([f"… {left} more calls"] if left > 0 else [])
        text = statements[n] if n < len(statements) and not (one and len(statements) > 1) else _cut(spec.test)
        views.append(CaseView(outcome=case.outcome, ms=case.ms, given="", expected=text, came="\n".join(shown)))
    if job and (report is None or report.load.kind != "v"):
        return _with_answers(views, report)
    return views


def _statements(spec: AssertReward) -> list[str]:
    """The source of the asserts that are cases, in the order in which the judge numbers them."""
    found = []
    for source in (spec.setup, spec.test):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return []
        for node in tree.body:
            inner = node.body if isinstance(node, ast.FunctionDef) and node.name == "check" else [node]
            asserts = [each for each in inner if isinstance(each, ast.Assert)]
            found += [_cut(ast.get_source_segment(source, each) or "") for each in asserts]
    return found


def _tests(spec: TestFileReward, told: Mapping[str, Any]) -> list[str]:
    """The file's tests by name, with what ended each that did not pass, and their source."""
    sources: dict[str, str] = {}
    try:
        for node in ast.walk(ast.parse(spec.test)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                sources.setdefault(node.name, ast.get_source_segment(spec.test, node) or "")
    except (SyntaxError, ValueError, RecursionError):
        pass  # the names alone, then
    words = {n: (name, line) for n, (name, line, *_) in told.get("words") or ()}
    found = []
    for n, test in enumerate(told.get("tests") or ()):
        ended = f": {words[n][0]} in line {words[n][1]}" if n in words else ""
        source = sources.get(test.partition("[")[0].rpartition(".")[2], "")
        found.append(_cut(f"{test}{ended}\n{source}".rstrip()))
    return found


def _last_told(listener: Listener) -> Mapping[str, Any]:
    """What the last judge reported of the one candidate."""
    for each in reversed(listener.passed):
        if each.role == "judge" and "units" in each.job and each.job["units"][0].get("frames") is not None:
            for line in each.answer.stdout.split("\n"):
                if line.startswith(each.job["mark"] + " "):
                    try:
                        told = json.loads(line[len(each.job["mark"]) + 1 :])
                    except ValueError:
                        continue
                    return told.get("report") or {}
    return {}


def _made(listener: Listener, again: Again) -> list[tuple[Any, Any]]:
    """The property's (input, expected) trees: made just now, or kept with the batch."""
    lines: Sequence[str] = ()
    for each in listener.passed:
        if each.role == "judge" and "generator" in each.job:
            lines = framed_lines(each.answer.stdout, each.job["mark"]) or ()
    if not lines and again.kept is not None:
        table = json.loads(zlib.decompressobj().decompress(again.kept, MAX_UNPACKED))
        lines = table["made"].get(again.now.seed, [[]])[0]
    try:
        return [(given, expected) for given, expected in (loads(line) for line in lines)]
    except (BadTree, TypeError, ValueError):
        return []


def _ops(job: Mapping[str, Any]) -> Sequence[Any]:
    return job.get("ops") or ()


def _came(report: Report | None, at: int) -> str:
    return came_of(report.cases[at]) if report is not None and at < len(report.cases) else "nothing: it was not reached"


def _call(op: Mapping[str, Any]) -> str:
    try:
        arguments = [repr(one) for one in decode(op["a"])]
        arguments += [f"{name}={value!r}" for name, value in (decode(op["k"]) if "k" in op else {}).items()]
        return _cut(f"{op['f'][1]}({', '.join(arguments)})")
    except (BadTree, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return _cut(json.dumps(op))


def _value(tree: Any) -> str:
    try:
        return _shown(decode(tree))
    except (BadTree, ValueError, RecursionError):
        return _cut(json.dumps(tree))


def _shown(value: Any) -> str:
    try:
        return _cut(repr(value))
    except (ValueError, RecursionError):  # an integer beyond what Python writes out
        return f"a value of type {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text):,} characters)"
