"""From what a command left to the verdicts of its tests. What is missing, double, skipped or unreadable is a fail."""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from collimate_rl.grading.command_decoys import Decoys
from collimate_rl.grading.frames import framed_lines
from collimate_rl.grading.junit import BadResults, Runs, TestRun, read_junit
from collimate_rl.grading.limits import Late, late_of
from collimate_rl.specs.command import CommandReward

Verdicts = list[tuple[str, float, str]]
"""Per test: outcome, milliseconds, words for people."""

_ENDED: Final = {
    "t": ("timeout", "the command did not end in its time"),
    "l": ("output_limit", "the command printed too much"),
    "m": ("memory_limit", "the command ran out of memory"),
}


@dataclass(frozen=True, kw_only=True)
class CommandReport:
    """What the guest program tells: where it ended (`stage`), and of the command's run how and with what."""

    stage: str
    fault: str = ""
    timeout: bool = False
    how: str = "e"
    code: int = 0
    ms: float = 0.0
    dropped: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    """Test files that are no longer what they were before the command."""
    tail: bytes = b""
    seen: int = 0
    state: str = "none"
    results: bytes = b""
    late: Late | None = None
    """Of one that ran out of time."""
    python: str = ""


def read_command_report(stdout: str, mark: str) -> CommandReport | None:
    """The guest program's report; None when the output holds none."""
    lines = framed_lines(stdout, mark)
    if lines is None or len(lines) != 2:
        return None
    try:
        header = json.loads(lines[0])
        if header["stage"] != "ran":
            return CommandReport(stage=header["stage"], fault=header["fault"], timeout=header["timeout"])
        return CommandReport(
            stage="ran",
            how=header["how"],
            code=int(header["code"]),
            ms=float(header["ms"]),
            dropped=tuple(map(str, header["dropped"])),
            touched=tuple(map(str, header["touched"])),
            tail=bytes.fromhex(header["tail"]),
            seen=int(header["seen"]),
            state=header["results"],
            results=base64.b64decode(lines[1], validate=True),
            late=late_of([*header["late"], header["ms"]]) if header["how"] == "t" else None,
            python=str(header["py"]),
        )
    except (ValueError, TypeError, LookupError, binascii.Error):
        return None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The tests' verdicts; `refused` is why none of them counts, as an outcome and words."""

    verdicts: Verdicts
    refused: tuple[str, str] | None = None


def judge_command(spec: CommandReward, report: CommandReport, decoys: Decoys | None) -> Judged:
    """Judge a command that ran."""
    if report.touched:
        judged = _judge(spec, report, decoys)
        return Judged(verdicts=judged.verdicts, refused=("tampered", f"{', '.join(report.touched)}: changed meanwhile"))
    return _judge(spec, report, decoys)


def _judge(spec: CommandReward, report: CommandReport, decoys: Decoys | None) -> Judged:
    names = spec.names[: spec.max_cases]
    count = len(names) or spec.min_tests
    if report.how in _ENDED:
        outcome, words = _ENDED[report.how]
        return Judged(verdicts=[(outcome, report.ms, words)] * count)
    if not spec.has_results:
        return Judged(verdicts=[_of_exit(report)])
    if report.state != "ok":
        outcome, words = _of_missing(report)
        return Judged(verdicts=[(outcome, 0.0, words)] * count)
    try:
        runs = Runs(read_junit(report.results))
    except BadResults as fault:
        outcome = "tampered" if report.code == 0 else "runtime_error"
        return Judged(verdicts=[(outcome, 0.0, f"the results file can't be read: {fault}")] * count)
    verdicts = [_of_named(name, runs) for name in names] if names else _of_all(spec, report, runs, decoys)
    lied, trouble = decoys.trouble(runs) if decoys is not None else (False, None)
    if trouble is None:
        return Judged(verdicts=verdicts)
    # A run that broke off at an honest failure leaves decoys out, too: only what calls them, or all else, passed lied.
    failing = next((verdict for verdict in verdicts if verdict[0] != "passed"), None)
    if lied or failing is None:
        return Judged(verdicts=verdicts, refused=("tampered", trouble))
    return Judged(verdicts=verdicts, refused=(failing[0], f"{failing[2]}; {trouble}"))


def _of_exit(report: CommandReport) -> tuple[str, float, str]:
    if report.code == 0:
        return "passed", report.ms, ""
    return ("runtime_error" if report.code < 0 else "wrong_answer"), report.ms, _ending(report)


def _ending(report: CommandReport) -> str:
    if report.code < 0:
        return f"the command was killed by signal {-report.code}"
    return f"the command ended with exit code {report.code}"


def _of_missing(report: CommandReport) -> tuple[str, str]:
    if report.state == "large":
        return "output_limit", "the results file is too large"
    return "runtime_error", f"there is no results file: {_ending(report)}"


def _of_named(name: str, runs: Runs) -> tuple[str, float, str]:
    found = runs.of(name)
    if not found:
        return "runtime_error", 0.0, f"{name}: it did not run"
    if len(found) > 1:
        return "runtime_error", 0.0, f"{name}: it is there {len(found)} times"
    return _of_run(found[0], name)


def _of_run(run: TestRun, name: str) -> tuple[str, float, str]:
    if run.state == "passed":
        return "passed", run.ms, ""
    return ("wrong_answer" if run.state == "failed" else "runtime_error"), run.ms, f"{name}: {run.state}"


def _of_all(spec: CommandReward, report: CommandReport, runs: Runs, decoys: Decoys | None) -> Verdicts:
    """All tests in the file; each that is there more than once fails."""
    ours: Any = decoys.ends if decoys is not None else ()
    found = [run for run in runs.all if run.name not in ours]
    times = Counter((run.classname, run.name) for run in found)
    verdicts = []
    for run in found:
        name, same = f"{run.classname}::{run.name}", times[run.classname, run.name]
        again = ("runtime_error", run.ms, f"{name}: it is there {same} times")
        verdicts.append(again if same > 1 else _of_run(run, name))
    verdicts += [("runtime_error", 0.0, "it did not run")] * (spec.min_tests - len(verdicts))
    if decoys is None and report.code != 0 and all(outcome == "passed" for outcome, _, _ in verdicts):
        verdicts.append(("runtime_error", 0.0, f"all tests are called passed, but {_ending(report)}"))
    return verdicts
