"""The import paths that code written for collimate-rl 0.4 and 0.8 uses, and what stands behind each."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest

import collimate_rl
from collimate_rl import CollimateError, UnitTestReward, grade, grade_batch

PATHS = {
    "browser": ("connect_browser",),
    "client": ("CollimateClient", "CollimateDrainingError", "CollimateError", "CollimateTaskError"),
    "fleetview": ("FleetStatus", "FleetView", "NodePool"),
    "gateway": ("DemoTierLimit", "GatewayClient", "GatewayError"),
    "local_backend": ("LocalCollimateBackend",),
    "rewards": (
        *("AssertReward", "GradeResult", "PropertyReward", "RewardSpec", "StdioReward", "UnitTestReward"),
        *("CommandReward", "TestFileReward"),
        *("extract_code", "grade", "grade_batch", "reward_spec_from_ground_truth"),
    ),
    "sandbox": ("ExecResult", "Sandbox", "rollout_once"),
    "seeds": ("DET_SEED", "fresh_seed", "group_seeds", "is_valid_seed", "seed_from_key"),
    "template": (
        *("Env", "ForkGroup", "Ready", "Session", "Template", "TemplateBakeFailed", "TemplateHandle"),
        *("TemplateStatus", "open_session"),
    ),
    "transport": ("SessionClient", "connect"),
    "tunnel": ("PortForward", "open_port_forward"),
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PATHS.items() for name in names])
def test_a_path_leads_to_the_one_thing_of_that_name(module: str, name: str) -> None:
    assert getattr(import_module(f"collimate_rl.{module}"), name) is getattr(collimate_rl, name)


def test_every_public_name_has_a_path() -> None:
    ours = {"AmbiguousError", "MalformedAnswer", "TransferError", "UnreachableError"}  # in collimate_rl.errors
    assert set(collimate_rl.__all__) - ours <= {name for names in PATHS.values() for name in names}


def test_slimes_hooks() -> None:
    package, module = import_module("collimate_rl.slime"), import_module("collimate_rl.slime.reward")
    for name in ("reward_func", "group_reward_func"):
        assert getattr(package, name) is getattr(module, name)


def test_rewards_grade_is_a_function_that_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def mine(client: Any, template_id: str, candidate: str, spec: Any, **options: Any) -> collimate_rl.GradeResult:
        seen.append(candidate)
        return collimate_rl.GradeResult(0.5)

    monkeypatch.setattr("collimate_rl.rewards.grade", mine)
    results = grade_batch(object(), "py", ["a", "b"], UnitTestReward([]), concurrency=1)  # type: ignore[arg-type]
    assert ([one.reward for one in results], seen) == ([0.5, 0.5], ["a", "b"])


class OnlyExecOnce:
    """A user's stand-in for a client that knows one call."""

    def exec_once(self, template_id: str, **request: Any) -> dict[str, Any]:
        raise CollimateError("nobody there", 503, "draining")


def test_a_client_of_ones_own_needs_no_more_than_is_called() -> None:
    spec = UnitTestReward([{"input": 1, "expected": 1}])
    with pytest.raises(CollimateError, match="nobody there"):
        grade(OnlyExecOnce(), "py", "def solve(x):\n    return x\n", spec)  # type: ignore[arg-type]


def test_the_command_and_the_modules_that_people_run() -> None:
    for name in ("cli", "local_backend", "local_gateway"):
        assert callable(import_module(f"collimate_rl.{name}").main)
    assert "collimate_rl.cli" in sys.modules
