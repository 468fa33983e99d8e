"""rq's edge, with real rq workers in processes: bells, stops, deaths, hostile jobs, the intermediate list."""

from __future__ import annotations

import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from redis import Redis
from rq.command import send_stop_job_command

from collimate_rl.protocol import keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.janitor import MAX_DUE, QueueJanitor
from collimate_rl.queue.replies import Buried, Mended
from collimate_rl.queue.rq_edge import (
    JOB_FUNCTION,
    BellQueue,
    IntermediateSweep,
    MsgpackSerializer,
    clear_worker,
    listed_batches,
)
from collimate_rl.queue.server import LocalRedis
from tests.fixtures.queue_batches import bells, lapse, make_batch, passed, put, settle, take, warp

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0


@pytest.fixture
def queue(redis_url: str) -> Iterator[BatchQueue]:
    client = connect_commands(redis_url)
    yield BatchQueue(client)
    client.close()


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


@contextmanager
def worker(url: str, name: str = "w1", mode: str = "grade") -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fixtures.bell_worker", url, name, mode],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def job(client: Redis, job_id: str, data: bytes, **fields: str) -> None:
    client.hset(
        f"rq:job:{job_id}", mapping={"data": data, "status": "queued", "origin": "grade", "timeout": "-1", **fields}
    )
    client.rpush(keys.rq_queue("grade"), job_id)


def test_bells_are_answered_and_leave_only_what_expires(queue: BatchQueue, redis_url: str) -> None:
    ks = [put(queue, make_batch()) for _ in range(20)]
    with worker(redis_url, mode="burst") as process:
        assert process.wait(WAIT_S) == 0
    assert queue.depth() == 0
    assert all(queue.result(k) for k in ks)
    assert queue.client.lrange(keys.rq_intermediate("grade"), 0, -1) == []
    for k in ks:
        assert queue.client.hget(f"rq:job:{k}-1", "status") == b"finished"
        assert 0 < queue.client.ttl(f"rq:job:{k}-1") <= 60
    assert queue.client.smembers("rq:workers") == set()


def test_doubled_and_stray_bells_are_harmless(queue: BatchQueue, redis_url: str) -> None:
    k = put(queue, make_batch())
    queue.client.rpush(keys.rq_queue("grade"), f"{k}-1", f"{k}-7", "no-bell-of-ours")
    with worker(redis_url, mode="burst") as process:
        assert process.wait(WAIT_S) == 0
    assert queue.client.xlen(keys.results("run", "p")) == 1
    assert queue.client.lrange("test:claimed", 0, -1) == [k.encode()]


def test_stops_under_load_leave_no_bell_behind(queue: BatchQueue, redis_url: str) -> None:
    dice = random.Random(5)
    ks = [put(queue, make_batch()) for _ in range(120)]
    for n in range(4):
        with worker(redis_url, f"w{n}", "slow") as process:
            claimed = queue.client.llen("test:claimed")
            until(lambda before=claimed: queue.client.llen("test:claimed") > before or not queue.depth())
            time.sleep(dice.uniform(0, 0.1))
            process.send_signal(signal.SIGTERM)
            if dice.random() < 0.5:
                process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
        assert queue.client.lrange(keys.rq_intermediate("grade"), 0, -1) == []
        answered = [k for k in ks if queue.result(k)]
        assert len(answered) + len(bells(queue.client)) == len(ks)


def test_a_worker_killed_in_its_job_is_buried_and_cleared(queue: BatchQueue, redis_url: str) -> None:
    k = put(queue, make_batch())
    with worker(redis_url, "w1", "die") as process:
        assert process.wait(WAIT_S) == -signal.SIGKILL
    assert queue.bury("n1", "w1") == (Buried.RELEASED, k)
    assert clear_worker(queue.client, "grade", "w1") == [f"{k}-1"]
    assert clear_worker(queue.client, "grade", "w1") == []
    left = {raw.decode() for raw in queue.client.keys("rq:*")}
    assert not [key for key in left if "w1" in key or "execution" in key]
    assert queue.client.hget(f"rq:job:{k}-1", "status") == b"failed"
    assert queue.client.zcard("rq:wip:grade") == 0
    with worker(redis_url, "w2", "burst") as process:
        assert process.wait(WAIT_S) == 0
    result = queue.result(k)
    assert result is not None
    assert (result.rewards(), result.attempts, result.worker) == ([1.0, 1.0], 2, "w2")


