"""A supervisor's end: what is said in which order, and how often a server that hangs is asked for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import fakeredis
import pytest
from redis import Connection, ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry

from collimate_rl.protocol import keys
from collimate_rl.queue.batches import BatchQueue
from tests.fixtures.queue_batches import make_batch, put, state, take
from worker import parting
from worker.janitor import JanitorRounds
from worker.node_lease import NodeLease
from worker.parting import ALL_S, ANSWER_S, ROUNDS_S, Parting
from worker.periodic import Periodic
from worker.process import ProcessId
from worker.pulse import Pulse
from worker.session_janitor import SessionJanitor
from worker.settings import WorkerSettings

OWN = ProcessId.own()
SETTINGS = WorkerSettings(node="n1", backend="unix:/nowhere/serve.sock")


@dataclass
class World:
    """One supervisor whose processes are gone. Time passes where something hangs, and in pauses."""

    queue: BatchQueue
    now: float = 0.0
    asked: list[float] = field(default_factory=list)
    """When a server that hangs was asked."""

    def __post_init__(self) -> None:
        self.pulse = Pulse(SETTINGS, self.queue, self.queue.client, living=dict, backend=lambda: None, clock=self.clock)
        self.janitor = JanitorRounds(self.queue, str(OWN))
        self.lease = NodeLease(self.queue, "n1", OWN)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def hanging(self, _url: str) -> Redis:
        """A client for a server that takes connections and answers nothing: the way it is when it is suspended."""
        world = self

        class Hanging(Connection):
            def connect(self) -> None:
                world.asked.append(world.now)
                world.now += ANSWER_S
                raise RedisTimeout("no answer")

        return Redis(connection_pool=ConnectionPool(connection_class=Hanging, retry=Retry(NoBackoff(), 0)))

    def end(self, *, killed: bool, hangs: bool = False, loops: Sequence[Periodic] = ()) -> None:
        Parting(
            SETTINGS,
            self.queue,
            OWN,
            pulse=self.pulse,
            janitor=self.janitor,
            lease=self.lease,
            loops=loops,
            connect=self.hanging if hangs else lambda _url: self.queue.client,
            clock=self.clock,
            sleep=self.sleep,
        ).end(killed=killed)


@pytest.fixture
def world() -> Iterator[World]:
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    yield World(BatchQueue(client, "grade"))
    client.close()


@pytest.fixture(autouse=True)
def sessions(world: World, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the session janitor was made with, and what was on the queue when its round came."""
    made: list[dict[str, Any]] = []

    class Asked:
        def round(self) -> int:
            made[-1] |= {"nodes": world.queue.nodes(), "lease": world.queue.client.get(keys.lease("node:n1"))}
            world.now += ANSWER_S  # the daemon hangs
            return 0

        def resign(self) -> None:
            made[-1]["resigned"] = True

    def for_node(*_given: object, **options: Any) -> Asked:
        made.append(options)
        return Asked()

    monkeypatch.setattr(SessionJanitor, "for_node", for_node)
    return made


class Stuck(Periodic):
    """A round under way that doesn't end."""

    def __init__(self, world: World, told: list[str]) -> None:
        super().__init__("stuck", 1.0, lambda: None)
        self._world = world
        self._told = told
        self.waited = 0.0

    def end(self) -> None:
        self._told.append("end")

    def stop(self, timeout_s: float) -> bool:
        self._told.append("stop")
        self.waited += timeout_s
        self._world.now += timeout_s
        return False


def test_the_queue_is_told_before_the_daemon_is_asked(world: World, sessions: list[dict[str, Any]]) -> None:
    k = put(world.queue, make_batch())
    take(world.queue, k, worker="w1", node="n1")
    world.pulse.round()
    assert world.lease.renew()
    world.janitor.round()
    assert world.janitor.leads
    world.pulse.died("w1")
    world.end(killed=True)
    assert state(world.queue.client, k)["status"] == "open"
    assert sessions == [{"timeout_s": ANSWER_S, "retries": 0, "nodes": {}, "lease": None, "resigned": True}]
    assert world.queue.client.get(keys.lease("janitor:grade")) is None


@pytest.mark.parametrize(("killed", "times"), [(True, 2), (False, 1)], ids=["killed", "by themselves"])
def test_a_server_that_hangs_is_asked_a_few_times_and_then_left(
    world: World, sessions: list[dict[str, Any]], killed: bool, times: int
) -> None:
    if killed:
        world.pulse.died("w1")
    world.end(killed=killed, hangs=True)
    assert len(world.asked) == times
    assert world.asked[-1] < ALL_S
    assert world.now <= ALL_S + ANSWER_S
    # Neither the leases nor the daemon: whoever would be asked next hangs as well, or can do nothing.
    assert sessions == []


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "by themselves"])
def test_rounds_that_hang_share_one_wait_and_all_are_told_first(world: World, killed: bool) -> None:
    told: list[str] = []
    loops = [Stuck(world, told) for _ in range(4)]
    world.end(killed=killed, hangs=True, loops=loops)
    assert told == ["end"] * 4 + ["stop"] * 4
    assert sum(loop.waited for loop in loops) == ROUNDS_S
    assert len(world.asked) == 1
    assert world.asked[-1] < ALL_S
    assert world.now <= ALL_S + ANSWER_S


def test_what_it_connects_with_waits_shortly_and_repeats_nothing() -> None:
    client = parting.connect_shortly("redis://127.0.0.1:1/0")
    told = client.connection_pool.connection_kwargs
    assert (told["socket_timeout"], told["socket_connect_timeout"]) == (ANSWER_S, ANSWER_S)
    assert told["retry"].get_retries() == 0
    client.close()
