"""What only the expected values know never travels to a sandbox with a candidate in it, whatever the type of spec.

What can't be split says so in every grade; its sandbox then has the tests.
"""

from __future__ import annotations

import secrets

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.rewards import AssertReward, PropertyReward, StdioReward, UnitTestReward
from collimate_rl.specs import _READERS as READERS
from collimate_rl.specs import CommandReward, RewardSpec, TestFileReward
from tests.fixtures.recording import RecordingExecutor

CANARY = secrets.token_hex(16)

CANDIDATES = [
    "def solve(*args): return args\nprint(open(0).read())\n",
    "def solve(*args): raise ValueError\n",
    "import time\ndef solve(*args):\n    while True: time.sleep(1)\n",
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
    "assert, one by one": AssertReward(
        f"assert solve(1) == {int(CANARY, 16)}\nassert solve(2) == ('{CANARY}', 1), '{CANARY}'\n",
        entry="solve",
        per_assert=True,
    ),
    "a file of tests": TestFileReward(
        f"from solution import solve\ndef test_a():\n    assert solve(1) == '{CANARY}'\n"
        f"def test_b():\n    assert solve(2) == '{CANARY}'\n"
    ),
    "a checker": UnitTestReward(
        tests=[{"input": n, "expected": CANARY} for n in range(3)],
        checker="def check(given, got, expected): return got == expected\n",
    ),
    "a checker of programs": StdioReward(
        cases=[{"stdin": f"{n}\n", "stdout": f"{CANARY}\n"} for n in range(3)],
        checker="def check(given, got, expected): return got == expected\n",
    ),
    "stdio": StdioReward(cases=[{"stdin": f"{n}\n", "stdout": f"{CANARY}\n{n}\n"} for n in range(3)]),
    "stdio, a checker": StdioReward(
        cases=[{"stdin": f"{n}\n", "stdout": "x"} for n in range(3)],
        checker=f"def check(given, got, expected):\n    return got == '{CANARY}'\n",
    ),
    "test file": TestFileReward(
        f"import pytest\nfrom solution import solve\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n):\n"
        f"    assert solve(n) == [n, '{CANARY}']\n"
    ),
}
"""Those that are graded split."""

SHARED: dict[str, RewardSpec] = {
    "command": CommandReward(
        "{python} check.py", files={"a.py": "x = 0\n"}, tests={"check.py": f"import a\nassert a.x == '{CANARY}'\n"}
    ),
}
"""Those that can't be."""


def test_every_type_of_spec_has_its_place_here() -> None:
    assert {spec.to_wire()["type"] for spec in (*SPECS.values(), *SHARED.values())} == set(READERS)


def forms(canary: str) -> list[str]:
    """The ways in which it would travel."""
    return [canary, str(int(canary, 16)), canary.lstrip("0"), canary[::-1]]


@pytest.mark.parametrize("name", sorted(SPECS))
def test_no_request_with_a_candidate_carries_the_canary(daemon_socket: str, name: str) -> None:
    execute = RecordingExecutor(OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py"))
    grades = grade_group(execute, SPECS[name], CANDIDATES, seeds=[None] * len(CANDIDATES), timeout_seconds=2)
    assert [(g.reward, g.integrity) for g in grades if isinstance(g, GradeResult)] == [(0.0, "split")] * len(CANDIDATES)
    runners = execute.texts("runner")
    assert len(runners) >= len(CANDIDATES)
    assert not [form for text in runners for form in forms(CANARY) if form in text]
    assert not [code for text in execute.texts("judge") for code in CANDIDATES if code in text]
    for graded in grades:
        assert isinstance(graded, GradeResult)
        told = (graded.detail or "") + graded.output_tail.decode("utf-8", "replace")
        assert not [form for form in forms(CANARY) if form in told]


@pytest.mark.parametrize("name", sorted(SHARED))
def test_what_cannot_be_split_says_so(daemon_socket: str, name: str) -> None:
    execute = OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py")
    [graded] = grade_group(execute, SHARED[name], ['{"files": {"a.py": "x = 1"}}'], seeds=[None], timeout_seconds=10)
    assert isinstance(graded, GradeResult)
    assert (graded.reward, graded.integrity) == (0.0, "shared")


def test_the_judge_of_a_property_has_the_reference_and_no_candidate(daemon_socket: str) -> None:
    execute = RecordingExecutor(OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py"))
    seeds = ["ab" * 32] * len(CANDIDATES)
    grade_group(execute, SPECS["property"], CANDIDATES, seeds=seeds, timeout_seconds=2)
    [judge] = execute.texts("judge")
    assert CANARY in judge
    assert not [code for code in CANDIDATES if code in judge]
