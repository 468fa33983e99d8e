"""A row of test code that is ready to be graded by, and why one isn't."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from collimate_rl.grading.result import SpecFault
from collimate_rl.grading.test_judge import Plan

VERSION: Final = 2
PASSING_TROUBLE: Final = ("timeout", "memory_limit", "sandbox_killed")
"""Outcomes of a reference that may lie with the machine: tried twice, and never remembered."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row that is ready: `clock` is where every judge's clocks start; `entry` has to be there, or None.

    `tests` are the tests of a file that count, in order; `ran` all that are run with them. `shared` says why the test
    runs beside the candidate, and `asserts` how many cases it has then; None where it doesn't.
    """

    plan: Plan
    clock: float
    entry: str | None
    refused: tuple[str, ...]
    tests: tuple[str, ...] = ()
    ran: tuple[str, ...] | None = None
    shared: str | None = None
    asserts: int = 1

    def pack(self) -> bytes:
        return json.dumps({"v": VERSION, **asdict(self)}, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def unpack(cls, blob: bytes) -> Row | None:
        """The row that `pack` wrote; None when another version did."""
        wire = json.loads(blob.decode("utf-8", "surrogatepass"))
        if wire.pop("v", None) != VERSION:
            return None
        lists = {name: tuple(wire[name]) for name in ("refused", "tests", "ran") if wire[name] is not None}
        return cls(**{**wire, **lists, "plan": Plan(**wire["plan"])})


class MachineTrouble(SpecFault):
    """The reference failed in a way that another run may not show."""


class NeedsCandidate(Exception):
    """The test can't be taken from the candidate; says why. `report` is what planning it told."""

    def __init__(self, why: str, report: dict[str, Any]) -> None:
        super().__init__(why)
        self.why = why
        self.report = report


def counted(report: dict[str, Any]) -> tuple[str, ...]:
    """The tests of a file that were not skipped; SpecFault when that leaves none."""
    tests = tuple(name for k, name in enumerate(report["tests"]) if k not in report["skipped"])
    if report["tests"] and not tests:
        raise SpecFault("every test of the file is skipped: there is nothing to pass")
    return tests
