"""The product on a server that deploy/redis sets up: each program does its work as its user, and no user may do more.

The whole of the queue's tests can run so as well: REDIS_ACL=1.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError

from collimate_rl.errors import QueueError
from collimate_rl.queue.batch_list import list_batches
from collimate_rl.queue.batch_view import read_batch
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.numbers import read_numbers
from collimate_rl.queue.overview import look_at
from collimate_rl.queue.replies import Submitted
from collimate_rl.queue.server import find_servers
from collimate_rl.queue.server_check import check_server
from producer import Producer
from tests.fixtures.acl_users import USERS, GuardedRedis, as_user, password
from tests.fixtures.fences import ROOT
from tests.fixtures.queue_batches import key_of, make_batch, put, take
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.worker_batches import ENDLESS, RIGHT, SPEC, WRONG, slow
from tests.fixtures.worker_nodes import HASTY, Node, hasty_timing, until
from worker import quarantine


class DeployedRedis(GuardedRedis):
    """A server that reads deploy/redis/redis.conf; only where its files and its socket lie is told besides."""

    @property
    def command(self) -> list[str]:
        told = super().command
        given = dict(zip(told[1::2], told[2::2], strict=True))
        here = ("--port", "--unixsocket", "--unixsocketperm", "--dir", "--logfile", "--aclfile")
        conf = str(ROOT / "deploy/redis/redis.conf")
        return [told[0], conf, *(part for name in here for part in (name, given[name]))]


@pytest.fixture(scope="module", params=["redis", "valkey"])
def each_server(request: pytest.FixtureRequest) -> Iterator[DeployedRedis]:
    found = find_servers()
    if request.param not in found:
        pytest.skip(f"no {request.param} server on this machine")
    with DeployedRedis(binary=found[request.param]) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[DeployedRedis]:
    if not find_servers():
        pytest.skip("no redis server on this machine")
    with DeployedRedis() as server:
        yield server


@pytest.fixture(scope="module")
def worked(server: DeployedRedis, sandbox_daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A node that works there as `worker`."""
    folder: Path = tmp_path_factory.mktemp("acl")
    backend = f"unix:{sandbox_daemon.socket_path}"
    node = Node(folder, server.url_of("worker"), backend, processes=2, slots=8, timing=HASTY)
    try:
        node.start().wait_for("worker_ready", count=2)
        yield node
        assert node.stop() == 0
        assert node.events("loop_failed") == []
    finally:
        node.end()


@pytest.fixture
def unrefused(server: DeployedRedis) -> Iterator[None]:
    """Nobody is refused anything meanwhile."""
    server.denials()
    yield
    assert server.denials() == []


def queue_of(server: GuardedRedis, user: str, queue: str = "grade") -> BatchQueue:
    return BatchQueue(connect_commands(server.url_of(user)), queue, timing=hasty_timing())


def rewards(handle: Any) -> list[float | None]:
    return [verdict.reward for verdict in handle.result(60).results]


def test_groups_are_graded_recovered_cancelled_and_seen(server: DeployedRedis, worked: Node, unrefused: None) -> None:
    with Producer(server.url_of("producer"), run="acl", timing=hasty_timing()) as producer:

        def submit(*candidates: str, **fields: Any) -> Any:
            return producer.submit(template="py", candidates=candidates, spec=SPEC, **fields)

        assert rewards(submit(RIGHT, WRONG, id="first")) == [1.0, 0.0]
        assert rewards(submit(RIGHT, WRONG, id="first")) == [1.0, 0.0]
        held = submit(slow(4), id="held", recovery="attach", timeout_seconds=40)
        owner = worked.wait_for("batch_claimed", k=held.k)[0]["worker"]
        os.kill(worked.child_pids()[owner], signal.SIGKILL)
        worked.wait_for("buried", buried=owner)
        assert rewards(held) == [1.0]
        stopped = submit(ENDLESS, id="stopped", timeout_seconds=100)
        worked.wait_for("batch_claimed", k=stopped.k)
        stopped.cancel()
        assert stopped.result(60).status.value == "cancelled"
        seen = queue_of(server, "dashboard")
        until(
            lambda: len(list_batches(seen)) == 3 and read_numbers(seen).uncounted == 0, "the answers were not counted"
        )
    assert [(run.name, run.submitted, run.unanswered) for run in read_numbers(seen).runs] == [("acl", 3, 0)]
    assert [view.name for view in look_at(seen).nodes] == ["n1"]
    assert {line.id for line in list_batches(seen)} == {"first", "held", "stopped"}
    first = read_batch(seen, key_of(make_batch(run="acl", id="first")))
    assert first is not None
    assert len(first.candidates) == 2
    seen.client.close()


def test_the_operator_looks_after_what_is_quarantined_and_purges(server: DeployedRedis, unrefused: None) -> None:
    trained, works, operated = (queue_of(server, user, "q2") for user in ("producer", "worker", "operator"))
    k = put(trained, make_batch(run="poison", id="p", k=1))
    for turn in range(3):
        grant = take(works, k, owner=f"o{turn}", worker="n9-w", node="n9")
        works.mark(grant.hold, 0)
        works.bury("n9", "n9-w")
    assert k in quarantine.run(operated, ["list"], as_json=False)
    assert "return x + 0" in quarantine.run(operated, ["show", k], as_json=False)
    assert Submitted.NEW.value in quarantine.run(operated, ["release", k], as_json=True)
    with Producer(server.url_of("operator"), run="poison", queue="q2", timing=hasty_timing()) as producer:
        assert producer.purge_run(wait_s=0.1).batches == 2
    assert check_server(operated.client)
    assert trained.depth() == 0
    for queue in (trained, works, operated):
        queue.client.close()


