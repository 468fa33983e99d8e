"""What only the expected values know never travels to a sandbox with a candidate in it."""

from __future__ import annotations

import secrets

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.rewards import AssertReward, PropertyReward, StdioReward, UnitTestReward
from collimate_rl.specs import RewardSpec
from tests.fixtures.recording import RecordingExecutor

CANARY = secrets.token_hex(16)

CANDIDATES = [
    "def solve(*args): return args\nprint(open(0).read())\n",
    "def solve(*args): raise ValueError\n",
    "def solve(*args):\n    while True: pass\n",
    "import os, signal\ndef solve(*args): os.kill(os.getppid(), signal.SIGKILL)\n",
    "def solve(*args): return object()\n",
    "not python\n",
]

SPECS: dict[str, RewardSpec] = {
    "unit": UnitTestReward(tests=[{"input": n, "expected": {"value": [n, CANARY]}} for n in range(3)]),
    "unit, a large integer": UnitTestReward(tests=[{"input": [n, 2], "expected": int(CANARY, 16)} for n in range(3)]),
    "property": PropertyReward(reference=f"    return [x, '{CANARY}']", generator="random.random()", k=3),
    "assert": AssertReward(
        f"def check(f):\n    for n in range(3):\n        assert f(n) == '{CANARY}'\n", entry="solve"
    ),
    "stdio": StdioReward(cases=[{"stdin": f"{n}\n", "stdout": f"{CANARY}\n{n}\n"} for n in range(3)]),
}


def forms(canary: str) -> list[str]:
    """The ways in which it would travel."""
    return [canary, str(int(canary, 16)), canary.lstrip("0"), canary[::-1]]


@pytest.mark.parametrize("name", sorted(SPECS))
def test_no_request_with_a_candidate_carries_the_canary(daemon_socket: str, name: str) -> None:
    execute = RecordingExecutor(OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py"))
    grades = grade_group(execute, SPECS[name], CANDIDATES, seeds=[None] * len(CANDIDATES), timeout_seconds=2)
    assert [g.reward for g in grades if isinstance(g, GradeResult)] == [0.0] * len(CANDIDATES)
    runners = execute.texts("runner")
    assert len(runners) == len(CANDIDATES)
    assert not [form for text in runners for form in forms(CANARY) if form in text]


def test_the_judge_of_a_property_has_the_reference_and_no_candidate(daemon_socket: str) -> None:
    execute = RecordingExecutor(OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py"))
    seeds = ["ab" * 32] * len(CANDIDATES)
    grade_group(execute, SPECS["property"], CANDIDATES, seeds=seeds, timeout_seconds=2)
    [judge] = execute.texts("judge")
    assert CANARY in judge
    assert not [code for code in CANDIDATES if code in judge]


@pytest.mark.parametrize("name", sorted(SPECS))
def test_no_detail_names_an_expected_value(daemon_socket: str, name: str) -> None:
    execute = OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py")
    grades = grade_group(execute, SPECS[name], CANDIDATES, seeds=[None] * len(CANDIDATES), timeout_seconds=2)
    for graded in grades:
        assert isinstance(graded, GradeResult)
        assert not [form for form in forms(CANARY) if form in (graded.detail or "")]
