"""Test code under attack: no candidate spoils a sibling, and no answer travels; `test_grading_attacks` has the rest."""

from __future__ import annotations

import secrets

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading import test_judge
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.specs import AssertReward
from tests.fixtures.plain_executor import LyingExecutor, always
from tests.fixtures.recording import RecordingExecutor

CANARY = secrets.token_hex(16)


@pytest.fixture
def execute(daemon_socket: str) -> OneShotExecutor:
    return OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py")


CANARY_SPECS = {
    "check": AssertReward(
        f"def check(candidate):\n    for n in range(3):\n        assert candidate(n) == [n, {CANARY!r}], {CANARY!r}\n",
        entry="solve",
        prompt="def solve(n):\n    '''What is it?'''\n",
    ),
    "asserts": AssertReward(f"assert solve(1) == {int(CANARY, 16)}\nassert solve(2) != {CANARY!r}\n", per_assert=True),
    "setup and reference": AssertReward(
        "assert solve(1) == KEY\nassert solve(solve(1)) != KEY",
        setup=f"KEY = {CANARY!r}",
        entry="solve",
        reference=f"def solve(n): return {CANARY!r} if n == 1 else n * 2",
    ),
    "off the plan": AssertReward(
        "n = solve(1)\nwhile n and isinstance(n, int) and solve(n) != KEY:\n    n = solve(n)\nassert n == KEY",
        setup=f"KEY = {CANARY!r}",
        entry="solve",
    ),
}
CANARY_CANDIDATES = [
    "def solve(n): return [n, 'nothing']\n",
    "def solve(n): return n + 1 if n < 20 else 0\n",
    "def solve(n): raise ValueError\n",
    "def solve(n): return object()\n",
    "import os, signal\ndef solve(n): os.kill(os.getppid(), signal.SIGKILL)\n",
    "print(open(0).read())\ndef solve(n):\n    while True: pass\n",
    "not python\n",
]


@pytest.mark.parametrize("name", sorted(CANARY_SPECS))
def test_no_request_with_a_candidate_carries_the_canary(execute: OneShotExecutor, name: str) -> None:
    recording = RecordingExecutor(execute)
    seeds = [None] * len(CANARY_CANDIDATES)
    grades = grade_group(recording, CANARY_SPECS[name], CANARY_CANDIDATES, seeds=seeds, timeout_seconds=2)
    assert all(isinstance(grade, GradeResult) and grade.reward is not None and grade.reward < 1.0 for grade in grades)
    runners, judges = recording.texts("runner"), recording.texts("judge")
    assert len(runners) >= len(CANARY_CANDIDATES)
    forms = [CANARY, str(int(CANARY, 16)), f"{int(CANARY, 16):x}", CANARY[::-1]]
    assert not [form for text in runners for form in forms if form in text]
    assert any(form in text for text in judges for form in forms)
    assert not [code for text in judges for code in CANARY_CANDIDATES if code in text]
    for grade in grades:
        assert isinstance(grade, GradeResult)
        assert not [form for form in forms if form in (grade.detail or "")]


LOOPING = AssertReward("n = f(1)\nwhile n != 1:\n    n = n // 2\nassert n == 1\nassert f(2) == 8\n", entry="f")
HUGE = AssertReward("r = f(1)\nassert len(list(range(r)) * r) == 9\nassert f(2) == 8\n", entry="f")


@pytest.mark.parametrize(
    ("spec", "frames", "outcome"),
    [
        (LOOPING, ('{"v":0}', '{"v":8}'), "timeout"),
        (LOOPING, ('{"x":["x",["ValueError"],["t"]],"at":1}',), "runtime_error"),
        (HUGE, ('{"v":1000000000}', '{"v":8}'), "wrong_answer"),
    ],
)
def test_values_that_break_the_test_harm_nobody_else(
    execute: OneShotExecutor, monkeypatch: pytest.MonkeyPatch, spec: AssertReward, frames: tuple[str, ...], outcome: str
) -> None:
    monkeypatch.setattr(test_judge, "UNIT_CPU_S", 1)
    lying = LyingExecutor(execute, [None, always(*frames), None])
    good = f"def f(n):\n    return 8 if n == 2 else {4 if spec is LOOPING else 3}\n"
    grades = grade_group(lying, spec, [good] * 3, seeds=[None] * 3)
    told = [(grade.reward, grade.outcome) for grade in grades if isinstance(grade, GradeResult)]
    assert told == [(1.0, "passed"), (0.0, outcome), (1.0, "passed")]