def test_a_dead_worker_is_cleared_of_bells_that_were_answered_alone(queue: BatchQueue) -> None:
    client = queue.client
    ks = [put(queue, make_batch()) for _ in range(3)]
    answered, owned, waiting = ks
    for _ in ks:
        client.lmove(keys.rq_queue("grade"), keys.rq_intermediate("grade"))
    client.rpush(keys.rq_intermediate("grade"), "no-bell-of-ours")
    grant = take(queue, answered, "o", "w1", "n1")
    for index in range(2):
        queue.verdict(grant.hold, passed(index))
    queue.publish(grant.hold)
    assert clear_worker(client, "grade", "w1", k=owned) == [f"{answered}-1", f"{owned}-1"]
    assert set(client.lrange(keys.rq_intermediate("grade"), 0, -1)) == {f"{waiting}-1".encode(), b"no-bell-of-ours"}
    assert [client.ttl(keys.rq_job(f"{k}-1")) > 60 for k in ks] == [False, False, True]


@pytest.mark.parametrize(("mode", "cuts"), [("cut", b"1"), ("cut-twice", b"2")])
def test_rq_hears_of_a_jobs_end_though_connections_break_then(
    queue: BatchQueue, redis_url: str, mode: str, cuts: bytes
) -> None:
    k = put(queue, make_batch())
    with worker(redis_url, "w1", mode) as process:
        until(lambda: queue.client.get("test:cut") == cuts)
        until(lambda: not [*queue.client.scan_iter("rq:execution*"), *queue.client.scan_iter("rq:worker:*:executions")])
        assert queue.client.zcard("rq:wip:grade") == queue.client.llen(keys.rq_intermediate("grade")) == 0
        assert process.poll() is None
    assert queue.result(k) is not None


def test_clearing_survives_job_hashes_that_have_vanished(queue: BatchQueue, redis_url: str) -> None:
    k = put(queue, make_batch())
    with worker(redis_url, "w1", "die") as process:
        process.wait(WAIT_S)
    queue.client.delete(f"rq:job:{k}-1")
    queue.client.hset(f"rq:job:{k}-1", "last_heartbeat", "a heartbeat after the hash expired")
    assert clear_worker(queue.client, "grade", "w1") == [f"{k}-1"]
    assert not queue.client.exists(f"rq:job:{k}-1")
    assert queue.client.zcard("rq:wip:grade") == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("created_at", "yesterday"), ("status", "rung"), ("timeout", "soon"), ("result_ttl", b"\xff"), ("data", "{")],
)
def test_a_job_hash_that_rq_cannot_read_keeps_nobody_unburied(
    queue: BatchQueue, redis_url: str, field: str, value: Any
) -> None:
    k = put(queue, make_batch())
    with worker(redis_url, "w1", "die") as process:
        process.wait(WAIT_S)
    queue.client.hset(f"rq:job:{k}-1", field, value)
    queue.client.sadd("rq:worker:w1:executions", b"\xff\xfe", "no:entry:of rq's")
    assert clear_worker(queue.client, "grade", "w1") == [f"{k}-1"]
    assert queue.client.zcard("rq:wip:grade") == 0
    assert not queue.client.exists("rq:worker:w1:executions")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('/tmp/col-evil-pickle', 'w').close()",)


def test_hostile_jobs_run_nothing_and_the_worker_goes_on(queue: BatchQueue, redis_url: str, tmp_path: Path) -> None:
    mark = tmp_path / "evil"
    touch = f"touch {mark}"
    client, dumps = queue.client, MsgpackSerializer.dumps
    job(client, "a" * 32 + "-1", pickle.dumps(Evil()))
    job(client, "b" * 32 + "-1", dumps(("os.system", None, [touch], {})))
    job(client, "c" * 32 + "-1", dumps((JOB_FUNCTION, "instance", [], {})), success_callback_name="os.getpid")
    job(
        client,
        "d" * 32 + "-1",
        dumps((JOB_FUNCTION, None, [touch], {})),
        success_callback_name="os.system",
        failure_callback_name="os.system",
        webhooks='[{"url": "http://127.0.0.1:1/"}]',
        repeats_left="5",
        retries_left="5",
        number_of_retries="0",
        group_id="g",
    )
    job(client, "evil", dumps((JOB_FUNCTION, None, [], {})))
    job(client, "e" * 32 + "-1", b"\xc1")
    job(client, "f" * 32 + "-1", msgpack.packb({"not": "a tuple"}))
    k = put(queue, make_batch())
    with worker(redis_url, mode="burst") as process:
        assert process.wait(WAIT_S) == 0
    assert not mark.exists()
    assert not Path("/tmp/col-evil-pickle").exists()
    assert queue.result(k) is not None
    assert queue.client.lrange("test:claimed", 0, -1) == [k.encode()]
    assert queue.client.llen(keys.rq_queue("grade")) == 0


