"""The whole table at once, 24 attacks at a time, beside honest candidates: their rewards are what they are alone.

By turns in a fork of its own and in a session; each attack is tried by itself in both (`test_sandboxd_hostile_table`).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.rewards import UnitTestReward, grade_batch
from tests.fixtures.hostile_attacks import Attack
from tests.fixtures.hostile_bombs import BOMBS
from tests.fixtures.hostile_daemon import daemon_of_its_own
from tests.fixtures.hostile_neighbours import CASES, RIGHT, WRONG
from tests.fixtures.hostile_refused import REFUSED
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.sandboxd_wire import call, code, control_groups, eventually, footprint, resident_bytes

AT_ONCE = 24
GRADED_AT_ONCE = 6
MEMORY_SLACK = 96 << 20
"""What the daemon's allocator may keep of the largest outputs that it held at once."""


@pytest.fixture(scope="module")
def wide_daemon() -> Iterator[RunningDaemon]:
    """A daemon of its own, with a place for everybody, which nothing else has used."""
    with daemon_of_its_own("--max-inflight", str(AT_ONCE + GRADED_AT_ONCE + 2)) as daemon:
        yield daemon


def _in_a_session(path: str, attack: Attack) -> None:
    status, created = call(path, "POST", "/v1/sessions", {"template_id": "py"})
    assert status == 201, created
    target = f"/v1/sessions/{created['session_id']}"
    # What an attack leaves behind in its session goes on beside the honest ones until that ends.
    assert call(path, "POST", f"{target}/exec", attack.body())[0] in (200, 410)
    assert call(path, "DELETE", target)[0] in (200, 404)


def _one_shot(path: str, attack: Attack) -> None:
    status, answer = call(path, "POST", "/v1/exec", {"template_id": "py", **attack.body()})
    assert status == 200, (attack.name, answer)
    assert answer["exit_code"] in attack.exits | {-1, 1, 137}, (attack.name, answer)


def test_honest_rewards_do_not_change_and_nothing_is_left(wide_daemon: RunningDaemon) -> None:
    path = wide_daemon.socket_path
    client = CollimateClient(unix_socket=path)
    candidates = [*RIGHT.values(), *WRONG.values()]
    spec = UnitTestReward(CASES)

    def rewards() -> list[float | None]:
        return [r.reward for r in grade_batch(client, "py", candidates, spec, concurrency=GRADED_AT_ONCE)]

    expected = [1.0] * len(RIGHT) + [0.0] * len(WRONG)
    assert rewards() == expected
    call(path, "GET", "/v1/health")
    eventually(lambda: footprint(wide_daemon.pid) == footprint(wide_daemon.pid), "the daemon at rest")
    before, memory, shared = footprint(wide_daemon.pid), resident_bytes(wide_daemon.pid), _shared_memory()

    attacks_of_all = (*REFUSED, *BOMBS)
    table = [((_one_shot, _in_a_session)[place % 2], attack) for place, attack in enumerate(attacks_of_all)]
    random.Random(4).shuffle(table)
    over = threading.Event()
    seen: list[list[float | None]] = []

    def grade_on() -> None:
        while not over.is_set():
            seen.append(rewards())

    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        grading = pool.submit(grade_on)
        try:
            attacks = [pool.submit(form, path, attack) for form, attack in table]
            for attack in attacks:
                attack.result()
        finally:
            over.set()
        grading.result()
    assert seen
    assert all(found == expected for found in seen), seen

    assert code(path, "print('served')")["stdout"] == "served\n"
    eventually(lambda: footprint(wide_daemon.pid) == before, f"{footprint(wide_daemon.pid)} back to {before}")
    assert resident_bytes(wide_daemon.pid) <= memory + MEMORY_SLACK
    eventually(lambda: _shared_memory() <= shared + MEMORY_SLACK, "the shared memory of all attacks freed")
    status, health = call(path, "GET", "/v1/health")
    assert (status, health["unclean_forks"], health["running"], health["queued"]) == (200, 0, 0, 0)
    assert control_groups(wide_daemon.pid) <= 3 * (2 * health["max_inflight"] + 2)
    assert rewards() == expected


def _shared_memory() -> int:
    """What temporary file systems and shared memory hold on the whole machine."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["Shmem"].split()[0]) * 1024
