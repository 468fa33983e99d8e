"""The judge's program: plans a test, or judges what candidates' calls gave. No candidate's code is ever in here.

The job (the file `JUDGE_JOB`, JSON): `mark`, random text that frames what is reported; `row`, the test's code and pins
(`Script`); `plans`, each `{"ops", "steps", "texts"}`; `units`, each `{"id", "plan", "frames", "hopeful", "cap"}`, with
the plan's index and the frames, or null for both to plan; `cpu_s` and `wall_s` for one unit; `total_s`, after which no
further unit is begun. A frame is `[kind, line, printed]` as the runner reported it.

Each unit runs in a forked child of its own, so that one candidate's values can't touch what its siblings get. A child
reports over a pipe; a child that ends without a whole report has told nothing. What leaves is a line per unit: `mark`,
then JSON `{"id", "end": "told" | "timeout" | "died" | "late", "report"}`, for a plan with "vacuous": whether its test
passes whatever the calls give; or one line `{"fault": text}`.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from collimate_rl.guest.codec import loads
from collimate_rl.guest.plain import BadTree, dumps
from collimate_rl.guest.recorder import Plan
from collimate_rl.guest.scene import Fault, Run, Script

JUDGE_JOB = "collimate-job.json"
_MEMORY = 384 << 20
_MAX_REPORT = 12 << 20
_ANSWERS = ("v", "x")
_PROBES = ({"v": ["k", "Nothing", 0]}, {"x": ["x", ["*Nothing", "Exception", "BaseException"], ["t"]]})
"""Frames that no test asks for: a value that equals nothing, an exception that nobody knows."""


def conduct(job: Dict[str, Any]) -> None:
    """Runs every unit of a job, and writes what each came to on standard output."""
    begun = time.monotonic()
    mark = job["mark"]
    try:
        script = Script(job["row"])
    except Fault as fault:
        _say(mark, dumps({"fault": str(fault)}).encode())
        return
    plans = [(Plan(plan["ops"], plan["steps"]), plan["texts"]) for plan in job["plans"]]
    for unit in job["units"]:
        end, report = "late", b"null"
        if time.monotonic() - begun < job["total_s"]:
            plan, texts = plans[unit["plan"]] if unit["plan"] is not None else (Plan([], []), [])
            make = functools.partial(_run_of, script, plan, texts, unit)
            end, report = _in_child(make, job["cpu_s"], job["wall_s"])
        more = b""
        if unit["plan"] is None and end == "told":
            more = b',"vacuous":' + dumps(_is_vacuous(script, json.loads(report), unit, job)).encode()
        _say(mark, b'{"id":%d,"end":"%s","report":%s%s}' % (unit["id"], end.encode(), report, more))


def _is_vacuous(script: Script, planned: Dict[str, Any], unit: Dict[str, Any], job: Dict[str, Any]) -> bool:
    """Whether a test that has just been planned ends well on any answers."""
    plan = Plan(planned["plan"]["ops"], planned["plan"]["steps"])
    for probe in _PROBES:
        frames: List[Any] = [(probe, "")] * len(plan.ops)
        make = functools.partial(Run, script, plan, frames, planned["texts"], True, unit["cap"])
        end, report = _in_child(make, job["cpu_s"], job["wall_s"])
        told = json.loads(report)
        if end != "told" or not told["returned"] or told["off"]:
            return False
        if len({*told["passed"], *planned["skipped"]}) != told["cases"]:
            return False
    return True


def _run_of(script: Script, plan: Plan, texts: List[str], unit: Dict[str, Any]) -> Run:
    return Run(script, plan, _frames(unit["frames"]), texts, unit["hopeful"], unit["cap"])


def _frames(given: Optional[List[Any]]) -> Optional[List[Any]]:
    """Frames as the session reads them: (body, printed), None where there is no good one."""
    if given is None:
        return None
    frames: List[Any] = []
    for frame in given:
        good = frame is not None and frame[0] in _ANSWERS
        try:
            frames.append((loads(frame[1]), frame[2]) if good else None)
        except BadTree:
            frames.append(None)
    return frames


def _in_child(make: Callable[[], Run], cpu_s: int, wall_s: float) -> Tuple[str, bytes]:
    """How the run's process ended, and its report as it wrote it: what holds a candidate's values is not read here."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _child(make, theirs, cpu_s)
    os.close(theirs)
    data = b""
    deadline = time.monotonic() + wall_s
    late = False
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > _MAX_REPORT:
            late = True
            break
        if select.select([ours], [], [], left)[0]:
            piece = os.read(ours, 1 << 20)
            if not piece:
                break
            data += piece
    os.close(ours)
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass  # it has ended, or never became the leader of a group
    _, _, usage = os.wait4(pid, 0)
    if data.endswith(b"\n") and len(data) <= _MAX_REPORT:
        return ("timeout" if data == b"null\n" else "told"), data[:-1]
    # Killed at the hard limit, in the middle of something that no handler interrupts.
    spent = usage.ru_utime + usage.ru_stime
    return ("timeout" if late or spent > cpu_s else "died"), b"null"


def _child(make: Callable[[], Run], pipe: int, cpu_s: int) -> NoReturn:
    """The run's own process. It ends by itself only after its report is out: null, when its time is up."""

    def finish(report: Optional[Dict[str, Any]]) -> NoReturn:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        data = memoryview((dumps(report) + "\n").encode())
        while data:
            data = data[os.write(pipe, data) :]
        os._exit(0)

    def out_of_time(*_: Any) -> None:
        if run is not None and run.planning:
            run.session.flags.add("plan_cut")
            finish(run.report())
        finish(None)

    run: Optional[Run] = None
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        signal.signal(signal.SIGXCPU, out_of_time)
        _limit(cpu_s)
        run = make()
        run.finish = finish
        run.perform()
    finally:
        os._exit(1)


def _limit(cpu_s: int) -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
    except OSError:
        pass  # no such /proc here: the sandbox's own memory limit stands
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    sys.setrecursionlimit(5000)
    getattr(sys, "set_int_max_str_digits", int)(0)


def _say(mark: str, told: bytes) -> None:
    data = memoryview(b"\n%s %s\n" % (mark.encode(), told))
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    with open(JUDGE_JOB) as file:
        job = json.load(file)
    os.unlink(JUDGE_JOB)
    conduct(job)


if __name__ == "__main__":
    main()
