"""No candidate gets a reward but by computing what was asked for, under no type of spec, in a sandbox of its own or in
a session that others used before; and the daemon outlives every try.

What a command grades has attacks of its own (`test_command_reward`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.grading.run import side_by_side
from collimate_rl.rewards import AssertReward, PropertyReward, StdioReward, UnitTestReward, grade, grade_batch
from collimate_rl.specs import _READERS as READERS
from collimate_rl.specs import RewardSpec, TestFileReward
from tests.fixtures import attacks
from tests.fixtures.attacks_more import MORE

HONEST = "def solve(x):\n    return x * 37 + 11\n"
SPECS: dict[str, RewardSpec] = {
    "unit_test": UnitTestReward(tests=[{"input": n, "expected": n * 37 + 11} for n in (1, 9)]),
    "property": PropertyReward(reference="    return x * 37 + 11", generator="random.randint(1, 10**9)", k=2),
    "assert": AssertReward(
        "def check(candidate):\n    for n in (1, 9):\n        assert candidate(n) == n * 37 + 11\n",
        entry="solve",
        prompt="import math\n\ndef solve(x):\n    '''A number from a number.'''\n",
    ),
    "stdio": StdioReward(cases=[{"stdin": f"{n}\n", "stdout": f"{n * 37 + 11}\n"} for n in (1, 9)]),
    "test_file": TestFileReward(
        "from solution import solve\n\ndef test_small():\n    assert solve(1) == 48\n\n"
        "def test_large():\n    assert solve(10**6) == 37000011\n"
    ),
}
ALL = {**attacks.OURS, **MORE, **{f"case file: {name}": code for name, code in attacks.from_case_file().items()}}
LIMIT_S = 2
LOST = {"session_gone", "no_such_session", "ambiguous", "internal", "internal_error"}
"""What an exec in a session comes to whose sandbox a candidate has brought down."""


def honest(name: str) -> str:
    return "print(int(input()) * 37 + 11)\n" if name == "stdio" else HONEST


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


def test_there_are_enough_of_them_and_a_spec_of_each_type() -> None:
    assert len(attacks.OURS) + len(MORE) >= 90
    assert not set(attacks.OURS) & set(MORE)
    assert {spec.to_wire()["type"] for spec in SPECS.values()} == set(READERS) - {"command"}


@pytest.mark.parametrize("name", sorted(SPECS))
def test_no_attack_scores(client: CollimateClient, name: str) -> None:
    names = list(ALL)
    grades = grade_batch(client, "py", list(ALL.values()), SPECS[name], timeout_seconds=LIMIT_S, concurrency=4)
    told = dict(zip(names, grades, strict=True))
    assert {attack: grade.detail for attack, grade in told.items() if grade.reward != 0.0} == {}
    assert {attack for attack, grade in told.items() if grade.outcome in (None, "passed")} == set()
    assert {grade.integrity for grade in grades} == {"split"}
    after = grade(client, "py", honest(name), SPECS[name])
    assert after.reward == 1.0, after.detail
    health = client.health()
    assert (health["status"], health["sessions"]) == ("ok", 0)


class Sessions:
    """One session for a thread's candidates, one after the other; another when a candidate has ended it."""

    def __init__(self, client: CollimateClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._free: list[str] = []
        self.made = 0

    @contextmanager
    def one(self) -> Iterator[str]:
        with self._lock:
            session = self._free.pop() if self._free else None
        if session is None:
            session = self._client.create_session("py")["session_id"]
            with self._lock:
                self.made += 1
        yield session
        with self._lock:
            self._free.append(session)

    def close(self) -> None:
        for session in self._free:
            self._client.delete_session(session)


@pytest.mark.parametrize("name", ["unit_test", "assert", "stdio"])
def test_nor_in_a_session_that_others_attacked_before(client: CollimateClient, name: str) -> None:
    sessions = Sessions(client)
    scored: dict[str, object] = {}

    def attack(which: str) -> None:
        try:
            with sessions.one() as session:
                result = grade(client, "py", ALL[which], SPECS[name], timeout_seconds=LIMIT_S, session_id=session)
        except CollimateError as error:
            if error.error_code not in LOST:
                scored[which] = error
            return
        if result.reward != 0.0:
            scored[which] = result.detail

    # What runs out its limit does so in any session: the first test has seen to these.
    patient = {which for which in ALL if "while True" in ALL[which] or "SIGSTOP" in ALL[which]}
    side_by_side(attack, [which for which in ALL if which not in patient], 4)
    assert scored == {}
    sessions.close()
    assert client.health()["sessions"] == 0
