"""No candidate gets a reward but by computing what was asked for, under no type of spec, in a sandbox of its own or in
a session that others used before; and the daemon outlives every try. The usual run shares the attacks out among the
types of spec; ATTACKS=long tries each under every type, in both ways.

What a command grades has attacks of its own (`test_command_reward`).
"""

from __future__ import annotations

import os

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.grading.group import grade_group
from collimate_rl.rewards import AssertReward, PropertyReward, StdioReward, UnitTestReward, grade, grade_batch
from collimate_rl.specs import _READERS as READERS
from collimate_rl.specs import RewardSpec, TestFileReward
from tests.fixtures import attacks
from tests.fixtures.attacks_held import HELD
from tests.fixtures.attacks_more import MORE
from tests.fixtures.attacks_real import REAL
from tests.fixtures.pooled_sessions import PooledSessions

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
ALL = {
    **attacks.OURS,
    **MORE,
    **REAL,
    **HELD,
    **{f"case file: {name}": code for name, code in attacks.from_case_file().items()},
}
LONG = os.environ.get("ATTACKS") == "long"
LIMIT_S = 2
LOST = {"session_gone", "no_such_session", "ambiguous", "internal", "internal_error"}
"""What an exec in a session comes to whose sandbox a candidate has brought down."""


def share(name: str, turn: int) -> dict[str, str]:
    """The attacks that this type of spec meets: each attack meets one type in each turn, all types with ATTACKS=long.

    Those of the case file meet all of them at any time.
    """
    own = sorted(SPECS).index(name) + turn
    return {
        attack: code
        for place, (attack, code) in enumerate(ALL.items())
        if LONG or attack.startswith("case file") or (place + own) % len(SPECS) == 0
    }


def honest(name: str) -> str:
    return "print(int(input()) * 37 + 11)\n" if name == "stdio" else HONEST


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


def test_there_are_enough_of_them_and_a_spec_of_each_type() -> None:
    ours = (attacks.OURS, MORE, REAL, HELD)
    assert len({name for table in ours for name in table}) == sum(map(len, ours)) >= 185
    assert {spec.to_wire()["type"] for spec in SPECS.values()} == set(READERS) - {"command"}


@pytest.mark.parametrize("name", sorted(SPECS))
def test_no_attack_scores(client: CollimateClient, name: str) -> None:
    tried = share(name, 0)
    grades = grade_batch(client, "py", list(tried.values()), SPECS[name], timeout_seconds=LIMIT_S, concurrency=6)
    told = dict(zip(tried, grades, strict=True))
    assert {attack: grade.detail for attack, grade in told.items() if grade.reward != 0.0} == {}
    assert {attack for attack, grade in told.items() if grade.outcome in (None, "passed")} == set()
    assert {grade.integrity for grade in grades} == {"split"}
    after = grade(client, "py", honest(name), SPECS[name])
    assert after.reward == 1.0, after.detail
    health = client.health()
    assert (health["status"], health["sessions"]) == ("ok", 0)


class PlainUnitTests(UnitTestReward):
    """Graded by the classic program, in one process with the candidate: a user's own subclass with a `parse`."""

    def parse(self, stdout: str) -> float:
        return super().parse(stdout)


def test_a_plain_grader_pays_for_them_in_full(client: CollimateClient) -> None:
    spec = PlainUnitTests(tests=SPECS["unit_test"].tests)  # type: ignore[attr-defined]
    known = {name: code for name, code in attacks.OURS.items() | MORE.items() if name in attacks.PAID}
    told = grade_batch(client, "py", [*REAL.values(), *known.values()], spec, timeout_seconds=20, concurrency=6)
    assert {grade.integrity for grade in told} == {"shared"}
    named = zip([*REAL, *known], told, strict=True)
    assert {name: grade.output_tail[-200:] for name, grade in named if grade.reward != 1.0} == {}
    assert len(REAL) >= 40
    assert set(known) == attacks.PAID


@pytest.mark.parametrize("name", sorted(SPECS))
def test_nor_in_a_session_that_others_attacked_before(client: CollimateClient, name: str) -> None:
    # What runs out its limit does so in any session: the first test has seen to these.
    chosen = {
        which: code for which, code in share(name, 1).items() if "while True" not in code and "SIGSTOP" not in code
    }
    sessions = PooledSessions(client)
    codes = list(chosen.values())
    grades = grade_group(
        sessions, SPECS[name], codes, seeds=[None] * len(codes), timeout_seconds=LIMIT_S, concurrency=6
    )
    scored = {}
    for which, graded in zip(chosen, grades, strict=True):
        if isinstance(graded, CollimateError):
            if graded.error_code not in LOST:
                scored[which] = str(graded)
        elif graded is None or graded.reward != 0.0:
            scored[which] = str(graded)
    assert scored == {}
    lost = sum(isinstance(graded, CollimateError) for graded in grades)
    assert lost < len(codes) / 4
    assert sum(sessions.runs.values()) > 1.5 * len(sessions.runs), "no session was used twice"
    sessions.close()
    assert client.health()["sessions"] == 0
