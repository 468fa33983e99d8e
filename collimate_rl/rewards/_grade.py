"""`grade` and `grade_batch`: candidates to rewards, against a daemon, without a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from collimate_rl import rewards
from collimate_rl.errors import CollimateError
from collimate_rl.grading.execute import ExecRequest, Executor, OneShotExecutor, Role, SessionExecutor
from collimate_rl.grading.group import Graded, grade_group
from collimate_rl.grading.losses import LossWitness
from collimate_rl.grading.result import GradeResult
from collimate_rl.grading.run import side_by_side
from collimate_rl.sandbox import ExecResult
from collimate_rl.specs import CommandReward, RewardSpec
from collimate_rl.transport import SessionClient

OnInfraError = Literal["raise", "zero", "skip"]
_POLICIES: Final = ("raise", "zero", "skip")


class _InSession:
    """Candidates in the caller's session; the spec's own code in forks apart from it, as ever."""

    def __init__(self, client: SessionClient, template_id: str, session_id: str) -> None:
        self._runner = SessionExecutor(client, session_id)
        self._judge = OneShotExecutor(client, template_id)

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        executor: Executor = self._runner if role == "runner" else self._judge
        return executor.run(request, role=role, index=index)


def _fresh_forks(client: SessionClient, template_id: str) -> Executor:
    return LossWitness(OneShotExecutor(client, template_id), client, template_id)


def grade(
    client: SessionClient,
    template_id: str,
    candidate: str,
    spec: RewardSpec,
    *,
    seed: str | None = None,
    timeout_seconds: int = 30,
    session_id: str | None = None,
) -> GradeResult:
    """Grade one candidate in a fresh fork of the template, or in the session `session_id`, which is left alive.

    `seed` is 64 hex digits, or None: the one that was drawn is in the result. `timeout_seconds` is the candidate's
    total wall time. A `CommandReward` is graded in a fresh fork, session or none. Raises CollimateError when the
    infrastructure fails (never a reward), and ValueError when the spec is at fault.
    """
    execute: Executor = _fresh_forks(client, template_id)
    if session_id is not None and not isinstance(spec, CommandReward):
        execute = _InSession(client, template_id, session_id)
    [graded] = grade_group(execute, spec, [candidate], seeds=[seed], timeout_seconds=timeout_seconds, concurrency=1)
    if isinstance(graded, CollimateError):
        raise graded
    assert graded is not None
    return graded


_grade = grade


def grade_batch(
    client: SessionClient,
    template_id: str,
    candidates: Sequence[str],
    spec: RewardSpec,
    *,
    seeds: Sequence[str | None] | None = None,
    timeout_seconds: int = 30,
    concurrency: int = 24,
    on_infra_error: OnInfraError = "raise",
) -> list[GradeResult]:
    """Grade a group, up to `concurrency` candidates at a time; results are in the candidates' order.

    `on_infra_error`: "raise" the first infrastructure failure; "zero" gives 0.0 with `infra_error` and `error_code`, in
    place; "skip" leaves the candidate out. Where a user replaced `collimate_rl.rewards.grade`, that one is called for
    every candidate.
    """
    if on_infra_error not in _POLICIES:
        raise ValueError(f"on_infra_error is one of {', '.join(_POLICIES)}, not {on_infra_error!r}")
    drawn: Sequence[str | None] = [None] * len(candidates) if seeds is None else seeds
    if len(drawn) != len(candidates):
        raise ValueError(f"{len(drawn)} seeds for {len(candidates)} candidates: one each")

    def enter(_: int, graded: Graded) -> None:
        if on_infra_error == "raise" and isinstance(graded, CollimateError):
            raise graded

    if rewards.grade is _grade:
        graded = grade_group(
            _fresh_forks(client, template_id),
            spec,
            candidates,
            seeds=drawn,
            timeout_seconds=timeout_seconds,
            concurrency=concurrency,
            on_grade=enter,
        )
    else:
        graded = [None] * len(candidates)

        def replaced(index: int) -> None:
            try:
                graded[index] = rewards.grade(
                    client,
                    template_id,
                    candidates[index],
                    spec,
                    seed=drawn[index],
                    timeout_seconds=timeout_seconds,
                )
            except CollimateError as error:
                graded[index] = error
                enter(index, error)

        side_by_side(replaced, range(len(candidates)), concurrency)
    pairs = zip(graded, drawn, strict=True)
    flagged = [_flagged(item, seed) if isinstance(item, CollimateError) else item for item, seed in pairs]
    return [item for item in flagged if item is not None and not (item.infra_error and on_infra_error == "skip")]


def _flagged(error: CollimateError, seed: str | None) -> GradeResult:
    return GradeResult(
        reward=0.0,
        seed=seed,
        infra_error=True,
        error_code=error.error_code or "internal",
        detail=str(error)[:1000],
    )
