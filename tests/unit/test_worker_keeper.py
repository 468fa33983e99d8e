"""What ends the work on a claimed batch, and what the keeper does when the job is late to see it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.protocol import Timing
from collimate_rl.queue.replies import Grant, Hold, Renewed, RenewReply
from worker.keeper import PATIENCE_S, STUCK_S, Keeper, Reason

OWN = RenewReply(Renewed.OK, 12.0, False, 3600.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Queue:
    """Answers renewals in turn, the last one again and again; an exception is raised."""

    timing = Timing()

    def __init__(self, *replies: RenewReply | Exception) -> None:
        self.replies = list(replies) or [OWN]
        self.renewals = 0

    def renew(self, hold: Hold) -> RenewReply:
        self.renewals += 1
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply


class World(SimpleNamespace):
    clock: Clock
    keeper: Keeper
    stopping: float | None
    cancel: bool
    late: list[Reason]
    ticks: int
    left: int


def world(queue: Queue, *, grace_s: float = 10.0) -> World:
    made = World(clock=Clock(), stopping=None, cancel=False, late=[], ticks=0, left=0)
    grant = Grant(
        hold=Hold("0" * 32, "o", 1),
        payload=b"",
        lease_s=12.0,
        deadline_in_s=3600.0,
        queue_ms=0.0,
        verdicts={},
        ledger={},
        cautious=False,
        blame={},
        losses=0,
        errors=0,
        passes=0,
    )

    def ticked() -> None:
        made.ticks += 1

    def leave() -> None:
        made.left += 1

    given: dict[str, Any] = {
        "grace_s": grace_s,
        "stopping_for": lambda: made.stopping,
        "cancel_asked": lambda: made.cancel,
        "on_tick": ticked,
        "on_late": made.late.append,
        "leave": leave,
        "clock": made.clock,
    }
    made.keeper = Keeper(queue, grant, **given)  # type: ignore[arg-type]
    return made


def test_it_renews_every_three_seconds_and_lets_the_work_go_on() -> None:
    queue = Queue()
    w = world(queue)
    for _ in range(100):
        w.clock.now += 0.1
        w.keeper.tick()
    assert queue.renewals == 3
    assert (w.keeper.reason, w.keeper.stop.is_set(), w.ticks) == (None, False, 100)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (RenewReply(Renewed.FENCED), Reason.FENCED),
        (RenewReply(Renewed.OVERDUE), Reason.EXPIRED),
        (RenewReply(Renewed.OK, 12.0, True, 100.0), Reason.CANCELLED),
        (RenewReply(Renewed.OK, 12.0, False, -0.5), Reason.EXPIRED),
    ],
)
def test_what_a_renewal_says_stops_the_work(reply: RenewReply, reason: Reason) -> None:
    w = world(Queue(reply))
    w.clock.now += 3.0
    w.keeper.tick()
    assert (w.keeper.reason, w.keeper.stop.is_set()) == (reason, True)


def test_a_fenced_owner_renews_no_more() -> None:
    queue = Queue(RenewReply(Renewed.FENCED))
    w = world(queue)
    for _ in range(5):
        w.clock.now += 3.0
        w.keeper.tick()
    assert queue.renewals == 1


@pytest.mark.parametrize("error", [RedisUnavailable("away"), QueueError("refused")])
def test_a_renewal_that_fails_is_tried_again_and_stops_nothing(error: Exception) -> None:
    queue = Queue(error, error, OWN)
    w = world(queue)
    for _ in range(7):
        w.clock.now += 1.0
        w.keeper.tick()
    assert queue.renewals >= 2
    assert w.keeper.reason is None


def test_the_deadline_counts_even_while_the_server_is_away() -> None:
    w = world(Queue(RedisUnavailable("away")))
    w.clock.now += 3600.0
    w.keeper.tick()
    assert w.keeper.reason is Reason.EXPIRED


def test_a_cancel_through_rq_stops_the_work() -> None:
    w = world(Queue())
    w.cancel = True
    w.keeper.tick()
    assert w.keeper.reason is Reason.CANCELLED


def test_a_stopping_worker_goes_on_for_its_grace() -> None:
    w = world(Queue(), grace_s=10.0)
    w.stopping = 9.9
    w.keeper.tick()
    assert w.keeper.reason is None
    w.stopping = 10.0
    w.keeper.tick()
    assert w.keeper.reason is Reason.SHUTDOWN


def test_the_first_reason_stands_but_fenced_outranks_it() -> None:
    w = world(Queue())
    w.keeper.halt(Reason.CANCELLED)
    w.keeper.halt(Reason.EXPIRED)
    assert w.keeper.reason is Reason.CANCELLED
    w.keeper.halt(Reason.FENCED)
    assert w.keeper.reason is Reason.FENCED


def test_a_job_that_is_late_is_closed_once_from_here_and_the_lease_kept_meanwhile() -> None:
    queue = Queue()
    w = world(queue)
    w.keeper.halt(Reason.CANCELLED)
    w.keeper.tick()
    assert w.late == []
    for _ in range(65):
        w.clock.now += 0.1
        w.keeper.tick()
    assert w.late == [Reason.CANCELLED]
    assert queue.renewals == 2


def test_a_stopping_worker_waits_for_no_exec_of_a_closed_batch() -> None:
    w = world(Queue(), grace_s=10.0)
    w.keeper.halt(Reason.CANCELLED)
    w.clock.now += PATIENCE_S
    w.keeper.tick()
    assert (w.late, w.left) == ([Reason.CANCELLED], 0)
    w.stopping = 0.0
    w.keeper.tick()
    assert w.left == 1


def test_a_close_that_fails_is_tried_again() -> None:
    w = world(Queue())
    failures = [RedisUnavailable("away")]

    def late(reason: Reason) -> None:
        if failures:
            raise failures.pop()
        w.late.append(reason)

    w.keeper._on_late = late
    w.keeper.halt(Reason.EXPIRED)
    w.clock.now += PATIENCE_S
    with pytest.raises(RedisUnavailable):
        w.keeper.tick()
    w.keeper.tick()
    assert w.late == [Reason.EXPIRED]


def test_a_job_that_never_returns_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(Keeper, "_give_up", lambda _self: ended.append(1))
    w = world(Queue())
    w.keeper.exec_limit_s = 30.0
    w.keeper.halt(Reason.EXPIRED)
    w.clock.now += 30.0 + STUCK_S - 1.0
    w.keeper.tick()
    assert ended == []
    w.clock.now += 2.0
    w.keeper.tick()
    w.keeper.tick()
    assert ended == [1]


def test_its_thread_ends_with_the_work() -> None:
    w = world(Queue())
    with w.keeper:
        pass
    assert w.keeper._watch is not None
    assert w.keeper._watch.done()
