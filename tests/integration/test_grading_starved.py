"""On a machine that others keep busy, a timeout of whoever had no processor is looked at twice, whatever the spec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.rewards import AssertReward, CommandReward, RewardSpec, StdioReward, UnitTestReward, grade

ENDLESS = "def solve(x):\n    while True:\n        pass\n"


@pytest.fixture(scope="module")
def busy() -> Iterator[None]:
    """Four processes for every processor, each of which would have it alone.

    Each in a session of its own: where the kernel shares processors out by session, all in one would be one competitor.
    """
    count = 4 * len(os.sched_getaffinity(0))
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(count)]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


@pytest.mark.parametrize(
    ("spec", "candidate"),
    [
        (UnitTestReward([{"input": 1, "expected": 1}], case_timeout_s=0.5), ENDLESS),
        (AssertReward("assert solve(1) == 1", entry="solve", case_timeout_s=0.5), ENDLESS),
        (StdioReward([{"stdin": "", "stdout": "1"}], case_timeout_s=0.5), "while True: pass\n"),
        (CommandReward("while :; do :; done", case_timeout_s=0.5), "```a.py\n```"),
    ],
    ids=["values", "test code", "program", "command"],
)
@pytest.mark.usefixtures("busy")
def test_who_had_no_processor_is_run_once_more(daemon_socket: str, spec: RewardSpec, candidate: str) -> None:
    graded = grade(CollimateClient(unix_socket=daemon_socket), "py", candidate, spec)
    assert (graded.reward, graded.outcome) == (0.0, "timeout")
    assert "timeout_retried" in graded.flags
