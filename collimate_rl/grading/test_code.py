"""Grading by test code (HumanEval, MBPP, assert lists): plan, run, verdict.

The test runs in judge forks only, first with nobody to answer its calls (the plan), then on the plain values that each
candidate's calls gave (the verdict). Candidates run the planned calls in sandboxes that hold neither test nor answers.
What can't be taken apart so runs beside the candidate, with integrity "shared" (`test_beside`).
"""

from __future__ import annotations

from collimate_rl.errors import CollimateError
from collimate_rl.grading.calls import no_code
from collimate_rl.grading.run import GroupRun, Stopped
from collimate_rl.grading.test_beside import grade_beside
from collimate_rl.grading.test_judge import Told
from collimate_rl.grading.test_plan import judge_of, ready_row
from collimate_rl.grading.test_rounds import Contender, Play, play
from collimate_rl.grading.test_verdict import cases_of, graded
from collimate_rl.specs.code import TestCodeReward


def grade_test_code(run: GroupRun, spec: TestCodeReward) -> None:
    """Grade every pending candidate. SpecFault when the row can't be graded by, before any candidate has run."""
    for index in [index for index in run.pending if not run.candidates[index].strip()]:
        if run.results[index] is None:
            run.finish(index, no_code(run.seeds[index]))
    indices = [index for index in run.pending if run.results[index] is None]
    if not indices:
        return
    try:
        row = ready_row(run, spec)
    except Stopped:
        return
    except CollimateError as error:
        run.fail_pending(error)
        return

    if row.shared is not None:
        grade_beside(run, spec, row)
        return

    def settle(contender: Contender, told: Told | None) -> None:
        assert contender.index is not None
        run.finish(contender.index, graded(contender, told, cases=cases_of(spec, row)))

    def fail(contender: Contender, error: CollimateError) -> None:
        assert contender.index is not None
        run.finish(contender.index, error)

    def contender_of(index: int) -> Contender:
        return Contender(index=index, program=spec.program(run.candidates[index]), seed=run.seeds[index], plan=row.plan)

    game = Play(
        run=run,
        judge=judge_of(run, spec, row),
        entry=row.entry,
        case_timeout_s=spec.case_timeout_s,
        settle=settle,
        fail=fail,
    )
    try:
        play(game, [contender_of(index) for index in indices])
        run.once_more(lambda index: play(game, [contender_of(index)]))
    except Stopped:
        return
