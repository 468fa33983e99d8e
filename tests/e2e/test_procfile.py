"""The Procfile, run by honcho: three parts on unix sockets, a batch through them, and nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collimate_rl import UnitTestReward
from producer import Producer
from tests.fixtures.fences import ROOT
from tests.fixtures.process_tree import descendants, identity, wait_until_gone

pytestmark = [
    pytest.mark.usefixtures("daemon_socket"),
    pytest.mark.skipif(importlib.util.find_spec("honcho") is None, reason="honcho is not installed"),
]


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cp-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_honcho_runs_the_procfile(run_dir: Path) -> None:
    env = {**os.environ, "COLLIMATE_RUN_DIR": str(run_dir), "COLLIMATE_PYTHON": sys.executable}
    log = run_dir / "honcho.log"
    with log.open("wb") as out:
        honcho = subprocess.Popen(
            [sys.executable, "-m", "honcho", "start", "--no-colour"], cwd=ROOT, env=env, stdout=out, stderr=out
        )
    started: set[tuple[int, str]] = set()
    try:
        end = time.monotonic() + 90
        while not ((run_dir / "redis.sock").exists() and (run_dir / "sandboxd.sock").exists()):
            assert honcho.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        spec = UnitTestReward([{"input": [2], "expected": 4}])
        group = ["def solve(x):\n    return x * x\n", "def solve(x):\n    return 0\n"]
        with Producer(f"unix://{run_dir}/redis.sock", run="procfile") as producer:
            result = producer.submit(template="py", candidates=group, spec=spec).result(timeout=120)
        assert result.rewards() == [1.0, 0.0], log.read_text()
        started = {one for pid in descendants(honcho.pid) if (one := identity(pid))}
        assert len(started) >= 4
    finally:
        honcho.send_signal(signal.SIGTERM)
        try:
            honcho.wait(60)
        except subprocess.TimeoutExpired:
            honcho.kill()
            honcho.wait(10)
    assert not wait_until_gone(started), log.read_text()
