"""What readiness is made of, and what a supervisor's numbers say of it; on clocks that the test turns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.numbers import Numbers
from worker import metrics
from worker.answer_counts import flags_of
from worker.backend import BackendState
from worker.health import TURN_S
from worker.monitor import STALE_S, Facts, Monitor
from worker.pause import Pause
from worker.settings import WorkerSettings
from worker.tally import Board

WALL = 1_700_000_000.0
WELL = Facts(redis_down=None, heartbeat_at=WALL, living=1, pause=None, leads=False, stopping=False)
DRAIN = Pause(reason="it drains", template=None, draining=True, since=940.0, look_at=1000.0, anyway_at=None)


class World:
    """A monitor, and what it is told. `now` is both clocks' distance from their start."""

    def __init__(self, queue: BatchQueue) -> None:
        self.now = 0.0
        self.facts = WELL
        self.board = Board(1)
        self.monitor = Monitor(
            WorkerSettings(slots=4, processes=1),
            queue,
            self.board,
            lambda: self.facts,
            clock=lambda: 1000.0 + self.now,
            wall=lambda: WALL + self.now,
        )
        self.board.place(0).set(metrics.PROCESSES_READY, 1)
        self.probed(BackendState(up=True))

    def probed(self, state: BackendState) -> None:
        self.monitor._probed = (1000.0 + self.now, state)

    def failing(self) -> dict[str, str]:
        page = self.monitor._readyz()
        told: dict[str, Any] = json.loads(page.body)
        failed = {name: each["reason"] for name, each in told["checks"].items() if not each["ok"]}
        assert (page.status, told["ready"]) == ((503, False) if failed else (200, True))
        return failed

    def number(self, family: metrics.Family, value: str = "") -> float:
        self.monitor._gather(self.facts)
        return self.board.sums()[family.name][value][0]


@pytest.fixture
def world() -> Iterator[World]:
    made = World(BatchQueue(connect_commands("unix:/nowhere/redis.sock")))  # connects when it is first asked
    yield made
    made.board.close()


@pytest.mark.parametrize("port", [-2, 65_536])
def test_a_port_that_cannot_be_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="metrics_port"):
        WorkerSettings(metrics_port=port)


def test_all_well_is_ready(world: World) -> None:
    assert world.failing() == {}
    assert world.number(metrics.REDIS_UP) == world.number(metrics.BACKEND_UP) == 1


def test_each_thing_that_is_wrong_is_named_with_its_reason(world: World) -> None:
    world.facts = replace(
        WELL, redis_down="connection refused", pause=replace(DRAIN, draining=False, reason="no daemon"), stopping=True
    )
    world.probed(BackendState(up=False, reason="unreachable"))
    world.board.place(0).clear_gauges()
    assert world.failing() == {
        "running": "it is stopping",
        "redis": "connection refused",
        "backend": "unreachable",
        "intake": "paused: no daemon",
        "workers": "none of 1 worker processes takes jobs yet",
    }


def test_nothing_is_taken_for_granted_before_it_was_seen(world: World) -> None:
    world.facts = replace(WELL, heartbeat_at=None)
    world.monitor._probed = None
    assert set(world.failing()) == {"redis", "backend"}


def test_a_server_that_hangs_is_away(world: World) -> None:
    world.now = 14.0
    assert "redis" not in world.failing()
    world.now = 16.0
    assert world.failing()["redis"] == "the server took the last heartbeat 16 s ago"


def test_a_daemon_that_is_full_is_up_and_one_that_hangs_is_not(world: World) -> None:
    world.probed(BackendState(up=False, reason="at capacity", busy=True))
    assert "backend" not in world.failing()
    world.facts = replace(WELL, heartbeat_at=WALL + STALE_S + 1)
    world.now = STALE_S + 1
    assert "it hangs" in world.failing()["backend"]
    assert world.number(metrics.BACKEND_UP) == 0


