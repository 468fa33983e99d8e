"""Every Python snippet of the documentation is run as it stands, but for addresses, and prints what it says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collimate_rl import CollimateClient
from collimate_rl.cli.processes import Child
from collimate_rl.errors import CollimateError
from tests.fixtures.fences import ROOT, Fence, fences
from tests.fixtures.local_gateways import RunningGateway

SNIPPETS = [fence for fence in fences() if fence.language == "python"]


def needing(what: str) -> list[Fence]:
    return [fence for fence in SNIPPETS if fence.run == what]


def run(fence: Fence, code: str, directory: Path, **env: str) -> None:
    script = directory / "snippet.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{fence}:\n{done.stdout}{done.stderr}"
    if fence.prints is not None:
        assert done.stdout == fence.prints, f"{fence} says that it prints otherwise"


@pytest.mark.parametrize("fence", needing("daemon"), ids=str)
def test_snippets_that_need_a_daemon(fence: Fence, daemon_socket: str, tmp_path: Path) -> None:
    run(fence, fence.code, tmp_path, COLLIMATE_SERVE_SOCKET=str(daemon_socket))


@pytest.mark.parametrize("fence", needing("gateway"), ids=str)
def test_snippets_that_need_a_gateway(fence: Fence, local_gateway: RunningGateway, tmp_path: Path) -> None:
    key, origin = local_gateway.key("pro"), local_gateway.base_url
    run(fence, fence.code, tmp_path, COLLIMATE_API_KEY=key, COLLIMATE_BASE_URL=origin)


@pytest.mark.parametrize("fence", needing("queue"), ids=str)
def test_snippets_that_need_the_queue(fence: Fence, served_queue: str, tmp_path: Path) -> None:
    code = fence.code.replace("unix:run/redis.sock", served_queue)
    assert code != fence.code
    run(fence, code, tmp_path)


@pytest.mark.parametrize("fence", needing("unserved"), ids=str)
def test_snippets_on_a_queue_that_no_node_serves(fence: Fence, redis_url: str, tmp_path: Path) -> None:
    code = fence.code.replace("unix:run/redis.sock", redis_url)
    assert code != fence.code
    run(fence, code, tmp_path)


@pytest.fixture
def tour_port(daemon_socket: str, tmp_path: Path) -> Iterator[int]:
    """The daemon of the tour, started as the README says, on another port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    argv = [sys.executable, "-m", "collimate_rl.local_backend", "--port", str(port)]
    daemon = Child.start("sandbox daemon", argv, tmp_path / "daemon.log")
    try:
        end = time.monotonic() + 60
        while True:
            try:
                CollimateClient(f"http://127.0.0.1:{port}", retries=0).health()
                break
            except CollimateError:
                assert daemon.exit_code is None, daemon.last_words()
                assert time.monotonic() < end, daemon.last_words()
                time.sleep(0.1)
        yield port
    finally:
        daemon.stop()


@pytest.mark.parametrize("fence", needing("tour"), ids=str)
def test_the_thirty_second_tour(fence: Fence, tour_port: int, tmp_path: Path) -> None:
    code = fence.code.replace("127.0.0.1:8080", f"127.0.0.1:{tour_port}")
    assert code != fence.code
    run(fence, code, tmp_path)
