"""Judging by a spec's own checker, in a judge fork: what a candidate gave goes in as plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from collimate_rl.errors import CollimateDrainingError, CollimateError, UnreachableError
from collimate_rl.grading.calls import Check, Judge
from collimate_rl.grading.frames import Case, compose, failure_of
from collimate_rl.grading.result import SpecFault
from collimate_rl.grading.run import GroupRun
from collimate_rl.guest.plain import Tree

CASE_CPU_S: Final = 10
CASE_WALL_S: Final = 60
EXEC_S: Final = 60
"""After so long a judge begins no further case: the rest goes into the next."""
ATTEMPTS: Final = 2


def checker_of(run: GroupRun, source: str, cases: Sequence[tuple[Tree, Tree]]) -> Check:
    """Judges a candidate's values against `cases`, (given, expected) each, by the checker in `source`.

    A checker that fails on a value says that the value is wrong: most of them read it without a look at its shape. One
    that can't even be loaded is a SpecFault.
    """

    def check(got: Sequence[Case]) -> tuple[Judge, float]:
        lines = {n: line for n, case in enumerate(got) if (line := _value_line(case)) is not None}
        told, spent_ms = _ask(run, source, [[cases[n][0], line, cases[n][1]] for n, line in lines.items()])
        verdicts = dict(zip(lines, told, strict=True))

        def judge(n: int, case: Case) -> tuple[str, str]:
            if n not in verdicts:
                return failure_of(case) if case.kind not in ("v", "p") else ("tampered", "a frame that is none of ours")
            return _outcome(verdicts[n])

        return judge, spent_ms

    return check


def _value_line(case: Case) -> str | None:
    """The tree that a case sent, as text; None where it sent none."""
    if case.kind == "p":
        return case.line
    if case.kind == "v" and case.line.startswith('{"v":') and case.line.endswith("}"):
        return case.line[len('{"v":') : -1]
    return None


def _outcome(told: Any) -> tuple[str, str]:
    if told is True:
        return "passed", ""
    if told == "bad":
        return "tampered", "a frame that is none of ours"
    if told == "timeout":
        return "timeout", "the checker did not come to an end on this value"
    if isinstance(told, dict):
        return "wrong_answer", "the checker could make nothing of it: " + str(told.get("fault"))[:200]
    return "wrong_answer", "the checker refused it"


def _ask(run: GroupRun, source: str, cases: list[Any]) -> tuple[list[Any], float]:
    """What the checker says of each case, and the milliseconds that it took."""
    told: list[Any] = []
    spent_ms = 0.0
    while len(told) < len(cases):
        limits = {"cpu_s": CASE_CPU_S, "wall_s": CASE_WALL_S, "total_s": EXEC_S}
        job = {"source": source, "cases": cases[len(told) :], **limits}
        framed = compose("checks", job, timeout_seconds=EXEC_S + CASE_WALL_S + 10, seed=None)
        answer = None
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = run.run(framed.request, role="judge", index=None)
                break
            except CollimateError as error:
                if error.is_misconfigured or isinstance(error, UnreachableError | CollimateDrainingError):
                    raise
                if attempt == ATTEMPTS:
                    raise CollimateError(f"no judge could be had: {error}", error.status, "judge_failed") from error
        assert answer is not None
        spent_ms += answer.exec_time_ms
        lines = [line for line in answer.stdout.split("\n") if line.startswith(framed.mark + " ")]
        said = [json.loads(line[len(framed.mark) + 1 :]) for line in lines]
        if not told and len(said) == 1 and isinstance(said[0], dict) and "can't be loaded" in said[0].get("fault", ""):
            raise SpecFault(said[0]["fault"])
        said = [each for each in said if each != "late"][: len(cases) - len(told)]
        if not said:
            raise CollimateError("the checker's sandbox gave no answer", 0, "judge_failed")
        told += said
    return told, spent_ms