def test_a_trainer_may_not_purge(server: DeployedRedis) -> None:
    with (
        Producer(server.url_of("producer"), run="other", timing=hasty_timing()) as producer,
        pytest.raises(QueueError, match=r"refused to look for .*; check the URL's user and its rights"),
    ):
        producer.purge_run(wait_s=0.1)


REFUSED: dict[str, tuple[str, ...]] = {
    "producer": (
        "SET col:alive:n1-0-x 1",
        "HSET col:clock:grade last 0",
        "SET col:node:n1 {}",
        "ZREM col:nodes:grade n1",
        "DEL col:lease:janitor:grade",
        "HGETALL rq:worker:n1-0-x",
        "HGETALL col:tally:grade",
        "HGETALL col:cache:acl",
        "SCAN 0",
        "EVAL return(redis.call('keys','*')) 0",
        "EVAL return(redis.call('set','other','1')) 0",
    ),
    "worker": (
        "GET col:cursor:acl:p",
        "XREAD STREAMS col:results:acl:p 0",
        "XTRIM col:results:acl:p MAXLEN 0",
        "DEL col:lease:producer:acl:p",
        "GET anybody:elses",
        "SCAN 0",
        "SUBSCRIBE other",
    ),
    "dashboard": (
        "GET col:cases:0",
        "XRANGE col:results:acl:p - +",
        "GET col:lease:producer:acl:p",
        "SMEMBERS col:askers:0",
        "HGETALL rq:job:0-1",
        "SET col:done:0 x",
        "DEL col:state:0",
        "HSET col:state:0 cancel 1",
        "EXPIRE col:state:0 1",
        "EVAL return(1) 0",
        "EVALSHA 0000000000000000000000000000000000000000 0",
        "SCRIPT LOAD return(1)",
        "SUBSCRIBE rq:pubsub:n1",
        "SCAN 0",
    ),
    "operator": ("GET anybody:elses", "HGETALL rq:worker:n1-0-x", "SUBSCRIBE rq:pubsub:n1"),
    "probe": ("GET col:done:0", "INFO", "TIME", "EVAL return(1) 0", "SCAN 0"),
}
EVERYBODY = (
    "FLUSHALL",
    "FLUSHDB",
    "KEYS *",
    "CONFIG GET *",
    "CONFIG SET maxmemory-policy allkeys-lru",
    "SHUTDOWN NOSAVE",
    "MONITOR",
    "ACL WHOAMI",
    "ACL SETUSER x on nopass +@all ~*",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal",
    "SCRIPT FLUSH",
    "REPLICAOF h 1",
    "MODULE LIST",
    "SAVE",
    "PUBLISH rq:pubsub:n1 x",
)


@pytest.mark.parametrize("user", REFUSED)
def test_what_each_user_is_refused(each_server: DeployedRedis, user: str) -> None:
    url = each_server.url_of("worker")
    client = connect_commands(url.replace(f"worker:{password('worker')}", f"{user}:{password(user)}"))
    assert client.ping() is True
    for words in (*REFUSED[user], *EVERYBODY):
        # A script's refusal comes as its own error.
        with pytest.raises(Exception, match=r"(?i)no permission|can't (access|run)") as caught:
            client.execute_command(*words.split())
        assert isinstance(caught.value, NoPermissionError) or words.startswith("EVAL"), (words, caught.value)
    client.close()


def test_nobody_comes_in_without_name_and_password(each_server: DeployedRedis) -> None:
    anybody = connect_commands(f"unix://{each_server.socket_path}", retries=0)
    with pytest.raises(AuthenticationError):
        anybody.ping()
    for user in USERS:
        for wrong in ("wrong", password("admin" if user != "admin" else "worker")):
            client = connect_commands(f"unix://{user}:{wrong}@{each_server.socket_path}", retries=0)
            with pytest.raises(AuthenticationError):
                client.ping()
            client.close()
    anybody.close()
    with pytest.raises(QueueError, match="check the URL's user and its rights"):
        Producer(as_user(each_server.url, "producer").replace("of-the-tests", "of-others"), run="x").open()


def test_a_killed_server_knows_its_batches_again(each_server: DeployedRedis) -> None:
    """It loads its append-only file as the user `default`, and says only in its log what that one may not do."""
    queue = queue_of(each_server, "producer")
    k = put(queue, make_batch(run="kept"))
    before = read_batch(queue, k)
    queue.client.close()
    each_server.kill()
    each_server.start()
    queue = queue_of(each_server, "producer")
    after = read_batch(queue, k)
    assert before is not None
    assert after is not None
    assert (after.status, after.candidates, queue.depth()) == ("open", before.candidates, 1)
    assert "NOPERM" not in each_server.log_path.read_text()
    assert queue.cancel(k).value == "ANSWERED"
    queue.client.close()


def test_the_server_is_as_its_file_says(each_server: DeployedRedis) -> None:
    admin = connect_commands(each_server.url)
    assert check_server(admin)
    wanted = {
        "maxmemory-policy": "noeviction",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "protected-mode": "yes",
        "save": "",
        "maxmemory": str(4 << 30),
        "databases": "1",
        "enable-debug-command": "no",
    }
    assert {name: admin.config_get(name)[name] for name in wanted} == wanted
    assert (each_server.directory / "appendonlydir").is_dir()
    admin.close()
