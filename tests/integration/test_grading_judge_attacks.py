"""Values that attack who reads them: the judge's own process, and the host's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading import checked
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.specs import AssertReward, RewardSpec, TestFileReward, UnitTestReward


@pytest.fixture
def execute(daemon_socket: str) -> OneShotExecutor:
    return OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py")


def graded(execute: OneShotExecutor, spec: RewardSpec, candidates: Mapping[str, str]) -> dict[str, GradeResult]:
    codes = list(candidates.values())
    grades = grade_group(execute, spec, codes, seeds=[None] * len(codes), timeout_seconds=20)
    assert all(isinstance(grade, GradeResult) for grade in grades), grades
    return {name: grade for name, grade in zip(candidates, grades, strict=True) if isinstance(grade, GradeResult)}


OWN_FRAME = """
import os, socket, stat
def send(line):
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=fd) as channel:
                    channel.setblocking(True)
                    channel.sendall(line.encode() + b"\\n")
                os._exit(0)
        except OSError:
            continue  # what listed the folder is closed
"""

PLAIN_PICKLES = """\
import collections, datetime, pickle
assert pickle.loads(solve(0)) == {"a": {1, 2}}
assert pickle.loads(solve(1)) == [datetime.date(2020, 1, 2), collections.Counter("aab")]
"""


def test_what_a_candidate_pickled_stays_plain_data(execute: OneShotExecutor) -> None:
    grades = graded(
        execute,
        AssertReward(PLAIN_PICKLES, entry="solve"),
        {
            "honest": "import collections, datetime, pickle\ndef solve(n):\n"
            "    return pickle.dumps([{'a': {1, 2}}, [datetime.date(2020, 1, 2), collections.Counter('aab')]][n], n)\n",
            "equals all": "def solve(n): return b'cunittest.mock\\nANY\\n.'\n",
            "runs code": 'def solve(n): return b"cbuiltins\\nexec\\n(Vimport os; os._exit(0)\\ntR."\n',
            "a command": "def solve(n): return b'cposix\\nsystem\\n(Vtrue\\ntR.'\n",
        },
    )
    assert grades.pop("honest").reward == 1.0
    for name, grade in grades.items():
        assert (grade.reward, grade.outcome, grade.integrity) == (0.0, "wrong_answer", "split"), name
        assert "runs_result" in grade.flags


def test_a_test_that_runs_a_candidate_s_command_runs_beside_it(execute: OneShotExecutor) -> None:
    test = "import subprocess\nassert subprocess.check_output(%s, shell=True) == b'hi\\n'\n"
    honest = {"honest": "def solve(n): return 'echo hi'\n", "wrong": "def solve(n): return 'echo ho'\n"}
    beside = graded(execute, AssertReward(test % "solve(1)", entry="solve"), honest)
    assert [(grade.reward, grade.integrity) for grade in beside.values()] == [(1.0, "shared"), (0.0, "shared")]
    own = AssertReward(test % "'echo hi'" + "assert solve(1) == 'echo hi'", entry="solve")
    apart = graded(execute, own, honest)
    assert [(grade.reward, grade.integrity) for grade in apart.values()] == [(1.0, "split"), (0.0, "split")]


def test_no_frame_of_a_test_beside_it_raises_anything_here(execute: OneShotExecutor) -> None:
    frame = OWN_FRAME + "class Box:\n    def __init__(self, value): send('0 v {\"v\":%s}')\n"
    trees = {
        "exits": '["g",2,["x",["SystemExit"],["t"]]]',
        "interrupts": '["g",2,["x",["KeyboardInterrupt"],["t"]]]',
        "interrupts later": '["t","passed","w","",0,["g",2,["x",["KeyboardInterrupt"],["t"]]],["l"]]',
        "too short": '["t","passed"]',
        "a dict": '["t","passed","w","",0,["m",""],["l"]]',
        "no lists": '["t","passed","w","",0,[],[]]',
        "no word": '["t","passed","w","",0,["l"],["l",0]]',
    }
    spec = TestFileReward("from solution import Box\ndef test_a():\n    assert Box(3).value == 3\n")
    honest = "class Box:\n    def __init__(self, value): self.value = value\n"
    grades = graded(execute, spec, {"honest": honest} | {name: frame % tree for name, tree in trees.items()})
    assert grades.pop("honest").reward == 1.0
    assert {(grade.reward, grade.integrity) for grade in grades.values()} == {(0.0, "shared")}
    assert {grade.outcome for grade in grades.values()} <= {"tampered", "wrong_answer"}


COLLIDING = (
    OWN_FRAME
    + """
def solve(n):
    whole = (1 << 61) - 1
    items = ",".join('["F",["i","%x"],1]' % (n * whole) for n in range(1, 9000))
    send('0 v {"v":["e",%s]}' % items)
"""
)


def test_a_value_that_is_slow_to_build_costs_its_candidate_alone(
    execute: OneShotExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "CASE_CPU_S", 1)
    spec = UnitTestReward([{"input": 1, "expected": 1}], checker="def check(given, got, expected): return got == 1\n")
    grades = graded(execute, spec, {"honest": "def solve(n): return n\n", "colliding": COLLIDING})
    assert grades["honest"].reward == 1.0
    assert (grades["colliding"].reward, grades["colliding"].outcome) == (0.0, "timeout")
