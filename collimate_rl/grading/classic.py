"""The classic, one-program way: for specs of users' own that have only `build` and `parse`."""

from __future__ import annotations

from typing import Final

from collimate_rl.grading.calls import no_code, runner_fields
from collimate_rl.grading.execute import ExecRequest
from collimate_rl.grading.limits import UNCLEAR
from collimate_rl.grading.result import MAX_TAIL, GradeResult
from collimate_rl.grading.run import Graded, GroupRun
from collimate_rl.grading.smells import FLOOD
from collimate_rl.sandbox import ExecResult
from collimate_rl.specs import RewardSpec

CANDIDATE_PATH: Final = "candidate.py"
"""Where the candidate lies for `build`: in the working directory of the program that it makes."""


def grade_classic(run: GroupRun, spec: RewardSpec) -> None:
    """Run the spec's program beside the candidate and parse what it prints: integrity "shared"."""
    program = spec.build(CANDIDATE_PATH)

    def grade_one(index: int) -> Graded:
        candidate = run.candidates[index]
        if not candidate.strip():
            return no_code(run.seeds[index])
        request = ExecRequest(
            code=program,
            files=((CANDIDATE_PATH, candidate.encode("utf-8", "replace").decode()),),
            timeout_seconds=run.timeout_seconds,
            seed=run.seeds[index],
        )
        answer = run.run(request, role="runner", index=index)
        reward, outcome, detail = _score(spec, answer)
        output = answer.stdout.encode("utf-8", "replace")
        return GradeResult(
            reward=reward,
            **runner_fields(answer),
            outcome=outcome,
            integrity="shared",
            detail=detail,
            output_tail=output[-MAX_TAIL:],
            truncated=len(output) > MAX_TAIL,
            flags=("flooded_output",) * (len(output) > FLOOD) + (UNCLEAR,) * (answer.exit_code == -1),
        )

    run.each(grade_one)


def _score(spec: RewardSpec, answer: ExecResult) -> tuple[float, str, str | None]:
    """Reward, outcome and words. What the program printed is the candidate's to choose, so nothing in it may raise."""
    if answer.exit_code == -1:
        return 0.0, "timeout", "the time limit struck"
    try:
        parsed: object = spec.parse(answer.stdout)
    except Exception as error:  # noqa: BLE001 - see above
        return 0.0, "tampered", f"parse raised {type(error).__name__}: {error!s:.300}"
    if isinstance(parsed, int | float) and 0.0 <= parsed <= 1.0:
        return float(parsed), "passed" if parsed == 1.0 else "wrong_answer", None
    shown = repr(parsed) if isinstance(parsed, float) else f"an object of type {type(parsed).__name__}"
    return 0.0, "tampered", f"parse gave {shown}, which is no number from 0.0 to 1.0"
