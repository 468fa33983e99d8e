"""The server goes away under a producer: it waits, comes back, submits again, and nothing is lost or answered twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.protocol import Timing, keys
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import LocalRedis, find_servers
from producer import BatchHandle, Producer, as_completed
from tests.fixtures.tiny_worker import TinyWorker

WAIT_S = 60.0
SPEC = {"type": "unit_test", "tests": []}
QUICK = Timing(
    lease_ms=400, renew_every_ms=100, recheck_ms=200, look_ms=100, settle_ms=300, gap_ms=250, beat_every_ms=50
)
"""Nobody renews in these tests: a batch that a killed server interrupted is taken over when its lease ends."""


@pytest.fixture(params=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    found = find_servers()
    if request.param not in found:
        pytest.skip(f"no {request.param} server on this machine")
    return found[request.param]


def send(producer: Producer, id: str) -> BatchHandle:
    return producer.submit(template="py", candidates=["a", "b"], spec=SPEC, id=id)


def until_synced(server: LocalRedis) -> None:
    """Waits until the append-only file (fsync every second) holds what was written so far."""
    client = connect_commands(server.url)
    client.set("mark", "1")
    end = time.monotonic() + WAIT_S
    while True:
        info = client.info("persistence")
        if not info.get("aof_pending_bio_fsync") and not info.get("aof_buffer_length"):
            break
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(1.1)
    client.close()


def test_a_killed_server_comes_back_with_its_file_and_every_batch_is_answered_once(binary: Path) -> None:
    with LocalRedis(aof=True, binary=binary) as server, Producer(server.url, run="run") as producer:
        handles = [send(producer, f"b{n}") for n in range(30)]
        with TinyWorker(server.url, held=True) as worker:
            until_synced(server)
            server.kill()
            with pytest.raises(RedisUnavailable):
                send(producer, "meanwhile")
            server.start()
            worker.go()
            for handle in as_completed(handles, timeout=WAIT_S):
                assert handle.result(0).rewards() == [1.0, 1.0]
            assert send(producer, "meanwhile").result(WAIT_S).rewards() == [1.0, 1.0]
            assert max(Counter(worker.graded).values()) == 1


def test_a_server_that_lost_everything_gets_it_again(binary: Path) -> None:
    with LocalRedis(binary=binary) as server, Producer(server.url, run="run") as producer:
        handles = [send(producer, f"b{n}") for n in range(10)]
        server.kill()
        server.start()
        with TinyWorker(server.url):
            for handle in handles:
                assert handle.result(WAIT_S).rewards() == [1.0, 1.0]


def test_an_answer_given_while_the_producer_could_not_hear_it_is_found(binary: Path) -> None:
    """The stream is lost with the result in it, as a power cut may do it; the result itself is there."""
    with LocalRedis(aof=True, binary=binary) as server, Producer(server.url, run="run") as producer:
        handle = send(producer, "x")
        reader = producer._reader
        assert reader is not None
        reader.stop()
        with TinyWorker(server.url) as worker:
            client = connect_commands(server.url)
            end = time.monotonic() + WAIT_S
            while client.get(keys.BatchKeys(handle.k).done) is None:
                assert time.monotonic() < end
                time.sleep(0.02)
            client.delete(keys.results("run", producer.name))
            client.close()
            assert not handle.done()
            reader._submit_again()  # what the reader does after each outage
            assert handle.result(0).rewards() == [1.0, 1.0]
            assert len(worker.graded) == 1


def test_submitting_and_grading_go_on_through_restarts(binary: Path) -> None:
    stop = threading.Event()
    with LocalRedis(aof=True, binary=binary, options=(("appendfsync", "always"),)) as server:

        def hurt() -> None:
            for _ in range(3):
                if stop.wait(0.4):
                    return
                server.kill()
                stop.wait(0.2)
                server.start()

        chaos = threading.Thread(target=hurt)
        with (
            Producer(server.url, run="run", window=8, timing=QUICK) as producer,
            TinyWorker(server.url, timing=QUICK) as worker,
        ):
            chaos.start()
            handles = [persistent(producer, f"b{n}") for n in range(60)]
            chaos.join()
            for handle in handles:
                assert handle.result(WAIT_S).rewards() == [1.0, 1.0]
        stop.set()
        # What was published by a call whose reply the server took along is answered, and not on this worker's list.
        asked, told = {f"b{n}" for n in range(60)}, {id for id, _ in worker.graded}
        assert told <= asked
        assert len(asked - told) <= 3


def persistent(producer: Producer, id: str) -> BatchHandle:
    """As a trainer with patience: the same id again is the same batch."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return send(producer, id)
        except RedisUnavailable:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_server_out_of_memory_refuses_and_forgets_nothing(binary: Path) -> None:
    with LocalRedis(binary=binary) as server, Producer(server.url, run="run") as producer:
        handles = [send(producer, "before")]
        client = connect_commands(server.url)
        client.config_set("maxmemory", "1mb")
        with pytest.raises(QueueError, match="out of memory"):
            send(producer, "during")
        assert client.zcard(keys.pending("grade")) == 1
        with TinyWorker(server.url) as worker:
            time.sleep(0.5)
            assert not handles[0].done()
            client.config_set("maxmemory", "0")
            handles.append(send(producer, "during"))
            worker.queue.mend(handles[0].k)  # its bell was taken while it could not be claimed: look once …
            lost = keys.BatchKeys(handles[0].k).state
            client.hset(lost, "unlisted_at", 1)
            if not handles[0].done():
                worker.queue.mend(handles[0].k)  # … and again
            for handle in handles:
                assert handle.result(WAIT_S).rewards() == [1.0, 1.0]
        client.close()


def test_a_server_that_was_emptied_under_its_connections_is_asked_again(binary: Path) -> None:
    """No connection breaks, so nothing but the producer's own name tells of it."""
    timing = replace(QUICK, producer_lease_ms=1500)
    with LocalRedis(binary=binary) as server, Producer(server.url, run="run", timing=timing) as producer:
        handles = [send(producer, f"b{n}") for n in range(5)]
        with TinyWorker(server.url, held=True) as worker:
            client = connect_commands(server.url)
            client.flushall()
            worker.go()
            for handle in handles:
                assert handle.result(WAIT_S).rewards() == [1.0, 1.0]
            client.close()
