"""A row of test code, made ready once for all groups that are graded by it: its plan, and the gate.

The gate: a row that comes with a reference is graded on it first. What its own reference doesn't pass is a fault of the
row, never a candidate's 0.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from collimate_rl.errors import CollimateError
from collimate_rl.grading.result import GradeResult, SpecFault
from collimate_rl.grading.run import GroupRun, Stopped
from collimate_rl.grading.test_judge import Judge, Plan, Told
from collimate_rl.grading.test_rounds import Contender, Play, play
from collimate_rl.grading.test_verdict import graded
from collimate_rl.guest.prompt import read_prompt
from collimate_rl.specs.asserts import AssertReward

VERSION: Final = 1
MAX_ROWS: Final = 512
MAX_KEPT_BYTES: Final = 64 << 20
REFUSED: Final = {
    "nan": re.compile(r"(?<![a-z])nan(?![a-z])|isnan|numpy", re.IGNORECASE),
    "ends_iteration": re.compile(r"StopIteration|StopAsyncIteration|GeneratorExit"),
    "skips": re.compile(r"skip", re.IGNORECASE),
}
"""What spoils a pass, unless the row's own code speaks of it."""

_PASSING_TROUBLE: Final = ("timeout", "memory_limit", "sandbox_killed")
"""Outcomes of a reference that may lie with the machine: tried twice, and never remembered."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row that is ready: `clock` is where every judge's clocks start; `entry` has to be there, or None."""

    plan: Plan
    clock: float
    entry: str | None
    refused: tuple[str, ...]

    def pack(self) -> bytes:
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def unpack(cls, blob: bytes) -> Row | None:
        """The row that `pack` wrote; None when another version did."""
        wire = json.loads(blob.decode("utf-8", "surrogatepass"))
        if wire.pop("v", None) != VERSION:
            return None
        return cls(**{**wire, "plan": Plan(**wire["plan"]), "refused": tuple(wire["refused"])})


