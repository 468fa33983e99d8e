"""No candidate gets a reward but by computing what was asked for, and the daemon outlives every try."""

from __future__ import annotations

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.rewards import PropertyReward, UnitTestReward, grade
from collimate_rl.specs import RewardSpec
from tests.fixtures import attacks

HONEST = "def solve(x):\n    return x * 37 + 11\n"
UNIT = UnitTestReward(tests=[{"input": n, "expected": n * 37 + 11} for n in range(1, 6)])
PROPERTY = PropertyReward(reference="    return x * 37 + 11", generator="random.randint(1, 10**9)", k=4)
SHARED = attacks.from_case_file()


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


@pytest.fixture(params=["unit", "property"])
def spec(request: pytest.FixtureRequest) -> RewardSpec:
    return {"unit": UNIT, "property": PROPERTY}[request.param]


def fails(client: CollimateClient, spec: RewardSpec, code: str) -> None:
    result = grade(client, "py", code, spec, timeout_seconds=3)
    assert result.reward == 0.0
    assert not result.infra_error
    assert result.outcome not in (None, "passed")
    assert result.integrity == "split"
    assert grade(client, "py", HONEST, spec, timeout_seconds=10).reward == 1.0


@pytest.mark.skipif(not SHARED, reason="no data set beside the checkout")
@pytest.mark.parametrize("name", sorted(SHARED))
def test_attacks_of_the_case_file_score_nothing(client: CollimateClient, spec: RewardSpec, name: str) -> None:
    fails(client, spec, SHARED[name])


@pytest.mark.parametrize("name", sorted(attacks.OURS))
def test_our_attacks_score_nothing(client: CollimateClient, spec: RewardSpec, name: str) -> None:
    fails(client, spec, attacks.OURS[name])


def test_the_daemon_still_serves(client: CollimateClient) -> None:
    health = client.health()
    assert health["status"] == "ok"
    assert health["sessions"] == 0


def test_an_answer_without_a_frame_is_the_candidates_doing(client: CollimateClient) -> None:
    code = "import os, signal\ndef solve(x):\n    os.kill(-1, signal.SIGKILL)\n"
    try:
        result = grade(client, "py", code, UNIT, timeout_seconds=3)
    except CollimateError as error:
        pytest.fail(f"an infra error: {error}")
    assert (result.reward, result.outcome) == (0.0, "tampered")
