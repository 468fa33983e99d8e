"""A fork as the daemon sees it: its process 1 is told to be dying before anybody can have it reaped."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

from collimate_rl.sandboxd.cgroups import NoCgroups
from collimate_rl.sandboxd.forks import Fork, pid_of
from collimate_rl.sandboxd.zygotes import Forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux's")

LEADER_ENDS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
"""Its first thread ends while another one lives: then it exits and is not dead, as a process 1 that waits for those
which it ended."""


def fork_of(pid: int) -> tuple[Fork, socket.socket]:
    ours, theirs = socket.socketpair()
    forked = Forked(channel=ours, first=os.pidfd_open(pid), main=-1, pid=pid)
    group = NoCgroups().create(memory_bytes=1, pids=1)
    return Fork(None, forked, group, out_of_reach=True), theirs  # type: ignore[arg-type]


def test_who_is_about_to_end_is_ending_and_not_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", LEADER_ENDS], stdout=subprocess.PIPE)
    fork, other = fork_of(process.pid)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 60
        while not fork.is_ending():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not fork.is_dead()
    finally:
        process.kill()
        process.communicate()
    assert fork.is_ending()
    assert fork.is_dead()
    assert fork.dispose(60)
    other.close()


def test_who_lives_is_neither() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fork, other = fork_of(process.pid)
    try:
        assert not fork.is_ending(0.01)
        process.send_signal(signal.SIGSTOP)
        assert not fork.is_ending()
    finally:
        process.kill()
        # Dead, and not reaped.
        assert select.select([fork.pidfd], [], [], 60)[0]
        assert fork.is_ending()
        process.communicate()
    assert fork.dispose(60)
    other.close()


@pytest.mark.parametrize("is_old", [False, True])
def test_a_process_is_known_by_its_pidfd_until_it_is_reaped(is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOTTY, "this kernel knows no such request")

    if is_old:
        monkeypatch.setattr(fcntl, "ioctl", unknown)
    process = subprocess.Popen([sys.executable, "-c", ""])
    pidfd = os.pidfd_open(process.pid)
    assert pid_of(pidfd) == process.pid
    process.wait(60)
    assert pid_of(pidfd) == -1
    os.close(pidfd)
