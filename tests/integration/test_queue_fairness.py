"""Runs take turns on the queue: counts of what is served before what, one bell at a time."""

from __future__ import annotations

from typing import Any

from collimate_rl.protocol import keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Mode, Submitted
from collimate_rl.queue.rq_edge import listed_batches
from tests.fixtures.queue_batches import key_of, make_batch, passed, put, take, warp

WINDOW = 64


class Served:
    """A queue and one worker that serves bells in their order; whose they were is written down."""

    def __init__(self, queue: BatchQueue) -> None:
        self.queue = queue
        self.client: Any = queue.client
        self.order: list[str] = []

    def submit(self, run: str, count: int) -> int:
        """How many of so many batches found room in the run's window."""
        for number in range(count):
            batch = make_batch(run=run, k=1)
            if self.queue.submit(key_of(batch), batch, "0" * 64, window=WINDOW).word is Submitted.WINDOW:
                return number
        return count

    def serve(self) -> str:
        """One bell from the front; returns whose batch it was."""
        k = self.client.lpop(keys.rq_queue("grade")).decode()[:32]
        grant = take(self.queue, k, owner=f"o{len(self.order)}")
        self.queue.verdict(grant.hold, passed(0))
        self.queue.publish(grant.hold)
        run: bytes = self.client.hget(keys.BatchKeys(k).state, "run")
        self.order.append(run.decode())
        return self.order[-1]

    def serve_until(self, run: str, count: int) -> int:
        """Serves until so many of `run` were; the others submit anew whenever they have room. Returns how many of
        others came first."""
        mine = others = 0
        while mine < count:
            served = self.serve()
            mine += served == run
            others += served != run
            if served != run:
                self.submit(served, 1)
        return others


def test_a_run_with_everything_to_submit_delays_ten_batches_by_ten(each_queue: BatchQueue) -> None:
    served = Served(each_queue)
    assert served.submit("heavy", 10_000) == WINDOW
    assert served.submit("light", 10) == 10
    # In turns: one of the heavy run's before each, and the one at the front had its turn before.
    assert served.serve_until("light", 10) == 10
    assert len(listed_batches(each_queue.client, "grade")) == WINDOW


def test_three_runs_take_turns(each_queue: BatchQueue) -> None:
    served = Served(each_queue)
    for run in ("a", "b", "c"):
        served.submit(run, 20)
    for _ in range(30):
        served.serve()
    assert [served.order.count(run) for run in ("a", "b", "c")] == [10, 10, 10]


def test_a_stream_of_single_batches_does_not_starve_a_run(each_queue: BatchQueue) -> None:
    served = Served(each_queue)
    served.submit("long", 20)
    for number in range(60):
        served.submit(f"single-{number}", 1)
        if number % 3 == 2:  # three come while two are served
            served.serve()
            served.serve()
    assert served.order.count("long") >= 5


def test_a_run_alone_keeps_its_order(each_queue: BatchQueue) -> None:
    served = Served(each_queue)
    ks = [put(each_queue, make_batch(run="alone", k=1)) for _ in range(20)]
    jobs: Any = served.client.lrange(keys.rq_queue("grade"), 0, -1)
    assert [job.decode()[:32] for job in jobs] == ks


def test_what_comes_back_to_the_back_takes_its_turn_too(each_queue: BatchQueue) -> None:
    served = Served(each_queue)
    k = put(each_queue, make_batch(run="light", k=1))
    served.client.lpop(keys.rq_queue("grade"))
    each_queue.release(take(each_queue, k).hold, Mode.PASS)
    served.submit("heavy", WINDOW)
    warp(each_queue, 60_000, k)
    each_queue.mend(k)
    assert served.serve_until("light", 1) == 1


def test_lists_with_strangers_jobs_are_searched_all_the_same(each_queue: BatchQueue) -> None:
    served = Served(each_queue)
    served.submit("heavy", 4)
    served.client.rpush(keys.rq_queue("grade"), "no-bell-of-ours", "f" * 32 + "-1")
    served.client.set(keys.BatchKeys("f" * 32).state, "no hash")
    served.submit("light", 2)
    jobs: Any = served.client.lrange(keys.rq_queue("grade"), 0, -1)
    runs = [served.client.hget(keys.BatchKeys(job.decode()[:32]).state, "run") for job in jobs if b"f" * 32 not in job]
    assert runs.index(b"light") == 1
    assert [run for run in runs if run] == [b"heavy", b"light", b"heavy", b"light", b"heavy", b"heavy"]
