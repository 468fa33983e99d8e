"""A node's slots: never more holders than slots, freed by release or by the holder's death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.slots import Slots, SlotTimeout


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[Slots]:
    held = Slots(tmp_path / "slots", 2)
    yield held
    held.close()


def soon() -> float:
    return time.monotonic() + 0.05


def later() -> float:
    return time.monotonic() + 30


def test_no_more_holders_than_slots(slots: Slots) -> None:
    with slots.slot(until=later()), slots.slot(until=later()):
        assert slots.held == 2
        with pytest.raises(SlotTimeout), slots.slot(until=soon()):
            pytest.fail("a third holder")
    assert slots.held == 0
    with slots.slot(until=soon()) as waited:
        assert waited >= 0.0


def test_a_stop_ends_the_wait(slots: Slots) -> None:
    stop = threading.Event()
    with slots.slot(until=later()), slots.slot(until=later()):
        threading.Timer(0.05, stop.set).start()
        with pytest.raises(SlotTimeout, match="asked to stop"), slots.slot(until=later(), stop=stop):
            pytest.fail("a third holder")


def test_many_threads_share_two_slots(slots: Slots) -> None:
    guard = threading.Lock()
    inside, most, done = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, done
        with slots.slot(until=later()):
            with guard:
                inside += 1
                most = max(most, inside)
            time.sleep(0.002)
            with guard:
                inside -= 1
                done += 1

    threads = [threading.Thread(target=work) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (done, most) == (24, 2)


def test_a_killed_holder_frees_its_slots(slots: Slots, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from worker.slots import Slots\n"
        "s = Slots(Path(sys.argv[1]), 2); t = time.monotonic() + 30\n"
        "with s.slot(until=t), s.slot(until=t):\n print('held', flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "slots")], stdout=subprocess.PIPE, cwd=os.getcwd()
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(SlotTimeout), slots.slot(until=soon()):
            pytest.fail("a slot of another process")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
        holder.stdout.close()
    with slots.slot(until=later()), slots.slot(until=later()):
        assert slots.held == 2


def test_a_node_has_a_slot(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        Slots(tmp_path, 0)