def test_a_pause_tells_why_and_since_when(world: World) -> None:
    assert world.number(metrics.PAUSED_SINCE) != world.number(metrics.PAUSED_SINCE)  # NaN: it says nothing
    world.facts = replace(WELL, pause=DRAIN)
    assert world.failing() == {"intake": "draining: it drains"}
    assert world.number(metrics.PAUSED, "draining") == 1
    assert world.number(metrics.PAUSED, "away") == 0
    assert world.number(metrics.PAUSED_SINCE) == WALL - 60
    world.now = 5.0
    assert world.number(metrics.PAUSED_SINCE) == WALL - 60


def test_it_lives_while_its_loop_turns(world: World) -> None:
    world.now = TURN_S - 1
    assert world.monitor._healthz().status == 200
    world.now = TURN_S + 1
    assert world.monitor._healthz().status == 503
    world.monitor.turn()
    assert json.loads(world.monitor._healthz().body) == {"alive": True, "loop_turned_seconds_ago": 0.0}


def test_what_the_queue_holds_is_told_while_it_is_read_and_left_out_else(world: World) -> None:
    assert math.isnan(world.number(metrics.QUEUE_WAITING))
    world.monitor._show_the_queue(
        cast(
            Numbers,
            SimpleNamespace(
                unanswered=9,
                queued=6,
                in_flight=3,
                lossy=1,
                oldest_s=None,
                settled=True,
                quarantined=4,
                nodes=[
                    SimpleNamespace(heartbeat_s=0.5, up=True),
                    SimpleNamespace(heartbeat_s=1.0, up=False),
                    SimpleNamespace(heartbeat_s=None, up=None),
                ],
            ),
        ),
        0.25,
    )
    told = [world.number(family) for family in metrics.OF_THE_QUEUE]
    assert told == [9, 6, 3, 1, 0, 1, 2, 1, 4, 0.25]
    world.monitor._read_the_queue()  # another's janitor leads by now
    assert all(math.isnan(world.number(family)) for family in metrics.OF_THE_QUEUE)


def test_a_janitor_cut_off_from_the_server_leads_nothing(world: World) -> None:
    world.facts = replace(WELL, leads=True)
    assert world.number(metrics.JANITOR_LEADING) == 1
    world.facts = replace(WELL, leads=True, redis_down="gone")
    assert world.number(metrics.JANITOR_LEADING) == 0


@pytest.mark.parametrize(
    ("given", "status", "codes"),
    [
        ({"judged": {0, 1, 2}, "quarantined": set()}, "graded", {}),
        ({"judged": {0, 2}, "quarantined": set(), "failed": {1: "unreachable"}}, "partial", {"unreachable": 1}),
        ({"judged": {0, 2}, "quarantined": {1}}, "quarantined", {"quarantined": 1}),
        ({"judged": {0}, "quarantined": {1}, "failed": {2: "x"}}, "partial", {"quarantined": 1, "x": 1}),
        ({"judged": {0}, "quarantined": {1}, "failed": {1: "x", 2: "x"}}, "partial", {"quarantined": 1, "x": 1}),
        ({"judged": {0}, "quarantined": {0}, "fill": "expired"}, "expired", {"expired": 2}),
        ({"judged": set(), "quarantined": {1}, "fill": "bad_request"}, "failed", {"bad_request": 2, "quarantined": 1}),
        ({"judged": {0, 2}, "quarantined": {1}, "fill": "cancelled"}, "quarantined", {"quarantined": 1}),
        ({"judged": {0, 1, 2}, "quarantined": set(), "fill": "cancelled"}, "graded", {}),
    ],
    ids=["graded", "partial", "quarantined", "both", "given", "expired", "filled", "poison", "late"],
)
def test_an_answer_counts_as_the_script_makes_it(given: dict[str, Any], status: str, codes: dict[str, int]) -> None:
    """Held against the script itself by the integration tests; here each of its cases."""
    found, counted = flags_of(3, **given)
    assert (found.value, dict(counted)) == (status, codes)


def test_a_batch_that_cannot_be_read_has_a_status_alone() -> None:
    found, counted = flags_of(None, judged=(), quarantined=(), fill="bad_request")
    assert (found.value, dict(counted)) == ("failed", {})
