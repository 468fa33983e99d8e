"""Who ran out of time for want of a processor is run once more, after the rest, quietly; whoever slept is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.errors import CollimateError
from collimate_rl.grading.execute import ExecRequest, Role
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.limits import RETRIED, STARVED, UNCLEAR, Budget, Late, late_of, lateness
from collimate_rl.grading.result import GradeResult
from collimate_rl.guest.waits import waited
from collimate_rl.protocol.flags import FLAGS
from collimate_rl.rewards import UnitTestReward
from collimate_rl.sandbox import ExecResult
from tests.fixtures.plain_executor import answer


@pytest.mark.parametrize(
    ("ran", "waited_ms", "wall", "flag"),
    [
        (2000, 0, 2000, None),
        (1700, 300, 2000, None),
        (1500, 450, 2000, STARVED),
        (900, 1100, 2000, STARVED),
        (2, 3, 2000, None),
        (2, 0, 2000, None),
        (2, 300, 2000, STARVED),
        (4000, 9000, 2000, None),
        (2, None, 2000, UNCLEAR),
        (1900, None, 2000, None),
    ],
)
def test_waiting_is_told_from_sleeping_and_from_being_slow(
    ran: float, waited_ms: float | None, wall: float, flag: str | None
) -> None:
    assert Late(ran_ms=ran, waited_ms=waited_ms, wall_ms=wall).flag == flag


def test_numbers_of_a_guest_program() -> None:
    assert late_of([1, -1, 3]) == Late(ran_ms=1.0, waited_ms=None, wall_ms=3.0)
    assert late_of([1, 2.5, 3]) == Late(ran_ms=1.0, waited_ms=2.5, wall_ms=3.0)
    for odd in ([1, 2], ["a", 2, 3], [None, 1, 1]):
        with pytest.raises((ValueError, TypeError)):
            late_of(odd)


def test_the_clearest_case_speaks_for_a_run() -> None:
    starved, unclear = late_of([1, 5, 10]), late_of([1, -1, 10])
    slept = late_of([1, 0, 10])
    assert lateness([slept, unclear, starved]) == STARVED
    assert lateness([slept, unclear]) == UNCLEAR
    assert lateness([slept]) is None
    assert lateness([]) is None


def test_the_flags_are_flags() -> None:
    assert {STARVED, UNCLEAR, RETRIED} <= set(FLAGS)


@pytest.mark.parametrize(("group", "starved", "unclear"), [(1, 1, 1), (4, 2, 1), (16, 8, 2)])
def test_a_budget_bounds_what_is_run_again(group: int, starved: int, unclear: int) -> None:
    budget = Budget(group)
    assert sum(budget.take(STARVED) for _ in range(group + 1)) == starved
    assert sum(budget.take(UNCLEAR) for _ in range(group + 1)) == unclear


def test_the_kernel_tells_waiting_from_sleeping() -> None:
    """Two that spin on one processor wait for each other; one that reads from a pipe waits for nobody."""
    if waited(os.getpid()) < 0:
        pytest.skip("this kernel does not count how long a process waits for a processor")
    reading, writing = os.pipe()
    [processor, *_] = os.sched_getaffinity(0)
    spin = f"import os\nos.sched_setaffinity(0, [{processor}])\nwhile True: pass\n"
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", spin]) for _ in range(2)]
    with subprocess.Popen(["/bin/cat"], stdin=reading, stdout=subprocess.DEVNULL) as asleep:
        os.close(reading)
        try:
            end = time.monotonic() + 60
            while waited(spinning[0].pid) < 500e6 and time.monotonic() < end:
                time.sleep(0.02)
            assert waited(spinning[0].pid) >= 500e6 > waited(asleep.pid) >= 0
            assert waited(os.getpid()) >= sum(waited(each.pid) for each in spinning) / 2
        finally:
            for each in spinning:
                each.kill()
                each.wait()
            os.close(writing)
    assert waited(2**22 + 1) == -1


Told = dict[str, Any]


class Scripted:
    """Answers runner execs of candidate i with its next report; remembers who ran, in order, and how."""

    def __init__(self, *reports: list[Told | int | Exception]) -> None:
        self.reports = [list(each) for each in reports]
        self.ran: list[tuple[int, bool]] = []
        self.ids: list[str | None] = []
        self._lock = threading.Lock()

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        assert index is not None
        with self._lock:
            self.ran.append((index, request.quiet))
            self.ids.append(request.exec_id)
            told = self.reports[index].pop(0)
        if isinstance(told, Exception):
            raise told
        if isinstance(told, int):
            return answer("no frame", told, request)
        job = json.loads(request.files[0][1])
        header = {"load": ["v", 1.0], "tail": "", "seen": 0, **{k: v for k, v in told.items() if k != "lines"}}
        lines = [json.dumps(header), "null", *told["lines"]]
        return answer(f"\n{job['mark']} begin\n" + "\n".join(lines) + f"\n{job['mark']} end ran\n", 0, request)


def passes() -> Told:
    return {"cases": [["v", 1.0]], "lines": ['{"v":1}']}


def times_out(ran: float, waited_ms: float, wall: float = 2000) -> Told:
    return {"cases": [["t", wall]], "lines": ["null"], "late": [[ran, waited_ms, wall]]}


def starves() -> Told:
    return times_out(700, 1200)


SPEC = UnitTestReward([{"input": 1, "expected": 1}])


def grades(execute: Scripted, count: int, **options: Any) -> list[GradeResult]:
    found = grade_group(execute, SPEC, ["def solve(x): return x\n"] * count, seeds=[None] * count, **options)
    assert all(isinstance(each, GradeResult) for each in found)
    return found  # type: ignore[return-value]


def test_a_starved_candidate_is_run_once_more_after_the_rest() -> None:
    execute = Scripted([starves(), passes()], [passes()], [passes()], [passes()])
    told: list[tuple[int, float | None]] = []
    found = grades(execute, 4, concurrency=1, on_grade=lambda i, g: told.append((i, g.reward)))  # type: ignore[union-attr]
    assert execute.ran == [(0, False), (1, False), (2, False), (3, False), (0, True)]
    assert [(each.reward, each.flags) for each in found] == [(1.0, (RETRIED,))] + [(1.0, ())] * 3
    assert told == [(1, 1.0), (2, 1.0), (3, 1.0), (0, 1.0)]


def test_it_is_run_once_more_and_not_twice() -> None:
    execute = Scripted([starves(), starves(), passes()])
    [found] = grades(execute, 1)
    assert (found.reward, found.outcome, found.flags) == (0.0, "timeout", (RETRIED, STARVED))
    assert len(execute.ran) == 2


@pytest.mark.parametrize("late", [times_out(1, 0), times_out(2000, 0), times_out(4000, 6000)])
def test_a_sleeper_and_a_slow_one_are_not_run_again(late: Told) -> None:
    execute = Scripted([late, passes()])
    [found] = grades(execute, 1)
    assert (found.reward, found.outcome, found.flags) == (0.0, "timeout", ())
    assert len(execute.ran) == 1


def test_what_nobody_can_tell_is_run_again_within_a_smaller_budget() -> None:
    execute = Scripted(*[[times_out(1, -1), passes()] for _ in range(4)])
    found = grades(execute, 4, concurrency=1)
    assert [each.flags for each in found] == [(RETRIED,), (UNCLEAR,), (UNCLEAR,), (UNCLEAR,)]
    assert [each.reward for each in found] == [1.0, 0.0, 0.0, 0.0]


def test_an_exec_that_the_daemon_cut_off_counts_as_unclear() -> None:
    [found] = grades(Scripted([-1, passes()]), 1)
    assert (found.reward, found.flags) == (1.0, (RETRIED,))


def test_half_of_a_group_is_run_again_at_most() -> None:
    execute = Scripted(*[[starves(), starves()] for _ in range(4)])
    found = grades(execute, 4, concurrency=1)
    assert [each.flags for each in found] == [(RETRIED, STARVED)] * 2 + [(STARVED,)] * 2
    assert len(execute.ran) == 6


def test_the_second_run_has_a_name_of_its_own() -> None:
    execute = Scripted([starves(), passes()])
    grades(execute, 1, exec_prefix="k")
    first, second = execute.ids
    assert first != second
    assert str(second).startswith("k-0-0-again-")


def test_an_infra_error_of_the_second_run_is_one() -> None:
    execute = Scripted([starves(), CollimateError("no room", 503, "at_capacity")])
    [found] = grade_group(execute, SPEC, ["x = 1\n"], seeds=[None])
    assert isinstance(found, CollimateError)
    assert found.error_code == "at_capacity"


def test_nothing_is_run_again_after_the_stop() -> None:
    stop = threading.Event()
    execute = Scripted([starves(), passes()], [passes()])
    on_grade: Callable[[int, Any], None] = lambda _index, _graded: stop.set()  # noqa: E731
    found = grade_group(execute, SPEC, ["x = 1\n"] * 2, seeds=[None] * 2, concurrency=1, stop=stop, on_grade=on_grade)
    assert found[0] is None
    assert execute.ran == [(0, False), (1, False)]


def test_partial_credit_is_kept_for_the_second_run_too() -> None:
    spec = UnitTestReward([{"input": 1, "expected": 1}] * 2)
    half = {"cases": [["v", 1.0], ["t", 2000]], "lines": ['{"v":1}', "null"], "late": [[700, 1200, 2000]]}
    whole = {"cases": [["v", 1.0], ["v", 1.0]], "lines": ['{"v":1}', '{"v":1}']}
    [found] = grade_group(Scripted([half, whole]), spec, ["x = 1\n"], seeds=[None])
    assert isinstance(found, GradeResult)
    assert (found.reward, found.flags) == (1.0, (RETRIED,))
