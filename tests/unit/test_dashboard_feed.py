"""One look for everybody: how often the queue is read, what a stream says, and how many there may be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from collimate_rl.errors import RedisUnavailable
from tests.fixtures.asgi import Stream, ask
from worker.dashboard import stream as streams
from worker.dashboard.feed import Feed
from worker.dashboard.stream import EventStream


class Queue:
    """Counts how often it is read; `away` makes it fail."""

    def __init__(self) -> None:
        self.reads = 0
        self.away = False

    def read(self) -> int:
        self.reads += 1
        if self.away:
            raise RedisUnavailable("the Redis server could not be reached")
        return self.reads


def test_looks_are_shared_and_not_made_twice() -> None:
    async def scene() -> None:
        queue, now = Queue(), [0.0]
        feed = Feed(queue.read, every_s=2.0, clock=lambda: now[0], wall=lambda: 7.0)
        looks = await asyncio.gather(*(feed.look() for _ in range(20)))
        assert ({look.numbers for look in looks}, queue.reads) == ({1}, 1)
        now[0] = 1.9
        assert (await feed.look()).serial == 1
        now[0] = 2.0
        assert ((await feed.look()).serial, queue.reads) == (2, 2)

    asyncio.run(scene())


def test_an_outage_keeps_the_last_numbers_and_says_since_when() -> None:
    async def scene() -> None:
        queue, wall = Queue(), [100.0]
        feed = Feed(queue.read, every_s=0.0, wall=lambda: wall[0])
        await feed.look()
        queue.away = True
        for wall[0] in (110.0, 120.0):
            look = await feed.look()
            assert (look.numbers, look.read_at, look.since) == (1, 100.0, 110.0)
            assert ("could not be reached" in look.trouble, look.away) == (True, True)
        queue.away, wall[0] = False, 130.0
        look = await feed.look()
        assert (look.numbers, look.read_at, look.trouble, look.away, look.since) == (4, 130.0, "", False, None)

    asyncio.run(scene())


def test_what_cannot_be_understood_ends_no_watch(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        def read() -> int:
            if next(reads) == 1:
                raise ValueError("no number")
            return 7

        reads = iter(range(1000))
        feed = Feed(read, every_s=0.001)
        async with feed.watched():
            while (look := await feed.after(0, 60)) is None or not look.trouble:
                await asyncio.sleep(0)
            assert (look.numbers, look.away) == (7, False)
            assert "no number" in look.trouble
            while (look := await feed.look()).trouble:
                await asyncio.sleep(0)
        await feed.close()

    asyncio.run(scene())
    assert "a look at the queue broke off" in caplog.text


def test_nobody_watching_means_nothing_is_read() -> None:
    async def scene() -> None:
        queue = Queue()
        feed = Feed(queue.read, every_s=0.001)
        assert await feed.after(0, 0.02) is None
        assert queue.reads == 0
        async with feed.watched():
            look = await feed.after(0, 60)
            assert look is not None
            assert await feed.after(look.serial, 60) is not None
        await asyncio.sleep(0.02)
        read = queue.reads
        await asyncio.sleep(0.02)
        assert queue.reads == read
        await feed.close()

    asyncio.run(scene())


def events(feed: Feed[int]) -> Any:
    return EventStream(feed, lambda look: {"numbers": look.numbers, "trouble": look.trouble, "text": "a\nb\r\nc"})


def test_a_stream_tells_every_look_until_its_reader_leaves() -> None:
    async def scene() -> None:
        queue = Queue()
        feed = Feed(queue.read, every_s=0.001)
        reader = Stream(events(feed), "/events")
        await reader.until("event: look", 3)
        queue.away = True
        await reader.until("could not be reached")
        assert feed.watchers == 1
        reader.leave()
        await reader.ended()
        assert feed.watchers == 0
        answer = reader.answer()
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = [part for part in answer.text.split("\n\n") if "event: look" in part]
        assert [line.partition(":")[0] for line in told[0].split("\n")] == ["id", "event", "data"]
        assert json.loads(told[0].partition("data: ")[2]) == {"numbers": 1, "trouble": "", "text": "a\nb\r\nc"}
        await feed.close()

    asyncio.run(scene())


def test_one_too_many_is_told_so_and_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_CLIENTS", 2)

    async def scene() -> None:
        queue = Queue()
        feed = Feed(queue.read, every_s=0.001)
        readers = [Stream(events(feed), "/events") for _ in range(2)]
        for reader in readers:
            await reader.until("event: look")
        refused = await ask(events(feed), "/events")
        assert (refused.status, "event: full" in refused.text) == (200, True)
        assert feed.watchers == 2
        readers[0].leave()
        await readers[0].ended()
        again = Stream(events(feed), "/events")
        await again.until("event: look")
        await feed.close()
        for reader in (readers[1], again):
            await reader.ended()
        assert feed.watchers == 0

    asyncio.run(scene())


def test_a_reader_that_takes_nothing_is_let_go_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_S", 0.05)

    async def scene() -> None:
        feed = Feed(Queue().read, every_s=0.001)
        stuck, well = Stream(events(feed), "/events"), Stream(events(feed), "/events")
        await stuck.until("event: look")
        stuck.blocked = True
        await stuck.ended()
        assert feed.watchers == 1
        count = well.answer().text.count("event: look")
        await well.until("event: look", count + 2)
        await feed.close()
        await well.ended()

    asyncio.run(scene())


def test_a_quiet_stream_says_that_it_is_there_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "QUIET_S", 0.01)
    monkeypatch.setattr(streams, "LASTS_S", 0.1)

    async def scene() -> None:
        feed = Feed(Queue().read, every_s=3600.0)
        reader = Stream(events(feed), "/events")
        await reader.until(": still here")
        await reader.ended()
        assert reader.answer().text.count("event: look") == 1
        await feed.close()

    asyncio.run(scene())
