"""Grading by a command: the candidate's work is carried into a fresh fork's tree, and the tests are written after it.

Never in the sandbox where a candidate ran: every exec here is in a fork of its own, also where a session was given.
The command's processes hold the candidate's code and the tests together, so integrity is "shared". Which tests have to
pass, and how many there are, is not in the sandbox: what is judged by the host is a file of results.
"""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from typing import Any, Final

from collimate_rl.errors import CollimateError
from collimate_rl.grading.calls import SHOWN_CASES, runner_fields, total_s
from collimate_rl.grading.command_decoys import Decoys, draw_decoys
from collimate_rl.grading.command_verdict import CommandReport, Judged, judge_command, read_command_report
from collimate_rl.grading.command_work import Escapes, Work, work_of
from collimate_rl.grading.execute import Role
from collimate_rl.grading.frames import compose
from collimate_rl.grading.junit import MAX_XML
from collimate_rl.grading.limits import UNCLEAR, lateness
from collimate_rl.grading.result import MAX_DETAIL, MAX_TAIL, CaseResult, GradeResult, SpecFault
from collimate_rl.grading.run import Graded, GroupRun
from collimate_rl.sandbox import ExecResult
from collimate_rl.specs.command import DENIED, DENIED_FOLDERS, SHADOWED, CommandReward

MAX_OUTPUT: Final = 64 << 20
"""Bytes that a command may print; the last 4 KiB are kept."""
KEPT_GATES: Final = 512
_RULES: Final = {"deny": list(DENIED), "parts": list(DENIED_FOLDERS), "shadows": list(SHADOWED)}
_MACHINE_TROUBLE: Final = ("timeout", "memory_limit", "sandbox_killed")
"""Outcomes of a reference that may lie with the machine: never remembered."""


class _Gates:
    """Digests of specs whose reference passed, or why it didn't; the last ones used."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> tuple[bool, str | None]:
        with self._lock:
            return digest in self._kept, self._kept.get(digest)

    def put(self, digest: str, fault: str | None) -> None:
        with self._lock:
            self._kept[digest] = fault
            while len(self._kept) > KEPT_GATES:
                self._kept.popitem(last=False)


_GATES = _Gates()


def grade_command(run: GroupRun, spec: CommandReward) -> None:
    """Grade every pending candidate. SpecFault when the spec's own files, setup or reference are at fault."""
    if spec.reference is not None and any(run.results[index] is None for index in run.pending):
        try:
            _pass_gate(run, spec, spec.reference)
        except CollimateError as error:
            run.fail_pending(error)
            return

    def grade_one(index: int) -> Graded:
        return _grade(run, spec, run.candidates[index], role="runner", index=index, seed=run.seeds[index])

    run.each(grade_one)


def _pass_gate(run: GroupRun, spec: CommandReward, reference: str) -> None:
    """A row's own reference is graded first: what that doesn't pass is a fault of the row, never a candidate's 0."""
    known, fault = _GATES.get(spec.digest)
    if not known:
        result = _grade(run, spec, reference, role="judge", index=None, seed=None)
        if result.outcome in _MACHINE_TROUBLE:
            result = _grade(run, spec, reference, role="judge", index=None, seed=None)
        if result.reward != 1.0:
            fault = f"the spec's own reference does not pass: {result.outcome}: {result.detail}"
        if result.outcome not in _MACHINE_TROUBLE:
            _GATES.put(spec.digest, fault)
    if fault is not None:
        raise SpecFault(fault)


def _grade(
    run: GroupRun, spec: CommandReward, candidate: str, *, role: Role, index: int | None, seed: str | None
) -> GradeResult:
    try:
        work = work_of(candidate)
    except Escapes as fault:
        return GradeResult(0.0, seed=seed, outcome="tampered", integrity="shared", detail=str(fault))
    except ValueError as fault:
        words = f"the work can't be read: {fault}"
        return GradeResult(0.0, seed=seed, outcome="runtime_error", integrity="shared", detail=words)
    if work is None:
        words = "the completion holds neither a patch nor files"
        return GradeResult(0.0, seed=seed, outcome="no_code", integrity="shared", detail=words)
    decoys = draw_decoys() if spec.has_decoys else None
    job = job_of(spec, work, decoys, timeout_seconds=run.timeout_seconds)
    for attempt in (1, 2):
        # No exec id: what goes to one session again could meet what a candidate left there.
        framed = compose("command", job, timeout_seconds=run.timeout_seconds, seed=seed)
        answer = run.run(framed.request, role=role, index=index)
        report = read_command_report(answer.stdout, framed.mark)
        if report is None or report.stage not in ("base", "setup"):
            break
        if attempt == 2:
            _blame_the_spec(report)
    if report is None:
        return _without_report(answer)
    return _graded(spec, answer, report, decoys)


