"""The result that a guest program frames on its standard output, among whatever else came along."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from collimate_rl import guest
from collimate_rl.grading.execute import ExecRequest
from collimate_rl.grading.limits import Late, late_of
from collimate_rl.guest.plain import dumps

JOB: Final = "collimate-job.json"
CASE_KINDS: Final = frozenset("vxolpetdmb")

_CASE_OUTCOMES: Final = {
    "x": "runtime_error",
    "o": "unencodable",
    "l": "output_limit",
    "e": "no_entry_point",
    "t": "timeout",
    "d": "runtime_error",
    "m": "memory_limit",
    "b": "tampered",
}


class Ops(list[dict[str, Any]]):
    """Ops that all candidates of a group get: their text is made once, and is most of what a job takes to write."""

    @cached_property
    def text(self) -> str:
        """As JSON."""
        return dumps(self)


class Case(NamedTuple):
    """What one op came to: a kind (see the runner), milliseconds, the line that the candidate sent, what it printed.

    A tuple, since there are as many as candidates times cases.
    """

    kind: str
    ms: float
    line: str
    printed: str | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """A runner's whole result. `cases` ends where the time did, or (`lost`) where no process could be had any more;
    `tail` is the end of `seen` bytes of prints; `touched`: the harness' places changed while the candidate ran;
    `python` is the version of the interpreter that ran it."""

    load: Case
    cases: tuple[Case, ...]
    tail: bytes
    seen: int
    lost: bool = False
    touched: bool = False
    python: str = ""
    late: tuple[Late, ...] = ()
    """One for each candidate process that ran out of time."""


@dataclass(frozen=True, kw_only=True)
class Framed:
    """A request and the mark that its result will stand between."""

    request: ExecRequest
    mark: str


def compose(program: str, job: dict[str, Any], *, timeout_seconds: int, seed: str | None) -> Framed:
    """A request that runs a guest program on a job, under a mark that nobody in the sandbox can know beforehand.

    An exec's name gets a digest of all that the job asks for: under one name a sandbox does only one thing.
    """
    mark = secrets.token_hex(16)
    exec_id: str | None = job.get("id")
    if exec_id is not None:
        exec_id = f"{exec_id}-{hashlib.sha256(dumps(job).encode()).hexdigest()[:16]}"
        job = {**job, "id": exec_id}
    request = ExecRequest(
        code=guest.program(program),
        files=((JOB, _text({**job, "mark": mark})),),
        timeout_seconds=timeout_seconds,
        seed=seed,
        exec_id=exec_id,
    )
    return Framed(request=request, mark=mark)


def _text(job: dict[str, Any]) -> str:
    ops = job.get("ops")
    if not isinstance(ops, Ops):
        return dumps(job)
    rest = dumps({name: value for name, value in job.items() if name != "ops"})
    return f'{rest[:-1]},"ops":{ops.text}}}'


def framed_lines(stdout: str, mark: str) -> list[str] | None:
    """The lines between a program's marks; None when there is no whole frame."""
    begin = stdout.rfind(f"{mark} begin\n")
    if begin < 0:
        return None
    begin += len(mark) + len(" begin\n")
    end = stdout.find(f"{mark} end", begin)
    return stdout[begin:end].split("\n")[:-1] if end >= 0 else None


def read_report(stdout: str, mark: str, ops: int) -> Report | None:
    """A runner's report on at most `ops` ops; None when the output holds none: then the candidate meddled."""
    lines = framed_lines(stdout, mark)
    if not lines:
        return None
    try:
        header = json.loads(lines[0])
        entries = [header["load"], *header["cases"]]
        if len(lines) != len(entries) + 1 or len(entries) > ops + 1:
            return None
        load, *cases = [_case(entry, line) for entry, line in zip(entries, lines[1:], strict=True)]
        return Report(
            load=load,
            cases=tuple(cases),
            tail=bytes.fromhex(header["tail"]),
            seen=int(header["seen"]),
            lost=bool(header.get("lost")),
            touched=bool(header.get("touched")),
            python=str(header.get("py", ""))[:40],
            late=tuple(map(late_of, header.get("late", ()))),
        )
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def _case(entry: Sequence[Any], line: str) -> Case:
    kind, ms = entry[0], float(entry[1])
    if kind not in CASE_KINDS or not 0.0 <= ms < 1e9:
        raise ValueError("no entry of a runner's header")
    return Case(kind=kind, ms=ms, line=line, printed=str(entry[2]) if len(entry) > 2 else None)


def failure_of(case: Case) -> tuple[str, str]:
    """The outcome of a case that has no value to compare, and words for people."""
    outcome = _CASE_OUTCOMES[case.kind]
    if case.kind == "x":
        return exception_of(case.line)
    if case.kind == "d":
        code = case.line.strip()
        words = f"killed by signal {code[1:]}" if code.startswith("-") else f"the process ended with exit code {code}"
        return outcome, words[:200]
    if case.kind in ("o", "l", "e") and case.line != "null":
        return outcome, case.line.strip('"')[:200]
    return outcome, ""


def exception_of(line: str) -> tuple[str, str]:
    """The outcome and the words for a raised exception's frame."""
    try:
        frame = json.loads(line)
        names, args = frame["x"][1], frame["x"][2]
        name = str(names[0]).lstrip("*")[:80]
        told = ", ".join(item if isinstance(item, str) else json.dumps(item) for item in args[1:])
        where = f" (line {int(frame['at'])})" if frame.get("at") else ""
        outcome = "memory_limit" if "MemoryError" in names else "runtime_error"
        return outcome, f"{name}: {told[:300]}{where}" if told else f"{name}{where}"
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return "tampered", "a frame that is none of ours"
