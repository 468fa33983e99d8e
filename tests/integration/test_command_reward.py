"""`CommandReward` against the real daemon: honest work gets what it is worth, and attacks get nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.rewards import CommandReward, GradeResult, grade, grade_batch
from tests.fixtures.command_tasks import ATTACKS, RIGHT, WRONG, task, work

pytest.importorskip("pytest")


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


@pytest.fixture(scope="module")
def attacked(sandbox_daemon: Any) -> dict[str, GradeResult]:
    """Every attack's grade, and the right work's between them."""
    client = CollimateClient(unix_socket=sandbox_daemon.socket_path)
    candidates = {**ATTACKS, "the right work": RIGHT}
    quick = task(env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    grades = grade_batch(client, "py", list(candidates.values()), quick, concurrency=4, timeout_seconds=60)
    return dict(zip(candidates, grades, strict=True))


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_gets_nothing(attacked: dict[str, GradeResult], attack: str) -> None:
    result = attacked[attack]
    assert (result.reward, result.integrity) == (0.0, "shared"), result
    assert result.outcome != "passed"
    assert result.detail


def test_the_right_work_among_them_passes(attacked: dict[str, GradeResult]) -> None:
    result = attacked["the right work"]
    assert (result.reward, result.outcome, result.cases_total, result.flags) == (1.0, "passed", 3, ())
