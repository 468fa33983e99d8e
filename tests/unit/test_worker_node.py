"""What a supervisor does on the queue: its node's lease, its dead, its earlier life, and what a janitor foresees."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest

from collimate_rl.errors import RedisUnavailable
from collimate_rl.protocol import keys
from collimate_rl.queue.batches import BatchQueue
from tests.fixtures.queue_batches import bells, lapse, make_batch, overdue, put, settle, state, take, warp
from worker.backend import BackendState
from worker.janitor import JanitorRounds, forecast
from worker.names import is_supervised, worker_name
from worker.node_lease import NodeLease, NodeTaken
from worker.process import ProcessId
from worker.pulse import Pulse, bury, bury_earlier_life
from worker.settings import WorkerSettings

OWN = ProcessId.own()
DEAD = ProcessId(boot=OWN.boot, namespace=OWN.namespace, pid=OWN.pid, started=OWN.started - 1)
ELSEWHERE = ProcessId(boot="another-boot", namespace=OWN.namespace, pid=1, started=1)


@pytest.fixture
def queue() -> Iterator[BatchQueue]:
    client = fakeredis.FakeRedis()
    yield BatchQueue(client, "grade")
    client.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def never() -> bool:
    raise AssertionError("nothing to wait for")


def test_names_tell_who_gave_them() -> None:
    name = worker_name("n1", "0")
    assert name != worker_name("n1", "0")
    assert is_supervised("n1", name)
    assert not is_supervised("n", name)
    assert not is_supervised("n1", worker_name("n1", "rq123"))
    assert len(worker_name("n" * 128, "511")) <= 128


def test_a_node_has_one_supervisor(queue: BatchQueue) -> None:
    assert NodeLease(queue, "n1", OWN).take(never)
    assert NodeLease(queue, "n2", OWN).take(never)
    with pytest.raises(NodeTaken, match=str(OWN.pid)):
        NodeLease(queue, "n1", ELSEWHERE).take(never)


def test_a_dead_holder_is_replaced_at_once(queue: BatchQueue) -> None:
    assert NodeLease(queue, "n1", DEAD).take(never)
    lease = NodeLease(queue, "n1", OWN)
    assert lease.take(never)
    assert not NodeLease(queue, "n1", DEAD).renew()
    lease.release()
    assert NodeLease(queue, "n1", DEAD).renew()


def test_a_holder_that_cannot_be_seen_is_waited_for_and_then_refused(queue: BatchQueue) -> None:
    clock = Clock()
    assert NodeLease(queue, "n1", ELSEWHERE).take(never)

    def pause() -> bool:
        clock.now += 1.0
        return False

    with pytest.raises(NodeTaken, match="another machine"):
        NodeLease(queue, "n1", OWN).take(pause, clock=clock)
    assert not NodeLease(queue, "n1", OWN).take(lambda: True, clock=clock)


def test_the_dead_give_back_what_they_owned(queue: BatchQueue) -> None:
    k = put(queue, make_batch())
    queue.client.delete(keys.rq_queue("grade"))
    take(queue, k, worker="w1", node="n1")
    queue.alive({"w1": str(OWN)})
    bury(queue, queue.client, "n1", "w1", home=True)
    assert (state(queue.client, k)["status"], state(queue.client, k)["losses"]) == ("open", "1")
    assert len(bells(queue.client)) == 1
    bury(queue, queue.client, "n1", "w1", home=True)
    assert len(bells(queue.client)) == 1


def test_at_start_the_earlier_life_is_buried_and_strangers_are_left(queue: BatchQueue) -> None:
    names = {who: worker_name("n1", "0") for who in ("dead", "silent", "elsewhere")}
    names["plain"] = worker_name("n1", "rq7")
    ks = {who: put(queue, make_batch()) for who in names}
    for who, name in names.items():
        take(queue, ks[who], owner=who, worker=name, node="n1")
    queue.alive({names["dead"]: str(DEAD), names["elsewhere"]: str(ELSEWHERE), names["plain"]: str(OWN)})
    bury_earlier_life(queue, queue.client, "n1", home=False)
    found = {who: state(queue.client, k)["status"] for who, k in ks.items()}
    assert found == {"dead": "open", "silent": "open", "elsewhere": "running", "plain": "running"}


def test_an_orphan_is_killed_first(queue: BatchQueue) -> None:
    orphan = subprocess.Popen(["sleep", "60"])
    try:
        identity = ProcessId.of(orphan.pid)
        assert identity is not None
        name, k = worker_name("n1", "0"), put(queue, make_batch())
        take(queue, k, worker=name, node="n1")
        queue.alive({name: str(identity)})
        bury_earlier_life(queue, queue.client, "n1", home=False)
        assert orphan.wait(30) == -9
        assert state(queue.client, k)["status"] == "open"
    finally:
        orphan.kill()
        orphan.wait(30)


def test_the_pulse_says_who_lives_and_what_the_node_has(queue: BatchQueue) -> None:
    clock, living = Clock(), {"w1": str(OWN)}
    found = BackendState(up=True, templates=("py",), failed={"numpy": "no such module"}, isolation="namespaces")
    settings = WorkerSettings(node="n1", slots=3)
    pulse = Pulse(settings, queue, queue.client, living=lambda: living, backend=lambda: found, clock=clock)
    pulse.round()
    assert queue.who_is_alive(["w1", "w2"]) == {"w1": str(OWN)}
    beat = queue.nodes()["n1"]
    assert (beat["templates"], beat["slots"], beat["processes"], beat["pid"]) == (["py"], 3, 1, os.getpid())
    assert beat["failed_templates"] == {"numpy": "no such module"}
    queue.client.delete(keys.alive("w1"))
    pulse.round()
    assert queue.who_is_alive(["w1"]) == {}
    clock.now += 5.0
    pulse.round()
    assert queue.who_is_alive(["w1"]) == {"w1": str(OWN)}
    pulse.died("w1")
    living.clear()
    pulse.fall_silent(queue.client)
    assert queue.who_is_alive(["w1"]) == {}
    assert queue.nodes() == {}


def test_a_node_that_does_not_know_its_templates_names_none(queue: BatchQueue) -> None:
    pulse = Pulse(WorkerSettings(node="n1"), queue, queue.client, living=dict, backend=lambda: None)
    pulse.round()
    assert "templates" not in queue.nodes()["n1"]


def test_a_forecast_says_what_a_round_would_do_and_does_nothing(queue: BatchQueue) -> None:
    ks = [put(queue, make_batch(id=name)) for name in ("waiting", "lost", "late", "unlisted")]
    waiting, lost, late, unlisted = ks
    for k in (lost, late, unlisted):
        queue.client.lrem(keys.rq_queue("grade"), 0, f"{k}-1")
    take(queue, lost)
    lapse(queue, lost)
    settle(queue)
    overdue(queue, late)
    warp(queue, 60_000, *ks)
    before = {key: queue.client.dump(key) for key in queue.client.scan_iter()}
    lines = {line.split("  ")[0]: line for line in forecast(queue)}
    assert {key: queue.client.dump(key) for key in queue.client.scan_iter()} == before
    assert "would be left" in lines[waiting]
    assert "its owner is lost" in lines[lost]
    assert "would be answered" in lines[late]
    assert "would be rung again" in lines[unlisted]


def test_rounds_mend_what_is_due_and_one_janitor_leads(queue: BatchQueue) -> None:
    lost = put(queue, make_batch())
    take(queue, lost)
    lapse(queue, lost)
    settle(queue)
    late = put(queue, make_batch())
    overdue(queue, late)
    warp(queue, 60_000, lost, late)
    leader, other = JanitorRounds(queue, "j1"), JanitorRounds(queue, "j2")
    assert leader.round() == {"RELEASED": 1, "ANSWERED": 1}
    assert other.round() == {}
    leader.resign()
    warp(queue, 60_000, lost)
    assert other.round() == {"BUMPED": 1}


def test_a_burial_that_hangs_holds_no_stop_up(queue: BatchQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def hang(*_args: Any, **_options: Any) -> None:
        begun.set()
        assert over.wait(30)

    monkeypatch.setattr("worker.pulse.bury", hang)
    pulse = Pulse(WorkerSettings(node="n1"), queue, queue.client, living=dict, backend=lambda: None)
    pulse.died("w1")
    round_ = threading.Thread(target=pulse.round)
    round_.start()
    assert begun.wait(30)
    with pytest.raises(RedisUnavailable):
        pulse.fall_silent(queue.client, patience_s=0.1)
    over.set()
    round_.join(30)
    pulse.fall_silent(queue.client)
    assert queue.nodes() == {}
