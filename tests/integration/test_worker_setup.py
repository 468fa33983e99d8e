"""What a worker refuses, what it waits for, and how it shows its settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from collimate_rl.local_backend import LocalCollimateBackend
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import LocalRedis
from tests.fixtures.acl_users import as_user
from tests.fixtures.worker_batches import RIGHT, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until
from worker.__main__ import main
from worker.process import start_time

StartNode = Callable[..., Node]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "worker", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_a_server_that_may_evict_is_refused(node: StartNode, redis_url: str) -> None:
    client = connect_commands(redis_url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        started = node()
        assert started.wait() == 2
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.close()
    assert "noeviction" in started.wait_for("refused")[0]["reason"]


def test_a_backend_without_isolation_is_refused_unless_allowed(
    node: StartNode, audit: Audit, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with LocalCollimateBackend(isolation="none") as backend:
        refused = node("n1", backend=backend.base_url)
        assert refused.wait() == 2
        assert "--allow-unisolated" in refused.wait_for("refused")[0]["reason"]
        assert refused.events("process_started") == []
        allowed = node("n2", backend=backend.base_url, allow_unisolated=True)
        assert audit.rewards(audit.submit()) == [1.0, 0.0]
        assert allowed.stop() == 0


def test_one_that_comes_up_later_without_isolation_is_refused_too(node: StartNode) -> None:
    with tempfile.TemporaryDirectory(prefix="col-d-", dir="/tmp") as folder:
        socket = f"{folder}/s.sock"
        started = node(backend=f"unix:{socket}", processes=2)
        started.wait_for("worker_ready", count=2)
        started.wait_for("backend_down")
        with LocalCollimateBackend(isolation="none", unix_socket=socket):
            assert started.wait() == 2
    assert "--allow-unisolated" in started.wait_for("refused")[0]["reason"]
    assert [pid for pid in started.child_pids().values() if start_time(pid) is not None] == []


def test_a_second_supervisor_of_a_node_is_refused(node: StartNode, audit: Audit, redis_url: str) -> None:
    first = node()
    first.wait_for("worker_ready")
    k = audit.submit([slow(1.5)])
    first.wait_for("batch_claimed", k=k)
    second = Node(first.folder / "second", redis_url, "http://127.0.0.1:1", "n1").start()
    try:
        assert second.wait() == 2
    finally:
        second.end()
    assert f"pid {first.pid}" in second.wait_for("refused")[0]["reason"]
    assert audit.rewards(k) == [1.0]
    assert audit.result(k).attempts == 1


def test_a_state_directory_that_cannot_be_used_is_refused(node: StartNode, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    started = node(state_dir=str(tmp_path / "file"))
    assert started.wait() == 2
    assert "--state-dir" in started.wait_for("refused")[0]["reason"]


def test_a_server_that_denies_access_is_refused(tmp_path: Path, daemon_socket: str) -> None:
    with LocalRedis() as server:
        client = connect_commands(server.url)
        client.config_set("requirepass", "secret")
        client.close()
        started = Node(tmp_path, server.url, f"unix:{daemon_socket}").start()
        try:
            assert started.wait() == 2
            assert "user and its rights" in started.wait_for("refused")[0]["reason"]
        finally:
            started.end()


def test_a_server_that_is_not_there_is_waited_for(tmp_path: Path, daemon_socket: str) -> None:
    with LocalRedis() as server:
        server.kill()
        started = Node(tmp_path, server.url, f"unix:{daemon_socket}").start()
        try:
            started.wait_for("redis_down")
            server.start()
            audit = Audit(server.url)
            assert audit.rewards(audit.submit()) == [1.0, 0.0]
            audit.queue.client.close()
            assert started.stop() == 0
        finally:
            started.end()


def test_a_stop_while_waiting_for_the_server_is_heard(tmp_path: Path) -> None:
    started = Node(tmp_path, f"unix:{tmp_path}/none.sock", "http://127.0.0.1:1").start()
    try:
        started.wait_for("redis_down")
        assert started.stop() == 0
    finally:
        started.end()


def test_a_stop_when_the_server_went_away_is_heard(tmp_path: Path, daemon_socket: str) -> None:
    with LocalRedis() as server:
        started = Node(tmp_path, server.url, f"unix:{daemon_socket}", processes=2, grace=45).start()
        try:
            started.wait_for("worker_ready", count=2)
            server.kill()
            assert started.stop() == 0
            assert started.events("process_killed") == []
        finally:
            started.end()


def test_a_server_killed_and_restarted_under_load_loses_no_batch(tmp_path: Path, daemon_socket: str) -> None:
    with LocalRedis(aof=True) as server:
        audit = Audit(server.url)
        started = Node(tmp_path, server.url, f"unix:{daemon_socket}", processes=2, timing=HASTY).start()
        try:
            ks = [audit.submit([RIGHT, slow(0.2), WRONG], id=f"b{number}") for number in range(12)]
            started.wait_for("batch_published", count=3)
            server.kill()
            server.start()
            assert [audit.rewards(k) for k in ks] == [[1.0, 1.0, 0.0]] * 12
            assert started.stop() == 0
            audit.check_each_answered_once()
        finally:
            started.end()
            audit.queue.client.close()


def test_the_janitor_alone_tells_and_acts(audit: Audit, redis_url: str) -> None:
    k = audit.submit()
    audit.queue.client.delete("rq:queue:grade")
    audit.queue.client.zadd("col:pending:grade", {k: 0})
    told = run("janitor", "--once", "--dry-run", "--redis-url", as_user(redis_url, "worker"))
    assert (told.returncode, told.stdout.split("  ")[0]) == (0, k)
    assert audit.queue.client.zscore("col:pending:grade", k) == 0
    done = run("janitor", "--once", "--redis-url", as_user(redis_url, "worker"))
    assert (done.returncode, done.stdout) == (0, "look: 1\n")
    environment = {"COLLIMATE_REDIS_URL": as_user(redis_url, "worker"), "COLLIMATE_TIMING": HASTY}
    process = subprocess.Popen([sys.executable, "-m", "worker", "janitor"], env={**os.environ, **environment})
    try:
        audit.queue.client.zadd("col:pending:grade", {k: 0})
        until(lambda: audit.queue.client.llen("rq:queue:grade") == 1, "no bell was rung")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_the_janitor_refuses_a_server_that_is_not_there() -> None:
    done = run("janitor", "--once", "--redis-url", "unix:/nowhere/redis.sock")
    assert done.returncode == 2
    assert "could not be reached" in done.stderr


def test_config_prints_what_is_in_force_and_from_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "collimate.toml").write_text("[worker]\nslots = 7\n")
    monkeypatch.setenv("COLLIMATE_REDIS_URL", "redis://:secret@host:1/0")
    assert main(["config", "--queue", "other", "--allow-unisolated"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[worker]"
    shown = {line.split(" = ")[0]: line for line in lines[1:]}
    assert shown["slots"].split("#")[1].strip() == f"file ({tmp_path}/collimate.toml)"
    assert shown["queue"].split("#")[1].strip() == "command line (--queue)"
    assert shown["redis_url"].startswith('redis_url = "redis://:***@host:1/0"')
    assert shown["allow_unisolated"].startswith("allow_unisolated = true")
    assert shown["grace"].split("#")[1].strip() == "default"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slots", "0"], "slots must be between"),
        (["--slots", "some"], "must be a whole number, not"),
        (["--node", "a/b"], "node must match"),
        (["--config", "/nowhere.toml"], "cannot be read"),
        (["--once"], "--once goes with janitor, not with run"),
        (["--timing", "lease_ms=never"], "timing is a list"),
        (["--timing", "renew_every_ms=99999"], "a lease must outlast"),
    ],
)
def test_a_configuration_that_is_off_exits_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_option_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--no-such-option"])
    assert caught.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err