class RowCache:
    """The rows last used, or the faults that they have, by their specs' digests. Bounded in number and in bytes."""

    def __init__(self, rows: int = MAX_ROWS, size: int = MAX_KEPT_BYTES) -> None:
        self._rows = rows
        self._size = size
        self._kept: OrderedDict[str, tuple[Row | SpecFault, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, digest: str) -> Row | SpecFault | None:
        with self._lock:
            found = self._kept.get(digest)
            if found is None:
                return None
            self._kept.move_to_end(digest)
            return found[0]

    def put(self, digest: str, row: Row | SpecFault) -> None:
        size = len(digest) + (len(row.pack()) if isinstance(row, Row) else 0)
        with self._lock:
            _, before = self._kept.pop(digest, (None, 0))
            self._bytes += size - before
            self._kept[digest] = (row, size)
            while self._kept and (len(self._kept) > self._rows or self._bytes > self._size):
                self._bytes -= self._kept.popitem(last=False)[1][1]


_ROWS = RowCache()


def ready_row(
    run: GroupRun, spec: AssertReward, *, cache: RowCache = _ROWS, clock: Callable[[], float] = time.time
) -> Row:
    """The row that stands in the batch's store, else the one at hand, else one planned and gated now.

    SpecFault when the row can't be graded by; CollimateError when no sandbox could be had.
    """
    stored = run.case_store.get() if run.case_store is not None else None
    row = Row.unpack(stored) if stored is not None else None
    if row is not None:
        return row
    digest = spec.digest
    known = cache.get(digest)
    if known is None:
        try:
            known = _prepare(run, spec, clock())
        except _MachineTrouble as trouble:
            raise SpecFault(str(trouble)) from None
        except SpecFault as fault:
            cache.put(digest, fault)
            raise
        cache.put(digest, known)
    if isinstance(known, SpecFault):
        raise SpecFault(str(known))
    if run.case_store is not None and stored is None:
        return Row.unpack(run.case_store.put(known.pack())) or known
    return known


class _MachineTrouble(SpecFault):
    """The reference failed in a way that another run may not show."""


def _prepare(run: GroupRun, spec: AssertReward, clock: float) -> Row:
    names = _reference_names(spec)
    told = Judge(run, spec, clock=clock, reference_names=names, refused=()).plan()
    plan, entry = _plan_of(spec, told)
    code = "\n".join((spec.test, spec.setup, spec.prompt))
    refused = [flag for flag, spoken_of in REFUSED.items() if not spoken_of.search(code)]
    if spec.reference is not None:
        row = Row(plan=plan, clock=clock, entry=entry, refused=())
        flags = _gate(run, spec, row, names).flags
        refused = [flag for flag in refused if flag not in flags]
    return Row(plan=plan, clock=clock, entry=entry, refused=tuple(refused))


def judge_of(run: GroupRun, spec: AssertReward, row: Row) -> Judge:
    """The judge of a row that is ready."""
    return Judge(run, spec, clock=row.clock, reference_names=_reference_names(spec), refused=row.refused)


def _reference_names(spec: AssertReward) -> list[str]:
    """What the reference defines at its top level: the test may mean these even where they hide a builtin."""
    if spec.reference is None:
        return []
    shape = read_prompt(spec.program(spec.reference), None)
    return sorted(shape.stubs | shape.defined)


def _plan_of(spec: AssertReward, told: Told) -> tuple[Plan, str | None]:
    """The plan that the judge told, and the name that has to be there; SpecFault for what can't be graded by."""
    report = told.report
    if told.end != "told":
        raise SpecFault("the test can't be planned: it did not come to an end, even with nobody to answer its calls")
    live = [*report["faults"], *(report["notes"] if spec.reference is None else ())]
    if live:
        raise SpecFault(f"the test needs the candidate's live objects: it {live[0]}")
    ops = report["plan"]["ops"]
    failure = report["failure"]
    if failure is not None and (not ops or failure[0] in ("ImportError", "ModuleNotFoundError")):
        where = f" in line {failure[1]}" if failure[1] else ""
        raise SpecFault(f"the row's own code fails{where}, whoever the candidate is: {failure[0]}: {failure[2]}")
    if not ops and "plan_cut" in report["flags"]:
        raise SpecFault("the test can't be planned: it comes to no call of the candidate in the time that it has")
    if not ops:
        raise SpecFault("the test never calls the candidate: everybody would pass")
    if told.vacuous:
        raise SpecFault("the test fails on no results, whatever they are: everybody would pass")
    plan = Plan(ops=ops, steps=report["plan"]["steps"], texts=report["texts"], prints=report["prints"])
    called = sorted({op["f"][1] for op in ops})
    return plan, spec.entry or (called[0] if len(called) == 1 else None)


def _gate(run: GroupRun, spec: AssertReward, row: Row, names: Sequence[str]) -> GradeResult:
    """The reference's grade, which is a pass."""
    assert spec.reference is not None
    grades: list[GradeResult] = []
    failures: list[CollimateError] = []

    def settle(contender: Contender, told: Told | None) -> None:
        grades.append(graded(contender, told, per_assert=False))

    def fail(_: Contender, error: CollimateError) -> None:
        failures.append(error)

    judge = Judge(run, spec, clock=row.clock, reference_names=names, refused=())
    game = Play(run=run, judge=judge, entry=row.entry, case_timeout_s=spec.case_timeout_s, settle=settle, fail=fail)
    for _ in range(2):
        play(game, [Contender(index=None, program=spec.program(spec.reference), seed=None, plan=row.plan)])
        if failures:
            raise failures[0]
        if not grades:
            raise Stopped
        if grades[-1].outcome not in _PASSING_TROUBLE:
            break
    grade = grades[-1]
    if grade.reward != 1.0:
        kind: Any = _MachineTrouble if grade.outcome in _PASSING_TROUBLE else SpecFault
        raise kind(f"the row's own reference does not pass its test: {grade.outcome}: {grade.detail}")
    return grade
