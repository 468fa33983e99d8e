"""The server is cut off, or away for a while, with producer, supervisors and workers at work: all is answered, once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import Timing, keys
from collimate_rl.queue.replies import Submitted
from collimate_rl.queue.server import LocalRedis, find_servers
from producer import BatchHandle, Producer, as_completed
from tests.fixtures.leftovers import check_nothing_is_left
from tests.fixtures.queue_batches import now_ms
from tests.fixtures.recovery import execs
from tests.fixtures.worker_batches import ASKER, RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, PATIENCE_S, Node, until

OUTAGE_S = 15.0
StartNode = Callable[..., Node]


@pytest.fixture
def server() -> Iterator[LocalRedis]:
    """A server of the test's own, which forgets nothing when it is killed."""
    if not find_servers():
        pytest.skip("no Redis or Valkey server on this machine")
    with LocalRedis(aof=True, options=(("appendfsync", "always"),)) as made:
        yield made


@pytest.fixture
def redis_url(server: LocalRedis) -> str:
    return server.url


def is_settled(audit: Audit) -> bool:
    since: Any = audit.queue.client.hget(keys.clock("grade"), "since")
    return since is not None and now_ms(audit.queue) - int(since) > Timing().settle_ms


@contextmanager
def away(server: LocalRedis, how: str) -> Iterator[None]:
    """The server is away while this lasts: suspended, or killed and then started again from its file."""
    pid = server.pid
    assert pid is not None
    if how == "killed":
        server.kill()
        yield
        server.start()
        return
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def submit(producer: Producer, audit: Audit, id: str, candidates: list[str], **options: Any) -> BatchHandle:
    """A batch of the producer's that the audit asks for, too, so that its answers can be counted."""
    handle = producer.submit(template="py", candidates=candidates, spec=SPEC, id=id, **options)
    asked = replace(handle.batch, producer=ASKER)
    assert audit.queue.submit(handle.k, asked, handle.content_hash).word in (Submitted.SAME, Submitted.DONE)
    audit.ks.append(handle.k)
    return handle


def test_connections_dropped_again_and_again_lose_nothing(
    node: StartNode, audit: Audit, redis_url: str, daemon: CollimateClient
) -> None:
    started = node(processes=2, slots=8)
    started.wait_for("worker_ready", count=2)
    dropped = 0
    with Producer(redis_url, run="run", name="trainer") as producer:
        handles = [
            submit(producer, audit, f"b{n}", [RIGHT, slow(0.4), WRONG], recovery=("attach", "rerun")[n % 2])
            for n in range(16)
        ]
        for turn in range(8):
            until(lambda seen=turn: sum(h.done() for h in handles) > seen, "nothing was answered")  # type: ignore[misc]
            dropped += audit.queue.client.client_kill_filter(_type="normal", skipme=True)
        finished = list(as_completed(handles, timeout=PATIENCE_S))
        assert sorted(h.id for h in finished) == sorted(h.id for h in handles)
        for handle in handles:
            assert [v.reward for v in handle.result(0).results] == [1.0, 1.0, 0.0]
    assert dropped > 8 * 3  # the producer's, the supervisor's and the workers', every time
    assert {audit.state(k, "losses") for k in audit.ks} <= {"", "1"}
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_after_an_outage_longer_than_a_lease_owners_go_on_before_anybody_takes_over(
    node: StartNode, audit: Audit, redis_url: str, server: LocalRedis, daemon: CollimateClient, how: str
) -> None:
    """With the product's own timing: leases of 12 s, and a server that is away for 15."""
    first, second = node("n1", processes=2, slots=8), node("n2", processes=1, slots=8)
    for each, count in ((first, 2), (second, 1)):
        each.wait_for("worker_ready", count=count)
    until(lambda: is_settled(audit), "the clock never settled")
    with Producer(redis_url, run="run", name="trainer") as producer:
        owned = [
            # One finishes while the server is away, one runs on behind it, one has no session to go back to.
            submit(producer, audit, "short", [RIGHT, slow(8)], recovery="attach", timeout_seconds=60),
            submit(producer, audit, "long", [RIGHT, slow(22)], recovery="attach", timeout_seconds=60),
            submit(producer, audit, "plain", [RIGHT, slow(8)], recovery="rerun", timeout_seconds=60),
        ]
        until(lambda: [audit.queue.client.hlen(keys.BatchKeys(h.k).verdicts) for h in owned] == [1] * 3)
        until(lambda: [execs(daemon, h.k) for h in owned[:2]] == [{1: 1}] * 2)
        waiting = [submit(producer, audit, f"waiting{n}", [RIGHT, WRONG]) for n in range(6)]
        leases = [int(audit.state(h.k, "lease_until")) for h in owned]
        with away(server, how):
            time.sleep(OUTAGE_S)
        assert max(leases) < now_ms(audit.queue), "no lease would have run out"
        for handle in (*owned, *waiting):
            result = handle.result(PATIENCE_S)
            assert result.rewards() == ([1.0, 1.0] if handle in owned else [1.0, 0.0])
            assert {v.infra_error for v in result.results} == {False}
            # Nobody was taken for lost: each owner went on with its batch.
            assert audit.state(handle.k, "losses") == ""
            if handle in owned:
                assert [(v.attempt, v.recovered) for v in result.results] == [(1, "none")] * 2
    assert [first.stop(), second.stop()] == [0, 0]
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client, server_died=True)


