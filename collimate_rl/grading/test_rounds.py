"""Running test code's calls and judging them, round by round, until every contender is settled.

A contender runs its plan in a sandbox of its own; all contenders of a round are judged together. Whoever's values lead
off the plan gets a longer one and runs it in a fresh sandbox, `MAX_ROUNDS` times at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from collimate_rl.errors import CollimateError
from collimate_rl.grading.calls import runner_job
from collimate_rl.grading.continued import run_calls
from collimate_rl.grading.frames import Report
from collimate_rl.grading.run import GroupRun, side_by_side
from collimate_rl.grading.test_judge import Judge, Plan, Told, Unit
from collimate_rl.sandbox import ExecResult

MAX_ROUNDS: Final = 8


@dataclass
class Contender:
    """A program on its way through the rounds. `index` is its candidate's place, None for a row's reference.

    `answer` and `report` are its last runner's; `report` is None when the runner gave none. `seed` is the one asked
    for, and, once a daemon has drawn one, that: every round then runs under the same.
    """

    index: int | None
    program: str
    seed: str | None
    plan: Plan
    turn: int = 0
    answer: ExecResult | None = None
    report: Report | None = None
    judge_ms: float = 0.0

    @property
    def loaded(self) -> bool:
        """Whether there is anything to judge."""
        return self.report is not None and self.report.load.kind == "v"


@dataclass(frozen=True, kw_only=True)
class Play:
    """What a round needs to know: how to run, and whom to tell. `entry` has to be there once the code is loaded."""

    run: GroupRun
    judge: Judge
    entry: str | None
    case_timeout_s: float | None
    settle: Callable[[Contender, Told | None], None]
    """Told None: no judge is needed, since the code never got so far, or (after the last round) it left every plan."""
    fail: Callable[[Contender, CollimateError], None]


def play(game: Play, contenders: Sequence[Contender]) -> None:
    """Settles every contender, or fails it; returns early, leaving some, once the group is stopped."""
    waiting = list(contenders)
    while waiting and not game.run.stopped:
        for contender in waiting:
            contender.report = None
        side_by_side(lambda contender: _run(game, contender), waiting, game.run.concurrency)
        waiting = _judge(game, [contender for contender in waiting if contender.loaded])


def _run(game: Play, contender: Contender) -> None:
    """One candidate process, two where it ended early; whoever's code doesn't load is settled here."""
    run = game.run
    job = runner_job(
        contender.program,
        contender.plan.ops,
        timeout_seconds=run.timeout_seconds,
        case_s=game.case_timeout_s or run.timeout_seconds / 2,
        entry=game.entry,
        arguments=True,
        prints=contender.plan.prints,
    )
    try:
        answer, report = run_calls(run, contender.index, job, seed=contender.seed, turn=contender.turn)
    except CollimateError as error:
        game.fail(contender, error)
        return
    contender.answer = answer
    contender.seed = answer.seed or contender.seed
    contender.report = report
    if not contender.loaded:
        game.settle(contender, None)


def _judge(game: Play, contenders: list[Contender]) -> list[Contender]:
    """Judges a round; returns those that have a longer plan to run."""
    if not contenders:
        return []
    units = [
        Unit(id=n, plan=c.plan, cases=c.report.cases if c.report else (), turn=c.turn) for n, c in enumerate(contenders)
    ]
    going_on: list[Contender] = []
    open_ones = dict(enumerate(contenders))
    try:
        for n, told in game.judge.judge(units):
            contender = open_ones.pop(n)
            contender.judge_ms += told.judge_ms
            if told.end == "told" and told.report["off"] and not told.report["unsafe"]:
                contender.plan = _longer(contender.plan, told.report)
                contender.turn += 1
                if contender.turn < MAX_ROUNDS:
                    going_on.append(contender)
                else:
                    game.settle(contender, None)
            else:
                game.settle(contender, told)
    except CollimateError as error:
        for contender in open_ones.values():
            game.fail(contender, error)
    return going_on


def _longer(plan: Plan, report: dict[str, Any]) -> Plan:
    grown = report["plan"]
    return replace(plan, ops=grown["ops"], steps=grown["steps"], prints=plan.prints or report["prints"])
