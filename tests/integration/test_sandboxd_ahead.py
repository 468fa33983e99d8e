"""Forks that wait for a request: when there are some, what they hold, and what happens to those that die meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from collimate_rl.sandboxd.inside.ahead import MOST
from tests.fixtures.sandbox_daemon import NoIsolation, RunningDaemon, small_daemon, start_daemon
from tests.fixtures.sandboxd_wire import call, descendants, eventually, run


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with small_daemon() as own:
        yield own


def waiting(daemon: RunningDaemon) -> set[int]:
    """The processes that are alone in a network of their own: no session lives here, and no exec runs."""
    networks: dict[int, str] = {}
    for pid in descendants(daemon.pid):
        try:
            networks[pid] = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            continue  # it went while being looked at
    alone = Counter(networks.values())
    ours = os.readlink("/proc/self/ns/net")  # where the process is that built a jail: alone, where there is one jail
    return {pid for pid, network in networks.items() if alone[network] == 1 and network != ours}


def all_waiting(daemon: RunningDaemon) -> set[int]:
    """Once each warm interpreter has been asked, which they are by turns, and had time."""
    interpreters = call(daemon.socket_path, "GET", "/v1/health")[1]["zygotes"]
    for _ in range(interpreters):
        run(daemon.socket_path, code="1")
    eventually(lambda: len(waiting(daemon)) == interpreters * MOST, "forks wait")
    return waiting(daemon)


def test_none_waits_before_a_first_exec_and_then_as_many_as_there_may_be(daemon: RunningDaemon) -> None:
    assert waiting(daemon) == set()
    before = all_waiting(daemon)
    assert run(daemon.socket_path, code="print(2)")["stdout"] == "2\n"
    eventually(lambda: len(waiting(daemon)) == len(before), "forks wait again")
    assert len(before & waiting(daemon)) == len(before) - 1


def test_they_hold_nothing_of_the_interpreters(daemon: RunningDaemon) -> None:
    for pid in all_waiting(daemon):
        assert sorted(map(int, os.listdir(f"/proc/{pid}/fd"))) == [0, 1, 2, 3]


def test_an_exec_finds_in_one_what_it_finds_in_a_fork_of_its_own(daemon: RunningDaemon) -> None:
    text = (
        "import os, random, threading, time\n"
        "print(random.random(), os.listdir('.'), os.listdir('/tmp'), sorted(map(int, os.listdir('/proc/self/fd')))[:3],"
        " os.getpid(), os.getsid(0), threading.active_count(), abs(time.time() - os.stat('.').st_mtime) < 3600)\n"
        "open('left', 'w').close()\n"
    )
    all_waiting(daemon)
    with ThreadPoolExecutor(3 * MOST) as pool:
        said = list(pool.map(lambda _: run(daemon.socket_path, code=text, seed="ab" * 32)["stdout"], range(3 * MOST)))
    assert len(set(said)) == 1, set(said)


def test_those_that_die_are_replaced_and_never_given_out(daemon: RunningDaemon) -> None:
    killed = all_waiting(daemon)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in killed), "they are reaped")
    assert [run(daemon.socket_path, code=f"print({n})")["stdout"] for n in range(3)] == ["0\n", "1\n", "2\n"]
    assert not all_waiting(daemon) & killed


def test_they_go_with_the_daemon() -> None:
    try:
        own = start_daemon()
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")
    try:
        there = all_waiting(own)
        own.process.kill()
        own.process.wait()
        eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in there), "they are gone")
    finally:
        shutil.rmtree(own.folder, ignore_errors=True)
