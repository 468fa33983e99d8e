"""The pace at which calls on a trainer's loop start: a few per iteration, in order, none forgotten."""

from __future__ import annotations

import asyncio

import pytest

from collimate_rl.hooks.pacing import Pace


def test_a_few_go_on_in_each_iteration_in_the_order_they_came() -> None:
    pace = Pace(at_once=3)
    started: list[int] = []

    async def call(number: int) -> None:
        await pace.turn()
        started.append(number)

    async def run() -> list[int]:
        calls = [asyncio.ensure_future(call(number)) for number in range(10)]
        seen = []
        while not all(one.done() for one in calls):
            await asyncio.sleep(0)
            seen.append(len(started))
        return seen

    seen = asyncio.run(run())
    assert started == list(range(10))
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) == 3


def test_a_cancelled_call_keeps_nobody_waiting() -> None:
    pace = Pace(at_once=1)

    async def run() -> None:
        calls = [asyncio.ensure_future(pace.turn()) for _ in range(4)]
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.gather(calls[0], calls[2], calls[3])
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        await pace.turn()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_loop_that_died_in_between_leaves_nothing() -> None:
    pace = Pace()

    async def abandon() -> None:
        call = asyncio.ensure_future(pace.turn())
        await asyncio.sleep(0)
        call.cancel()

    for _ in range(3):
        asyncio.run(abandon())
    asyncio.run(asyncio.wait_for(pace.turn(), 60))
    assert len(pace._waiting) == 1