def job_of(spec: CommandReward, work: Work, decoys: Decoys | None, *, timeout_seconds: int) -> dict[str, Any]:
    """The guest program's job (see guest/command). It names no test."""
    total = total_s(timeout_seconds)
    return {
        "root": spec.root,
        "base": spec.base,
        "files": _encoded(spec.files),
        "tests": _encoded(spec.tests),
        "decoys": decoys.as_job() if decoys is not None else [],
        "test_patch": spec.test_patch,
        "setup": spec.setup,
        "command": spec.command,
        "env": dict(spec.env),
        "rules": {**_RULES, "allow": list(spec.allow)},
        "results": spec.has_results,
        "total_s": total,
        "case_s": spec.case_timeout_s or total,
        "out_bytes": MAX_OUTPUT,
        "results_bytes": MAX_XML,
        **work.as_job(),
    }


def _encoded(files: Any) -> list[tuple[str, str]]:
    pairs = [(path, content.encode() if isinstance(content, str) else content) for path, content in files.items()]
    return [(path, base64.b64encode(content).decode()) for path, content in pairs]


def _blame_the_spec(report: CommandReport) -> None:
    """What went wrong before anything of the candidate was there is not the candidate's."""
    if report.timeout:
        raise CollimateError(f"the spec's setup did not end in its time: {report.fault:.500}", None, "judge_failed")
    what = "setup fails" if report.stage == "setup" else "tree can't be made"
    raise SpecFault(f"the spec's {what}, whoever the candidate is: {report.fault}")


def _without_report(answer: ExecResult) -> GradeResult:
    outcome, words = "tampered", "the program that watches over the command was ended: the code meddled with it"
    if answer.exit_code == -1:
        outcome, words = "timeout", "the time limit struck"
    flags = (UNCLEAR,) if answer.exit_code == -1 else ()
    return _result(answer, reward=0.0, outcome=outcome, detail=words, flags=flags)


def _graded(spec: CommandReward, answer: ExecResult, report: CommandReport, decoys: Decoys | None) -> GradeResult:
    if report.stage != "ran":
        outcome = "tampered" if report.stage == "escape" else "runtime_error"
        return _result(answer, reward=0.0, outcome=outcome, detail=f"the work can't be carried over: {report.fault}")
    judged = judge_command(spec, report, decoys)
    outcome, detail = _told(judged)
    if report.dropped and outcome != "passed":
        detail = f"{detail}; left out of its work: {', '.join(report.dropped)[:1000]}"
    flags = ["dropped_files"] * bool(report.dropped)
    flags += ["exited_early"] * (
        spec.has_results and report.state == "missing" and report.how == "e" and not report.code
    )
    flags += ["touched_harness"] * bool(report.touched)
    late = lateness([report.late]) if report.late is not None else None
    flags += [late] if late is not None else []
    passed = [each == "passed" for each, _, _ in judged.verdicts]
    return _result(
        answer,
        reward=spec.credits().reward(passed) if judged.refused is None else 0.0,
        outcome=outcome,
        detail=detail,
        cases=tuple(CaseResult(each, ms) for each, ms, _ in judged.verdicts[:SHOWN_CASES]),
        cases_total=len(passed),
        cases_passed=sum(passed),
        output_tail=report.tail[-MAX_TAIL:],
        truncated=report.seen > MAX_TAIL,
        flags=tuple(flags),
        python=report.python,
    )


def _told(judged: Judged) -> tuple[str, str | None]:
    if judged.refused is not None:
        return judged.refused
    total = len(judged.verdicts)
    for number, (outcome, _, words) in enumerate(judged.verdicts, 1):
        if outcome != "passed":
            return outcome, f"test {number} of {total}: {outcome}" + (f": {words}" if words else "")
    return "passed", None


def _result(answer: ExecResult, *, detail: str | None, **fields: Any) -> GradeResult:
    return GradeResult(
        **runner_fields(answer),
        integrity="shared",
        detail=None if detail is None else detail[:MAX_DETAIL],
        **fields,
    )
