"""A quiet slot keeps the node's other slots free for as long as it is held, or does without after a while."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from collimate_rl.grading.execute import ExecRequest, Role
from collimate_rl.sandbox import ExecResult
from tests.fixtures.plain_executor import answer
from worker.executor import NodeExecutor, RetryPolicy
from worker.slots import Slots, SlotTimeout

LONG_S = 60.0


def free_of(slots: Slots) -> int:
    """How many slots another process would get just now."""
    held = []
    while (number := slots._try_each()) is not None:
        held.append(number)
    for number in held:
        slots._release(number)
    return len(held)


def far() -> float:
    return time.monotonic() + LONG_S


def test_it_leaves_as_many_slots_as_it_is_told(tmp_path: Path) -> None:
    slots, elsewhere = Slots(tmp_path, 4), Slots(tmp_path, 4)
    with slots.quiet_slot(until=far(), others=1) as waited_s:
        assert waited_s >= 0.0
        assert (slots.held, free_of(elsewhere)) == (3, 1)
    assert (slots.held, free_of(elsewhere)) == (0, 4)
    with slots.quiet_slot(until=far(), others=9):
        assert slots.held == 1


def test_it_waits_until_the_others_are_done(tmp_path: Path) -> None:
    slots, elsewhere = Slots(tmp_path, 3), Slots(tmp_path, 3)
    entered = threading.Event()
    quiet = threading.Event()

    def run() -> None:
        with slots.quiet_slot(until=far(), others=1):
            entered.set()
            quiet.wait(LONG_S)

    thread = threading.Thread(target=run)
    with elsewhere.slot(until=far()), elsewhere.slot(until=far()):
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(LONG_S)
    quiet.set()
    thread.join()


def test_it_does_without_when_they_are_not(tmp_path: Path) -> None:
    slots, elsewhere = Slots(tmp_path, 3), Slots(tmp_path, 3)
    with (
        elsewhere.slot(until=far()),
        elsewhere.slot(until=far()),
        slots.quiet_slot(until=far(), others=1, patience_s=0.05),
    ):
        assert slots.held == 1
    assert slots.held == 0


@pytest.mark.parametrize("same", [True, False])
def test_one_at_a_time_is_quiet(tmp_path: Path, same: bool) -> None:
    slots = Slots(tmp_path, 4)
    other = slots if same else Slots(tmp_path, 4)
    with slots.quiet_slot(until=far(), others=1), other.quiet_slot(until=far(), others=1, patience_s=0.05):
        assert slots.held + (0 if same else other.held) == 4
    assert (slots.held, free_of(other)) == (0, 4)


def test_without_a_slot_at_all_it_times_out_like_any(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 1)
    with (
        slots.slot(until=far()),
        pytest.raises(SlotTimeout),
        slots.quiet_slot(until=time.monotonic() + 0.02, others=1),
    ):
        pass


def test_a_stop_ends_the_waiting(tmp_path: Path) -> None:
    slots, elsewhere = Slots(tmp_path, 3), Slots(tmp_path, 3)
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    with elsewhere.slot(until=far()), elsewhere.slot(until=far()), slots.quiet_slot(until=far(), others=1, stop=stop):
        assert slots.held == 1


@pytest.mark.parametrize(("quiet", "others", "held"), [(False, 1, 1), (True, 1, 3), (True, 2, 2), (True, None, 1)])
def test_what_is_run_once_more_gets_it(tmp_path: Path, quiet: bool, others: int | None, held: int) -> None:
    slots = Slots(tmp_path, 4)
    seen: list[int] = []

    class Inner:
        def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
            seen.append(slots.held)
            return answer("", 0, request)

    execute = NodeExecutor(
        Inner(),
        slots,
        RetryPolicy(),
        until=far(),
        stop=threading.Event(),
        on_retry=lambda _index, _error, _pause: None,
        quiet_others=others,
    )
    execute.run(ExecRequest(code="", quiet=quiet), role="runner", index=0)
    assert seen == [held]
    assert slots.held == 0
