"""A job of calls in one candidate process, and in a second exec what that one's early end left undone.

A process from which further candidates can be forked costs as much as a candidate, and few need one: most candidates
answer every call. So the first exec does without; the calls after a timeout or a death go to an exec that has it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from collimate_rl.grading.frames import Report, compose, read_report
from collimate_rl.grading.result import MAX_TAIL
from collimate_rl.grading.run import GroupRun
from collimate_rl.sandbox import ExecResult

LEAST_S: Final = 0.05
"""With less of the total time left there is nothing to go on with."""


def run_calls(
    run: GroupRun, index: int | None, job: dict[str, Any], *, seed: str | None, turn: int = 0
) -> tuple[ExecResult, Report | None]:
    """The answer and the report on all ops of the job, however many execs it took; no report when either has none.

    `job` is the runner's; `id` and `sole` are set here. The second exec has what is left of the total time, and the
    same seed. `index` is None for what is no candidate; `turn` counts what is run under the same index.
    """
    job = {**job, "id": run.exec_id(index, 2 * turn), "sole": True}
    answer, report = _exec(run, index, job, timeout_seconds=run.timeout_seconds, seed=seed)
    if report is None or report.load.kind != "v" or report.lost:
        return answer, report
    done = len(report.cases)
    left_s = job["total_s"] - sum(case.ms for case in (report.load, *report.cases)) / 1000
    stopped = job["stop"] and done > 0 and report.cases[-1].kind != "v"
    if done == 0 or done == len(job["ops"]) or stopped or left_s < LEAST_S:
        return answer, report
    rest = {**job, "id": run.exec_id(index, 2 * turn + 1), "sole": False, "from": done, "total_s": left_s}
    limit = min(run.timeout_seconds, math.ceil(left_s + 1.0))
    later, more = _exec(run, index, rest, timeout_seconds=limit, seed=answer.seed)
    both = replace(
        later,
        fork_time_ms=answer.fork_time_ms + later.fork_time_ms,
        exec_time_ms=answer.exec_time_ms + later.exec_time_ms,
    )
    return both, None if more is None else _joined(report, more, len(job["ops"]) - done)


def _exec(
    run: GroupRun, index: int | None, job: dict[str, Any], *, timeout_seconds: int, seed: str | None
) -> tuple[ExecResult, Report | None]:
    framed = compose("runner", job, timeout_seconds=timeout_seconds, seed=seed)
    answer = run.run(framed.request, role="judge" if index is None else "runner", index=index)
    return answer, read_report(answer.stdout, framed.mark, len(job["ops"]) - job.get("from", 0))


def _joined(first: Report, later: Report, ops: int) -> Report:
    """One report on both. Where the code could not be loaded again, that is what each further op came to."""
    cases = later.cases if later.load.kind == "v" else (later.load,) * ops
    return Report(
        load=first.load,
        cases=(*first.cases, *cases),
        tail=(first.tail + later.tail)[-MAX_TAIL:],
        seen=first.seen + later.seen,
        lost=later.lost,
        touched=first.touched or later.touched,
        python=later.python,
        late=(*first.late, *later.late),
    )
