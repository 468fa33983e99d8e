"""Janitors in processes of their own: by lease, so that two never act at once; a look changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from collimate_rl.client import CollimateClient
from collimate_rl.protocol import keys
from tests.fixtures.acl_users import as_user
from tests.fixtures.model_store import Dump
from tests.fixtures.own_daemon import OwnDaemon
from tests.fixtures.worker_batches import RIGHT, Audit
from tests.fixtures.worker_nodes import HASTY, PATIENCE_S, until
from worker.ledger import SessionLabel

StartJanitor = Callable[..., "Janitor"]


class Janitor:
    """`python -m worker janitor`, and what it logs."""

    def __init__(self, log: Path, *options: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "worker", "janitor", "--log-format", "json", *options]
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, "COLLIMATE_TIMING": HASTY},
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def end(self, number: signal.Signals) -> int:
        if number != signal.SIGKILL:
            until(lambda: self.process.poll() is not None or catches(self.process.pid, number), "it never listened")
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for it: one that starts up has none yet."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split(None, 1)[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.fixture
def janitor(tmp_path: Path, redis_url: str) -> Iterator[StartJanitor]:
    """Starts janitors; options are those of the command line."""
    started: list[Janitor] = []

    def start(*options: str) -> Janitor:
        started.append(
            Janitor(tmp_path / f"janitor-{len(started)}.log", "--redis-url", as_user(redis_url, "worker"), *options)
        )
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)
        print(f"--- {each.log.name}\n{each.log.read_text()[-3000:]}")


def test_of_two_queue_janitors_one_acts_and_the_other_follows_when_it_dies(janitor: StartJanitor, audit: Audit) -> None:
    both = [janitor("--node", "n1"), janitor("--node", "n2")]
    until(lambda: any(each.events("janitor_leads") for each in both), "nobody leads")
    client = audit.queue.client
    ks = [audit.submit([RIGHT], id=f"b{n}") for n in range(20)]
    for rings in ("2", "3"):
        client.delete(keys.rq_queue("grade"))
        until(lambda want=rings: {audit.state(k, "rings") for k in ks} == {want})  # type: ignore[misc]
        listed: Any = client.lrange(keys.rq_queue("grade"), 0, -1)
        assert sorted(job.decode()[:32] for job in listed) == sorted(ks)  # each once
        leaders = [each for each in both if each.events("janitor_leads") and each.process.poll() is None]
        assert len(leaders) == 1
        if rings == "2":
            leaders[0].end(signal.SIGKILL)
            until(lambda: all(each.events("janitor_leads") for each in both), "nobody took over")
    for k in ks:
        audit.queue.cancel(k)
    audit.check_each_answered_once()
    assert [each.end(signal.SIGTERM) for each in both if each.process.poll() is None] == [0]


def test_of_two_session_janitors_of_a_node_each_session_is_reaped_by_one(
    janitor: StartJanitor, audit: Audit, own_daemon: OwnDaemon
) -> None:
    client = own_daemon.serve()
    k = audit.submit([RIGHT] * 12)
    audit.queue.cancel(k)
    sessions = [made(client, SessionLabel(k=k, index=index, fence=1)) for index in range(12)]
    stranger = client.create_session("py")["session_id"]
    both = [janitor("--node", "n1", "--backend", own_daemon.backend) for _ in range(2)]
    until(lambda: [s["session_id"] for s in client.list_sessions()] == [stranger], "they were not reaped")
    reaped = until(lambda: sessions_reaped(both, at_least=12), "it was not told")
    assert sorted(reaped) == sorted(sessions)
    assert [each.end(signal.SIGTERM) for each in both] == [0, 0]
    assert [s["session_id"] for s in client.list_sessions()] == [stranger]
    client.close()


def sessions_reaped(janitors: list[Janitor], at_least: int) -> list[str]:
    found = [event["session"] for each in janitors for event in each.events("session_reaped")]
    return found if len(found) >= at_least else []


def made(client: CollimateClient, label: SessionLabel) -> str:
    return str(client.create_session("py", label=str(label))["session_id"])


def everything(redis: Redis) -> dict[str, Any]:
    """Every key with what it holds, in an order of its own."""
    held = Dump(redis).values.items()
    return {name: sorted(map(repr, value)) if isinstance(value, list) else value for name, value in held}


def test_a_dry_run_changes_nothing_anywhere(audit: Audit, redis_url: str, own_daemon: OwnDaemon) -> None:
    client = own_daemon.serve()
    k, done = audit.submit([RIGHT], id="lost"), audit.submit([RIGHT], id="done")
    audit.queue.cancel(done)
    session = made(client, SessionLabel(k=done, index=0, fence=1))
    redis = audit.queue.client
    redis.delete(keys.rq_queue("grade"))
    redis.zadd(keys.pending("grade"), {k: 0})
    redis.lpush(keys.rq_intermediate("grade"), f"{done}-1")
    before = everything(redis)
    command = [sys.executable, "-m", "worker", "janitor", "--once", "--dry-run", "--node", "n1"]
    told = subprocess.run(
        [*command, "--redis-url", as_user(redis_url, "worker"), "--backend", own_daemon.backend],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert k in told
    assert session in told
    assert everything(redis) == before
    assert [s["session_id"] for s in client.list_sessions()] == [session]
    client.close()
