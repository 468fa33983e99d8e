"""Asking the judge: plans and verdicts on test code, in sandboxes without a candidate.

A judge that tells nothing of some unit is asked again for it alone, once: what then still isn't told is the doing of
those values. A judge that can't be had at all is the infrastructure's failure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from collimate_rl.errors import CollimateDrainingError, CollimateError, UnreachableError
from collimate_rl.grading.frames import Case, compose
from collimate_rl.grading.result import SpecFault
from collimate_rl.grading.run import GroupRun, side_by_side
from collimate_rl.specs.code import TestCodeReward

MAX_OPS: Final = 1500
"""Calls that a plan may grow by in one round."""
FEARFUL_OPS: Final = 300
"""The same, on placeholders that compare as feared: loops tend to have no end then."""
UNIT_CPU_S: Final = 10
"""CPU time of one run of a test: with nobody to answer, or on one candidate's values."""
UNIT_WALL_S: Final = 60
ROUND_S: Final = 60
"""After so long, a judge begins no further unit of its exec: the rest goes into the next."""
ROOM: Final = 64 * 1024
"""Bytes of candidates' outputs that share one judge exec."""
ATTEMPTS: Final = 2
"""Times that a judge is asked for: its exec changes nothing, so that even an ambiguous failure may be tried again."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The calls to make, as the runner takes them. `steps` and `texts` are the judge's own notes on them; `prints` when
    the test reads what calls print."""

    ops: Sequence[Any]
    steps: Sequence[int]
    texts: Sequence[str]
    prints: bool


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One candidate to be judged: the plan that it ran, and what its ops gave as far as they were reached.

    `turn` counts its runs from 0; placeholders off the plan compare as hoped and as feared by turns.
    """

    id: int
    plan: Plan
    cases: Sequence[Case]
    turn: int

    @property
    def size(self) -> int:
        return sum(len(case.line) + len(case.printed or "") + 16 for case in self.cases)

    def wire(self, plan: int, cap: int) -> dict[str, Any]:
        # No line of ours holds a control character, which would travel at six times its size.
        frames: list[Any] = [
            [case.kind, case.line if case.line.isprintable() else "", case.printed or ""] for case in self.cases
        ]
        frames += [None] * (len(self.plan.ops) - len(frames))
        hopeful = self.turn % 2 == 1
        most = cap if hopeful else min(cap, FEARFUL_OPS)
        return {"id": self.id, "plan": plan, "frames": frames, "hopeful": hopeful, "cap": most}


@dataclass(frozen=True, kw_only=True)
class Told:
    """How a unit's run ended ("told", "timeout", "died" or "late"), its report where it told one, the judge's time.

    `vacuous`: it was a plan, and its test passes whatever the calls give.
    """

    end: str
    vacuous: bool = False
    report: dict[str, Any] = field(default_factory=dict)
    judge_ms: float = 0.0


class Judge:
    """Judges for one row.

    `clock` is where its pinned clocks start, in seconds since the epoch; `reference_names` are what the reference
    defines; `refused` names what no honest candidate sends in this row, and what spoils a pass; `only` are the tests of
    a file to run, all of them where it is None; `lenient` only counts them, whatever they need of the candidate.
    """

    def __init__(
        self,
        run: GroupRun,
        spec: TestCodeReward,
        *,
        clock: float,
        reference_names: Sequence[str],
        refused: Sequence[str],
        only: Sequence[str] | None = None,
        lenient: bool = False,
    ) -> None:
        self._run = run
        self._digest = spec.digest
        self._cap = MAX_OPS if spec.is_file else spec.max_cases or MAX_OPS
        self._row = {
            "test": spec.test,
            "setup": spec.setup,
            "prompt": spec.prompt,
            "entry": spec.entry,
            "per_assert": getattr(spec, "per_assert", False),
            "file": spec.is_file,
            "module": spec.module,
            "only": None if only is None else list(only),
            "lenient": lenient,
            "reference_names": list(reference_names),
            "refused": list(refused),
            "seed": spec.random_seed,
            "clock": clock,
        }

    def plan(self) -> Told:
        """Runs the test with nobody to answer its calls."""
        unit = {"id": 0, "plan": None, "frames": None, "hopeful": True, "cap": self._cap}
        told: dict[int, Told] = {}
        for _ in range(2):
            told = self._ask([unit], [])
            if 0 in told and told[0].end == "told":
                break
        return told.get(0, Told(end="died"))

    def judge(self, units: Sequence[Unit]) -> Iterator[tuple[int, Told]]:
        """What each unit's run came to, as it becomes known. Infrastructure trouble is a CollimateError."""
        again: list[Unit] = []
        waiting = list(units)
        while waiting:
            batch = _first_batch(waiting)
            told = self._verdicts(batch)
            late: list[Unit] = []
            for unit in batch:
                verdict = told.get(unit.id, Told(end="died"))
                if verdict.end == "told":
                    yield unit.id, verdict
                else:
                    (late if verdict.end == "late" else again).append(unit)
            waiting = late + waiting[len(batch) :]
        alone: dict[int, Told] = {}

        def ask_alone(unit: Unit) -> None:
            alone[unit.id] = self._verdicts([unit]).get(unit.id, Told(end="died"))

        side_by_side(ask_alone, again, self._run.concurrency)
        yield from alone.items()

    def _verdicts(self, units: Sequence[Unit]) -> dict[int, Told]:
        plans = list({id(unit.plan): unit.plan for unit in units}.values())
        places = {id(plan): place for place, plan in enumerate(plans)}
        wires = [unit.wire(places[id(unit.plan)], self._cap) for unit in units]
        return self._ask(wires, [{"ops": p.ops, "steps": p.steps, "texts": p.texts} for p in plans])

    def _ask(self, units: list[dict[str, Any]], plans: list[dict[str, Any]]) -> dict[int, Told]:
        limits = {"cpu_s": UNIT_CPU_S, "wall_s": UNIT_WALL_S, "total_s": ROUND_S}
        job = {"row": self._row, "plans": plans, "units": units, **limits}
        framed = compose("judge", job, timeout_seconds=ROUND_S + UNIT_WALL_S + 10, seed=self._digest)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self._run.run(framed.request, role="judge", index=None)
                break
            except CollimateError as error:
                if error.is_misconfigured or isinstance(error, (UnreachableError, CollimateDrainingError)):
                    raise  # the whole daemon's trouble, not the judge's: who called acts on the kind of error
                if attempt == ATTEMPTS:
                    raise CollimateError(f"no judge could be had: {error}", error.status, "judge_failed") from error
        return _read(answer.stdout, framed.mark, answer.exec_time_ms / max(1, len(units)))


def _first_batch(units: Sequence[Unit]) -> list[Unit]:
    """As many of the first units as share one exec, one at least."""
    batch, room = [units[0]], ROOM - units[0].size
    for unit in units[1:]:
        room -= unit.size
        if room < 0:
            break
        batch.append(unit)
    return batch


def _read(stdout: str, mark: str, share_ms: float) -> dict[int, Told]:
    """What the judge told, unit by unit. It ends at the first line that isn't whole: the rest was never told."""
    told: dict[int, Told] = {}
    for line in stdout.split("\n"):
        if not line.startswith(mark + " "):
            continue
        try:
            unit = json.loads(line[len(mark) + 1 :])
        except ValueError:
            break
        if "fault" in unit:
            raise SpecFault(f"the test can't be planned: {unit['fault']}")
        told[unit["id"]] = Told(
            end=unit["end"], vacuous=unit.get("vacuous", False), report=unit["report"] or {}, judge_ms=share_ms
        )
    return told
