"""Worker processes: places filled, deaths seen once, backoff bounded, pids told apart."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time

import pytest

from worker.children import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, SETTLED_S, Children
from worker.process import ProcessId, boot_id, pid_namespace, start_time
from worker.signals import Signals


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def name_for(place: int) -> str:
    return f"n1-{place}-{secrets.token_hex(4)}"


def spawn(_name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def ended(children: Children, count: int) -> list[int]:
    codes: list[int] = []
    deadline = time.monotonic() + 30
    while len(codes) < count and time.monotonic() < deadline:
        codes += [end.code for end in children.reap()]
        time.sleep(0.005)
    return codes


def test_every_place_is_filled_and_a_death_is_seen_once() -> None:
    clock = Clock()
    children = Children(2, spawn, name_for=name_for, clock=clock)
    first = children.start_due()
    assert [child.place for child in first] == [0, 1]
    assert len({child.name for child in first}) == 2
    assert children.start_due() == []
    children.signal(signal.SIGKILL)
    assert ended(children, 2) == [-9, -9]
    assert children.reap() == []
    assert list(children.living) == []


def test_more_places_are_filled_beside_those_that_there_are() -> None:
    children = Children(1, spawn, name_for=name_for, clock=Clock())
    children.start_due()
    children.widen(3)
    assert [child.place for child in children.start_due()] == [1, 2]
    children.widen(2)
    assert (children.count, len(children.living)) == (3, 3)
    children.signal(signal.SIGKILL)
    assert ended(children, 3) == [-9, -9, -9]


def test_the_backoff_grows_to_its_bound_and_starts_over_after_a_healthy_life() -> None:
    clock = Clock()
    children = Children(1, lambda _name: subprocess.Popen(["true"]), name_for=name_for, clock=clock)
    waits = []
    for lived in [0.0] * 12 + [SETTLED_S]:
        assert len(children.start_due()) == 1
        clock.now += lived
        while not (ends := children.reap()):
            time.sleep(0.002)
        waits.append(ends[0].restart_in_s)
        if waits[-1]:
            assert children.start_due() == []
        assert children.next_start_in() == pytest.approx(waits[-1])
        clock.now += waits[-1]
    assert waits[:-1] == sorted(waits[:-1])
    assert waits[:2] == [0.0, FIRST_BACKOFF_S]
    assert waits[-2] == LONGEST_BACKOFF_S
    assert waits[-1] == 0.0


def test_a_childs_end_ends_the_supervisors_wait() -> None:
    other = subprocess.Popen(["sleep", "30"])
    try:
        with Signals() as signals:
            child = subprocess.Popen(["sleep", "30"])
            child.kill()
            while child.poll() is None:
                assert signals.wait(60.0) is False
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_start_that_fails_is_tried_again_after_a_pause() -> None:
    clock, tries = Clock(), []

    def refuse(name: str) -> subprocess.Popen[bytes]:
        tries.append(name)
        if len(tries) < 3:
            raise BlockingIOError("no process to be had")
        return spawn(name)

    children = Children(1, refuse, name_for=name_for, clock=clock)
    assert children.start_due() == []
    assert children.start_due() == []
    for _ in range(2):
        clock.now += LONGEST_BACKOFF_S
        children.start_due()
    assert (len(tries), len(children.living)) == (3, 1)
    children.signal(signal.SIGKILL)
    assert ended(children, 1) == [-9]


def test_a_process_is_told_from_a_later_one_with_its_pid() -> None:
    own = ProcessId.of(os.getpid())
    assert own is not None
    assert own.alive() is True
    assert ProcessId.parse(str(own)) == own
    earlier = ProcessId(boot=own.boot, namespace=own.namespace, pid=own.pid, started=own.started - 1)
    assert earlier.alive() is False
    assert ProcessId(boot="another", namespace=own.namespace, pid=own.pid, started=own.started).alive() is None
    assert ProcessId(boot=boot_id(), namespace="1", pid=own.pid, started=own.started).alive() is None
    assert own.namespace == pid_namespace()


@pytest.mark.parametrize("text", ["", "a.b.c", "a.b.x.1", "a.b.1.2.3"])
def test_what_is_no_identity_is_none(text: str) -> None:
    assert ProcessId.parse(text) is None


def test_a_zombie_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 30
    while start_time(process.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert start_time(process.pid) is None
    assert process.wait(30) == 0
