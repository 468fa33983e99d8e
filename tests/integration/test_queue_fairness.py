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

    def run(self, job: bytes) -> str:
        """Whose batch a bell is for."""
        run: bytes = self.client.hget(keys.BatchKeys(job.decode()[:32]).state, "run")
        return run.decode()

    def serve(self) -> str:
        """One bell from the front; returns whose batch it was."""
        k = self.client.lpop(keys.rq_queue("grade")).decode()[:32]
        grant = take(self.queue, k, owner=f"o{len(self.order)}")
        self.queue.verdict(grant.hold, passed(0))
        self.queue.publish(grant.hold)
        self.order.append(self.run(k.encode()))
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


def calls(client: Any) -> int:
    """How many commands the server has carried out, those of scripts among them; not the question itself."""
    told: Any = client.info("commandstats")
    return sum(entry["calls"] for name, entry in told.items() if name != "cmdstat_info")


def test_a_submit_costs_the_same_however_many_runs_wait_and_however_long(each_queue: BatchQueue) -> None:
    """Also for a run that comes anew, and for one whose bells are all taken."""
    client: Any = each_queue.client
    served = Served(each_queue)

    def cost(run: str) -> int:
        before = calls(client)
        served.submit(run, 1)
        return calls(client) - before

    few = [cost(run) for run in ("first", "second", "first", "third")]
    while (served.serve()) != "third":
        pass
    few.append(cost("third"))
    for number in range(600):
        served.submit(f"run-{number}", 2)
    many = [cost(run) for run in ("run-0", "run-599", "new")]
    assert max(many) <= max(few)
    while served.serve() != "new":
        pass
    # Rounds that are over are forgotten with it, in one command more.
    assert cost("new") <= max(few) + 1
    assert served.order.index("new") < 700
    assert client.hlen(keys.rounds("grade")) <= 5


def test_runs_beyond_any_search_take_turns_too(each_queue: BatchQueue) -> None:
    served = Served(each_queue)
    for _ in range(2):
        for number in range(520):
            served.submit(f"run-{number}", 1)
    served.submit("late", 2)
    jobs: Any = served.client.lrange(keys.rq_queue("grade"), 0, -1)
    late = [at for at, job in enumerate(jobs) if served.run(job) == "late"]
    assert late == [520, 1041]


def test_a_round_whose_last_bell_is_gone_is_searched_for(each_queue: BatchQueue) -> None:
    served = Served(each_queue)
    served.submit("heavy", 4)
    served.submit("gone", 2)
    jobs: Any = served.client.lrange(keys.rq_queue("grade"), 0, -1)
    for job in jobs:
        if served.run(job) == "gone":
            served.client.lrem(keys.rq_queue("grade"), 0, job)
    served.submit("light", 3)
    jobs = served.client.lrange(keys.rq_queue("grade"), 0, -1)
    assert [served.run(job) for job in jobs] == ["heavy", "light", "heavy", "light", "heavy", "light", "heavy"]
    # The same where nothing is known of rounds any more.
    served.client.delete(keys.rounds("grade"))
    served.submit("other", 1)
    jobs = served.client.lrange(keys.rq_queue("grade"), 0, -1)
    assert [served.run(job) for job in jobs].index("other") <= 3


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
