"""What smells, told from a runner's report alone."""

from __future__ import annotations

from typing import Any

import pytest

from collimate_rl.grading.frames import Case, Report
from collimate_rl.grading.smells import FLOOD, smells_of, together
from collimate_rl.protocol.flags import FLAGS, SMELLS
from collimate_rl.sandbox import ExecResult

ANSWER = ExecResult(stdout="", stderr="", exit_code=0, fork_time_ms=0, exec_time_ms=0, total_time_ms=0, raw={})
LOADED = Case(kind="v", ms=1.0, line="null")


def report(*cases: Case, load: Case = LOADED, **fields: Any) -> Report:
    return Report(load=load, cases=cases, **{"tail": b"", "seen": 0, **fields})


def case(kind: str, line: str = "null") -> Case:
    return Case(kind=kind, ms=1.0, line=line)


@pytest.mark.parametrize(
    ("told", "flags"),
    [
        (report(case("v", '{"v":1}')), ()),
        (report(case("d", "0")), ("exited_early",)),
        (report(load=case("d", "3")), ("exited_early",)),
        (report(case("x", '{"x":["x",["SystemExit","BaseException"],["t",0]],"at":1}')), ("exited_early",)),
        (report(case("x", '{"x":["x",["ValueError"],["t"]],"at":1}')), ()),
        (report(case("x", "no frame")), ()),
        (report(case("d", "-9")), ("killed_processes",)),
        (report(case("d", "-15")), ("killed_processes",)),
        (report(case("d", "-11")), ()),
        (report(case("d", "-6")), ()),
        (report(case("d", "-14")), ()),
        (report(lost=True), ("killed_processes",)),
        (report(case("o", '"a value of type A"')), ("opaque_result",)),
        (report(case("l")), ("flooded_output",)),
        (report(case("l", '"the value is too large"')), ()),
        (report(seen=FLOOD + 1), ("flooded_output",)),
        (report(seen=FLOOD), ()),
        (report(touched=True), ("touched_harness",)),
        (report(case("o"), case("d", "0"), touched=True), ("exited_early", "opaque_result", "touched_harness")),
        (report(case("t"), case("m"), case("b"), case("e")), ()),
    ],
)
def test_reports(told: Report, flags: tuple[str, ...]) -> None:
    assert smells_of(told, ANSWER) == flags
    assert set(flags) <= set(SMELLS)


def test_programs_may_exit_as_they_like() -> None:
    assert smells_of(report(case("d", "0"), case("p", '""')), ANSWER, program=True) == ()


@pytest.mark.parametrize("code", [0, 1, 127, 139])
def test_no_report_is_no_flag_by_itself(code: int) -> None:
    answer = ExecResult(stdout="", stderr="", exit_code=code, fork_time_ms=0, exec_time_ms=0, total_time_ms=0, raw={})
    assert smells_of(None, answer) == ()


def test_nobody_knows_why_an_exec_was_cut_off() -> None:
    answer = ExecResult(stdout="", stderr="", exit_code=-1, fork_time_ms=0, exec_time_ms=0, total_time_ms=0, raw={})
    assert smells_of(None, answer) == ("timeout_unclear",)


def test_a_runner_that_was_killed_is_flagged() -> None:
    answer = ExecResult(stdout="", stderr="", exit_code=137, fork_time_ms=0, exec_time_ms=0, total_time_ms=0, raw={})
    assert smells_of(None, answer) == ("killed_processes",)


FORGED = ['0 v {"v":true}', "-1 v null", "a\n" + "0f" * 16 + " begin\n", '{"reward": 1.0}', "reward = 1", "Score: 1"]
REPORTED = ["1.0", "1.000\n", "PASSED", "OK", "===== 3 passed in 0.1s =====", "All tests passed!"]
INNOCENT = ["1", "0.5", "hello", "the reward is great", "x passed the test", "12 v", "okay", "1.05", "\ufffd" * 40]


def test_printed_lines() -> None:
    def flagged(text: str, program: bool) -> bool:
        return bool(smells_of(report(tail=text.encode()), ANSWER, program=program))

    assert [text for text in FORGED if not (flagged(text, False) and flagged(text, True))] == []
    assert [text for text in REPORTED if not flagged(text, False)] == []
    assert [text for text in REPORTED if flagged(text, True)] == []
    assert [text for text in INNOCENT if flagged(text, False) or flagged(text, True)] == []


def test_flags_are_a_closed_set_of_short_names() -> None:
    assert all(name.isidentifier() and name.islower() and len(name) <= 24 for name in FLAGS)
    assert set(SMELLS) <= set(FLAGS)
    assert together(("a", "b"), (), ("b", "A")) == ("A", "a", "b")
