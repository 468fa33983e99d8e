"""A row of test code, made ready once for all groups that are graded by it: its plan, and the gate.

The gate: a row that comes with a reference is graded on it first. What its own reference doesn't pass is a fault of the
row, never a candidate's 0.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from collimate_rl.errors import CollimateError
from collimate_rl.grading.result import GradeResult, SpecFault
from collimate_rl.grading.run import GroupRun, Stopped
from collimate_rl.grading.test_beside import prepare_shared
from collimate_rl.grading.test_judge import Judge, Plan, Told
from collimate_rl.grading.test_rounds import Contender, Play, play
from collimate_rl.grading.test_row import PASSING_TROUBLE, MachineTrouble, NeedsCandidate, Row, counted
from collimate_rl.grading.test_verdict import cases_of, graded
from collimate_rl.guest.prompt import read_prompt
from collimate_rl.specs.code import TestCodeReward
from collimate_rl.specs.options import chosen

MAX_ROWS: Final = 512
MAX_KEPT_BYTES: Final = 64 << 20
REFUSED: Final = {
    "nan": re.compile(r"(?<![a-z])nan(?![a-z])|isnan|numpy", re.IGNORECASE),
    "ends_iteration": re.compile(r"StopIteration|StopAsyncIteration|GeneratorExit"),
    "skips": re.compile(r"skip", re.IGNORECASE),
}
"""What spoils a pass, unless the row's own code speaks of it."""

_OWN: Final = ("ImportError", "ModuleNotFoundError")
"""What no candidate could mend."""
_OF_RECORDERS: Final = ("TypeError", "AttributeError")
"""What comes of a recorder in a class's place: deriving from it, for one."""


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
    run: GroupRun, spec: TestCodeReward, *, cache: RowCache = _ROWS, clock: Callable[[], float] = time.time
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
        except MachineTrouble as trouble:
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


def _prepare(run: GroupRun, spec: TestCodeReward, clock: float) -> Row:
    try:
        return _prepare_split(run, spec, clock)
    except NeedsCandidate as needs:
        if spec.integrity == "split":
            raise SpecFault(needs.why) from None
        return prepare_shared(run, spec, clock, _reference_names(spec), needs.why, needs.report)


def _prepare_split(run: GroupRun, spec: TestCodeReward, clock: float) -> Row:
    names = _reference_names(spec)
    told = Judge(run, spec, clock=clock, reference_names=names, refused=()).plan()
    plan, entry = _plan_of(spec, told)
    only = _only(spec, told.report)
    if only is not None:
        told = Judge(run, spec, clock=clock, reference_names=names, refused=(), only=only).plan()
        plan, entry = _plan_of(spec, told)
    code = "\n".join((spec.test, spec.setup, spec.prompt))
    refused = [flag for flag, spoken_of in REFUSED.items() if not spoken_of.search(code)]
    row = Row(plan=plan, clock=clock, entry=entry, refused=(), ran=only, tests=counted(told.report))
    if spec.reference is not None:
        grade, report = _gate(run, spec, row, names, told.report)
        refused = [flag for flag in refused if flag not in grade.flags]
        row = replace(row, tests=counted(report))
    return replace(row, refused=tuple(refused))


def _only(spec: TestCodeReward, report: dict[str, Any]) -> tuple[str, ...] | None:
    """The tests that `max_cases` leaves of a file; None for all."""
    tests = counted(report)
    places = chosen(len(tests), spec.max_cases if spec.is_file else None, tests)
    return tuple(tests[place] for place in places) if len(places) < len(tests) else None


def judge_of(run: GroupRun, spec: TestCodeReward, row: Row) -> Judge:
    """The judge of a row that is ready."""
    return Judge(run, spec, clock=row.clock, reference_names=_reference_names(spec), refused=row.refused, only=row.ran)


def _reference_names(spec: TestCodeReward) -> list[str]:
    """What the reference defines at its top level: the test may mean these even where they hide a builtin."""
    if spec.reference is None:
        return []
    shape = read_prompt(spec.program(spec.reference), None)
    return sorted(shape.stubs | shape.defined)


def _plan_of(spec: TestCodeReward, told: Told) -> tuple[Plan, str | None]:
    """The plan that the judge told, and the name that has to be there; SpecFault for what can't be graded by."""
    report = told.report
    if told.end != "told":
        raise SpecFault("the test can't be planned: it did not come to an end, even with nobody to answer its calls")
    live = [*report["faults"], *(report["notes"] if spec.reference is None else ())]
    if live:
        raise NeedsCandidate(f"the test needs the candidate's live objects: it {live[0]}", report)
    ops = report["plan"]["ops"]
    failure = report["failure"]
    if failure is not None and (not ops or failure[0] in ("ImportError", "ModuleNotFoundError", "Unsupported")):
        where = f" in line {failure[1]}" if failure[1] else ""
        words = f"the row's own code fails{where}, whoever the candidate is: {failure[0]}: {failure[2]}"
        if failure[0] == "Unsupported":
            raise SpecFault(words + "; a CommandReward can run the real pytest")
        if failure[0] in _OWN or not (spec.is_file or spec.reference is not None or failure[0] in _OF_RECORDERS):
            raise SpecFault(words)
        raise NeedsCandidate(words, report)
    if not ops and "plan_cut" in report["flags"]:
        words = "the test can't be planned: it comes to no call of the candidate in the time that it has"
        raise NeedsCandidate(words, report)
    if spec.is_file and not report["tests"]:
        raise SpecFault("the file has no test: everybody would pass")
    counted(report)
    if not ops:
        raise SpecFault("the test never calls the candidate: everybody would pass")
    if told.vacuous:
        raise SpecFault("the test fails on no results, whatever they are: everybody would pass")
    plan = Plan(ops=ops, steps=report["plan"]["steps"], texts=report["texts"], prints=report["prints"])
    called = sorted({op["f"][1] for op in ops})
    only_one = called[0] if len(called) == 1 and not spec.is_file else None
    return plan, spec.entry or only_one


def _gate(
    run: GroupRun, spec: TestCodeReward, row: Row, names: Sequence[str], report: dict[str, Any]
) -> tuple[GradeResult, dict[str, Any]]:
    """The reference's grade, which is a pass, and what its judge told; NeedsCandidate where only a candidate in the
    same process might pass."""
    assert spec.reference is not None
    grades: list[tuple[GradeResult, dict[str, Any]]] = []
    failures: list[CollimateError] = []

    def settle(contender: Contender, told: Told | None) -> None:
        said = told.report if told is not None else {}
        asked = replace(row, tests=counted(said)) if said.get("tests") else row
        grades.append((graded(contender, told, cases=cases_of(spec, asked, gate=True)), said or report))

    def fail(_: Contender, error: CollimateError) -> None:
        failures.append(error)

    judge = Judge(run, spec, clock=row.clock, reference_names=names, refused=(), only=row.ran)
    game = Play(run=run, judge=judge, entry=row.entry, case_timeout_s=spec.case_timeout_s, settle=settle, fail=fail)
    for _ in range(2):
        play(game, [Contender(index=None, program=spec.program(spec.reference), seed=None, plan=row.plan)])
        if failures:
            raise failures[0]
        if not grades:
            raise Stopped
        if grades[-1][0].outcome not in PASSING_TROUBLE:
            break
    grade, said = grades[-1]
    if grade.reward != 1.0:
        words = f"the row's own reference does not pass its test: {grade.outcome}: {grade.detail}"
        if grade.outcome in PASSING_TROUBLE:
            raise MachineTrouble(words)
        raise NeedsCandidate(words, report)
    return grade, said
