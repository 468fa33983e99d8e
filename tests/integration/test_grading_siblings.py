"""What one candidate does changes no verdict but its own, and is never taken for trouble of the infrastructure."""

from __future__ import annotations

import threading

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.rewards import UnitTestReward, grade

HONEST = "def solve(x):\n    return x * 37 + 11\n"
UNIT = UnitTestReward(tests=[{"input": n, "expected": n * 37 + 11} for n in range(1, 4)])

SENDS_EVERY_SIGNAL = """
import os, signal, time
def solve(x):
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        for number in signal.valid_signals():
            if pid != os.getpid() and number not in (signal.SIGKILL, signal.SIGSTOP):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
    time.sleep(60)
"""

KEEPS_DESCRIPTORS_IN_FLIGHT = """
import array, os, socket, time
def solve(x):
    null = os.open("/dev/null", os.O_RDONLY)
    pairs = []
    try:
        while True:
            pairs.append(socket.socketpair())
            pairs[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 250))])
    except OSError:
        print("begun", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


def test_signals_end_nothing_but_the_senders_own_grade(client: CollimateClient) -> None:
    result = grade(client, "py", SENDS_EVERY_SIGNAL, UNIT, timeout_seconds=3)
    assert (result.reward, result.outcome) == (0.0, "tampered")
    for _ in range(6):
        assert grade(client, "py", HONEST, UNIT).reward == 1.0


def test_descriptors_in_flight_are_not_used_up_for_others(client: CollimateClient) -> None:
    """They are counted by user, and all forks have the same one."""
    rewards: list[float | None] = []
    ended = threading.Event()

    def hog() -> None:
        rewards.append(grade(client, "py", KEEPS_DESCRIPTORS_IN_FLIGHT, UNIT, timeout_seconds=5).reward)
        ended.set()

    hogging = threading.Thread(target=hog)
    hogging.start()
    seen = []
    while not ended.wait(0.1):
        seen.append(grade(client, "py", HONEST, UNIT).reward)
    hogging.join()
    assert rewards == [0.0]
    assert len(seen) > 3
    assert seen == [1.0] * len(seen)