def test_restarts_under_load_with_sessions_and_a_producer(
    node: StartNode, audit: Audit, redis_url: str, server: LocalRedis, daemon: CollimateClient
) -> None:
    started = node(processes=2, slots=8, timing=HASTY)
    started.wait_for("worker_ready", count=2)
    with Producer(redis_url, run="run", name="trainer") as producer:
        handles = [
            submit(producer, audit, f"b{n}", [RIGHT, slow(0.5), WRONG], recovery=("attach", "rerun", "auto")[n % 3])
            for n in range(18)
        ]
        for turn in range(3):
            until(lambda seen=turn: sum(h.done() for h in handles) > 3 * seen)  # type: ignore[misc]
            server.kill()
            server.start()
        for handle in handles:
            result = handle.result(PATIENCE_S)
            assert [(v.reward, v.infra_error) for v in result.results] == [(1.0, False), (1.0, False), (0.0, False)]
    assert started.stop() == 0
    audit.check_each_answered_once()
    check_nothing_is_left(audit.queue.client, server_died=True)


def test_a_server_that_is_full_again_and_again_blames_nobody(
    node: StartNode, audit: Audit, server: LocalRedis, daemon: CollimateClient
) -> None:
    """It takes no verdict then: whoever has one waits with it, as for a server that is away."""
    started = node(processes=1, slots=8, timing=HASTY)
    started.wait_for("worker_ready")
    client = audit.queue.client
    k = audit.submit([RIGHT, *(slow(1 + 2 * n) for n in range(4))], recovery="rerun")
    for judged in range(1, 5):
        until(lambda least=judged: client.hlen(keys.BatchKeys(k).verdicts) >= least)  # type: ignore[misc]
        client.config_set("maxmemory", "1mb")
        try:
            time.sleep(2.5)
        finally:
            client.config_set("maxmemory", "0")
    assert audit.rewards(k) == [1.0] * 5
    assert audit.state(k, "losses") == ""
    assert [v.attempt for v in audit.result(k).results] == [1] * 5
    # What a worker could not take off, since the server refused it, the janitor does.
    until(lambda: client.llen(keys.rq_intermediate("grade")) == 0, "a bell stayed")
    assert started.stop() == 0
    assert started.events("batch_error") == []
    audit.check_each_answered_once()
    check_nothing_is_left(client)
