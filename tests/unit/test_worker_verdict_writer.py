"""Verdicts that come soon after each other are written together: in which calls, and what becomes of each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fakeredis
import pytest

import worker.verdict_writer
from collimate_rl.errors import RedisUnavailable
from collimate_rl.protocol import keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.endings import Packed
from collimate_rl.queue.replies import Hold, Published, Written
from tests.fixtures.queue_batches import lapse, make_batch, passed, put, settle, take
from worker.verdict_writer import HELD_BYTES, VerdictWriter

HELD_S = 1.0
SIZE = 4


class Bench:
    """A batch of four that is claimed, its writer, and the indices that each call to the queue carried."""

    def __init__(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue = BatchQueue(client)
        self.k = put(self.queue, make_batch(k=SIZE))
        self.hold: Hold = take(self.queue, self.k).hold
        self.now = 100.0
        self.calls: list[tuple[str, list[int]]] = []
        self.before: Callable[[], None] = lambda: None
        self.stands: list[int] = []
        for name in ("write_together", "end_with"):
            monkeypatch.setattr(worker.verdict_writer, name, self._noted(name, getattr(worker.verdict_writer, name)))
        monkeypatch.setattr(worker.verdict_writer, "persist", lambda call: call())
        self.writer = self.another()

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(queue: BatchQueue, hold: Hold, verdicts: Sequence[Any]) -> Any:
            self.calls.append((name, [packed.verdict.index for packed in verdicts]))
            self.before()
            return call(queue, hold, verdicts)

        return noted

    def another(self, held_s: float = HELD_S) -> VerdictWriter:
        return VerdictWriter(self.queue, self.hold, held_s=held_s, on_stands=self.stands.append, clock=lambda: self.now)

    def outcomes(self) -> list[tuple[int, object]]:
        found: list[tuple[int, object]] = []
        while (outcome := self.writer.next_outcome()) is not None:
            found.append((outcome.verdict.index, outcome.came))
        return found

    def written(self) -> set[int]:
        return {int(index) for index in self.queue.client.hkeys(keys.BatchKeys(self.k).verdicts)}

    def usurped(self) -> None:
        lapse(self.queue, self.k)
        settle(self.queue)
        take(self.queue, self.k, owner="other")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    client = fakeredis.FakeRedis()
    yield Bench(client, monkeypatch)
    client.close()


class Door:
    """A lock that says when somebody comes to it."""

    def __init__(self) -> None:
        self.came = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()


def away() -> None:
    raise RedisUnavailable("the server is away")


def test_those_that_come_within_the_time_go_in_one_call_in_their_order(bench: Bench) -> None:
    for index in (2, 0):
        bench.writer.put(passed(index))
    assert (bench.calls, bench.written()) == ([], set())
    bench.now += HELD_S
    bench.writer.put(passed(1))
    assert bench.calls == [("write_together", [2, 0, 1])]
    assert (bench.written(), bench.stands) == ({0, 1, 2}, [2, 0, 1])
    assert bench.outcomes() == [(2, Written.ACCEPTED), (0, Written.ACCEPTED), (1, Written.ACCEPTED)]
    assert bench.outcomes() == []
    # The time counts anew, from the next that comes.
    bench.now += HELD_S
    bench.writer.put(passed(3))
    assert len(bench.calls) == 1
    bench.writer.flush()
    bench.writer.flush()
    assert bench.calls[1:] == [("write_together", [3])]


def test_without_such_a_time_each_goes_by_itself(bench: Bench) -> None:
    bench.writer = bench.another(held_s=0.0)
    for index in range(SIZE - 1):
        bench.writer.put(passed(index))
    assert bench.calls == [("write_together", [0]), ("write_together", [1]), ("write_together", [2])]
    reply = bench.writer.end(passed(3))
    assert reply is not None
    assert (reply.word, bench.calls[3:]) == (Published.OK, [("end_with", [3])])


def test_the_last_brings_all_that_wait_and_the_answer(bench: Bench) -> None:
    for index in range(SIZE - 1):
        bench.writer.put(passed(index))
    reply = bench.writer.end(passed(SIZE - 1))
    assert reply is not None
    assert (reply.word, bench.calls) == (Published.OK, [("end_with", [0, 1, 2, 3])])
    assert bench.outcomes() == [(index, Written.ACCEPTED) for index in range(SIZE)]
    result = bench.queue.result(bench.k)
    assert result is not None
    assert [verdict.reward for verdict in result.results] == [1.0] * SIZE


def test_many_bytes_do_not_wait(bench: Bench) -> None:
    large = [Packed.of(passed(index, detail="y" * 4000)) for index in range(SIZE)]
    many = -(-HELD_BYTES // len(large[0].blob))
    for number in range(many):  # the same ones again and again
        assert bench.calls == []
        bench.writer.put(large[number % SIZE].verdict)
    assert [len(indices) for _, indices in bench.calls] == [many]
    assert bench.written() == set(range(SIZE))


def test_the_tick_writes_what_waits_for_long_and_nothing_else(bench: Bench) -> None:
    assert bench.writer.flush_due() == []
    bench.writer.put(passed(0))
    assert bench.writer.flush_due() == []
    assert bench.calls == []
    bench.now += HELD_S
    assert bench.writer.flush_due() == [(passed(0), Written.ACCEPTED)]
    assert bench.writer.flush_due() == []
    assert bench.outcomes() == []
    assert (bench.calls, bench.written(), bench.stands) == ([("write_together", [0])], {0}, [0])


def test_the_tick_tries_once_while_the_server_is_away_and_nothing_is_lost(bench: Bench) -> None:
    bench.writer.put(passed(0))
    bench.now += HELD_S
    bench.before = away
    assert bench.writer.flush_due() == []
    assert (len(bench.calls), bench.outcomes(), bench.stands) == (1, [], [])
    bench.before = lambda: None
    assert bench.writer.flush_due() == [(passed(0), Written.ACCEPTED)]
    assert bench.written() == {0}


def test_a_server_that_stays_away_is_told_and_what_waits_is_written_later(bench: Bench) -> None:
    bench.writer.put(passed(0))
    bench.before = away
    with pytest.raises(RedisUnavailable):
        bench.writer.flush()
    with pytest.raises(RedisUnavailable):
        bench.writer.end(passed(1))
    bench.before = lambda: None
    bench.writer.flush()
    assert bench.calls[-1] == ("write_together", [0, 1])
    assert bench.written() == {0, 1}


def test_who_waited_for_a_call_that_failed_has_waited_long_enough(bench: Bench) -> None:
    """Else each thread of a batch would try for its own time, one after the other."""
    begun, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        assert go_on.wait(60)
        away()

    def flush(told: list[BaseException]) -> None:
        try:
            bench.writer.flush()
        except RedisUnavailable as error:
            told.append(error)

    bench.writer.put(passed(0))
    bench.before = hold_up
    bench.writer._sending = door = Door()  # type: ignore[assignment]
    told: list[BaseException] = []
    threads = [threading.Thread(target=flush, args=(told,)) for _ in range(2)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    for _ in threads:
        assert door.came.acquire(timeout=60)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert (len(told), len(bench.calls)) == (2, 1)
    bench.before = lambda: None
    bench.writer.flush()
    assert bench.written() == {0}


def test_one_that_the_queue_will_not_have_keeps_no_other_back(bench: Bench) -> None:
    for index in (0, SIZE, 1):
        bench.writer.put(passed(index))
    bench.writer.flush()
    assert bench.calls == [("write_together", each) for each in ([0, SIZE, 1], [0], [SIZE], [1])]
    assert (bench.written(), bench.stands) == ({0, 1}, [0, 1])
    (first, refused, last) = bench.outcomes()
    assert (first, last) == ((0, Written.ACCEPTED), (1, Written.ACCEPTED))
    assert refused[0] == SIZE
    assert isinstance(refused[1], ValueError)
    assert bench.writer.end(passed(SIZE)) is None
    bench.writer.flush()
    assert bench.calls[4:] == [("end_with", [SIZE]), ("write_together", [SIZE])]


def test_a_last_verdict_stands_though_its_answer_is_refused(bench: Bench) -> None:
    for index in range(SIZE - 1):
        bench.writer.put(passed(index))
    bench.writer.flush()
    bench.queue.client.set(keys.answers("grade"), "no stream")
    assert bench.writer.end(passed(SIZE - 1)) is None
    assert bench.outcomes() == [(index, Written.ACCEPTED) for index in range(SIZE)]
    assert (bench.written(), bench.stands) == (set(range(SIZE)), list(range(SIZE)))


def test_after_somebody_took_the_batch_over_only_what_stands_is_accepted(bench: Bench) -> None:
    bench.writer.put(passed(0))
    bench.writer.flush()
    bench.usurped()
    for verdict in (passed(0), passed(0, 0.5), passed(1)):
        bench.writer.put(verdict)
    bench.writer.flush()
    assert bench.writer.fenced
    assert bench.outcomes()[1:] == [(0, Written.ACCEPTED), (0, Written.STANDS), (1, Written.FENCED)]
    assert bench.written() == {0}