def test_a_paused_worker_leaves_bells_on_the_list_and_can_be_stopped(queue: BatchQueue, redis_url: str) -> None:
    k = put(queue, make_batch())
    with worker(redis_url, "w1", "paused") as process:
        until(lambda: queue.client.exists("rq:worker:w1"))
        time.sleep(0.3)
        assert bells(queue.client) == [f"{k}-1"]
        queue.client.set("test:go", "1")
        until(lambda: queue.result(k))
        queue.client.delete("test:go")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_an_idle_worker_can_be_stopped_while_the_server_is_away() -> None:
    with LocalRedis() as server, worker(server.url) as process:
        client = connect_commands(server.url)
        until(lambda: client.hget("rq:worker:w1", "state") == b"idle")
        client.close()
        server.kill()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_rqs_stop_command_sets_the_cancel_event_and_kills_nothing(queue: BatchQueue, redis_url: str) -> None:
    k = put(queue, make_batch())
    with worker(redis_url, "w1", "cancel") as process:
        until(lambda: queue.client.get("test:running"))
        send_stop_job_command(queue.client, f"{k}-1", serializer=MsgpackSerializer)
        until(lambda: queue.client.get("test:cancelled") is not None)
        assert queue.client.get("test:cancelled") == b"1"
        until(lambda: queue.result(k))
        assert process.poll() is None


def test_the_intermediate_list_is_swept_of_what_nobody_is_at(queue: BatchQueue) -> None:
    k, busy = put(queue, make_batch()), put(queue, make_batch())
    for _ in (k, busy):
        queue.client.lmove(keys.rq_queue("grade"), keys.rq_intermediate("grade"))
    queue.client.zadd(f"rq:executions:{busy}-1", {"execution": 2e9})
    t = 0.0
    sweep = IntermediateSweep(queue.client, "grade", look_s=4.0, clock=lambda: t)
    assert sweep.sweep() == []
    t = 3.9
    assert sweep.sweep() == []
    t = 4.0
    assert sweep.sweep() == [f"{k}-1"]
    assert queue.client.lrange(keys.rq_intermediate("grade"), 0, -1) == [f"{busy}-1".encode()]
    assert not queue.client.exists(f"rq:job:{k}-1")
    assert sweep.sweep() == []


def test_thousands_that_wait_in_order_hide_none_that_is_lost(queue: BatchQueue) -> None:
    lost = put(queue, make_batch())
    take(queue, lost, "o", "w1", "n1")
    waiting = [put(queue, make_batch(), window=3 * MAX_DUE) for _ in range(2 * MAX_DUE + 1)]
    settle(queue)
    lapse(queue, lost)
    queue.client.zadd(keys.pending("grade"), dict.fromkeys(waiting, 1) | {lost: 2})  # first come, first seen
    done = QueueJanitor(queue, "j").run_once()
    assert (done.mended, done.bumped) == ({Mended.RELEASED: 1}, len(waiting))


def test_what_others_push_onto_the_lists_stops_no_janitor(queue: BatchQueue) -> None:
    k = put(queue, make_batch())
    t = 0.0
    janitor = QueueJanitor(queue, "j", clock=lambda: t)
    settle(queue)
    warp(queue, 10_001, k)
    junk = (b"\xff\xfe", b"", b"a job of somebody's")
    queue.client.rpush(keys.rq_queue("grade"), *junk)
    queue.client.rpush(keys.rq_intermediate("grade"), *junk)
    queue.client.zadd(keys.pending("grade"), {"no batch": 0, "": 0})
    assert janitor.run_once().bumped == 1
    assert queue.client.zrange(keys.pending("grade"), 0, -1) == [k.encode()]
    t = 4.0
    assert len(janitor.run_once().swept) == len(junk)
    assert queue.client.llen(keys.rq_intermediate("grade")) == 0
    assert listed_batches(queue.client, "grade") == {k}


def test_a_bell_lost_on_the_way_is_rung_again_by_the_janitor(queue: BatchQueue, redis_url: str) -> None:
    k = put(queue, make_batch())
    queue.client.lmove(keys.rq_queue("grade"), keys.rq_intermediate("grade"))  # and its worker died
    t = 0.0
    janitor = QueueJanitor(queue, "j", clock=lambda: t)
    settle(queue)
    warp(queue, 10_001, k)
    assert janitor.run_once().mended == {Mended.LOOK: 1}
    warp(queue, 4_001, k)
    t = 4.1
    done = janitor.run_once()
    assert (done.mended, done.swept) == ({Mended.RUNG: 1}, (f"{k}-1",))
    assert listed_batches(queue.client, "grade") == {k}
    with worker(redis_url, mode="burst") as process:
        assert process.wait(WAIT_S) == 0
    assert queue.result(k) is not None


def test_rqs_own_maintenance_marks_no_bell_that_was_popped(queue: BatchQueue) -> None:
    k = put(queue, make_batch())
    queue.client.lmove(keys.rq_queue("grade"), keys.rq_intermediate("grade"), "LEFT", "RIGHT")
    client: Any = queue.client
    before = set(client.keys("rq:*"))
    BellQueue("grade", connection=queue.client).intermediate_queue.cleanup(None, None)
    assert set(client.keys("rq:*")) == before
    assert client.lrange(keys.rq_intermediate("grade"), 0, -1) == [f"{k}-1".encode()]
