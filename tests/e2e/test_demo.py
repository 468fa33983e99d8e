"""`collimate demo`, for real: on the rows that the package ships, on public ones, and interrupted.

Of the public ones as many as there are kinds of crashes and cheats, which are taken in turn; SOAK=long takes all 24, as
`make demo` does. Each row has a candidate that goes on until its time is up.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collimate_rl.cli.candidates import _CHEATS, _CRASHES
from collimate_rl.cli.demo_command import DATA_BESIDE, ROWS
from tests.fixtures.fences import ROOT
from tests.fixtures.process_tree import descendants, identity, tcp_listeners, wait_until_gone

pytestmark = pytest.mark.usefixtures("daemon_socket")  # skips where namespaces cannot be had

ROWS_TAKEN = ROWS if os.environ.get("SOAK") == "long" else max(len(_CHEATS), len(_CRASHES))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A temporary directory with a path short enough for sockets below it; must be empty again at the end."""
    path = Path(tempfile.mkdtemp(prefix="cd-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def start(scratch: Path, *options: str, cwd: Path = ROOT) -> subprocess.Popen[str]:
    env = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(cwd), "COLUMNS": "150"}
    return subprocess.Popen(
        [sys.executable, "-m", "collimate_rl.cli", "demo", *options],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        told, _ = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
        pytest.fail(f"the demo did not end:\n{told}")
    return told


def assert_all_is_well(told: str, groups: int) -> None:
    assert f"{groups}/{groups} groups graded" in told, told
    assert re.search(rf"groups\W+{groups}\b", told), told
    assert re.search(rf"candidates\W+{groups * 8}\b", told), told
    assert re.search(r"infra errors\W+0\b", told), told
    assert re.search(r"sessions left\W+0\b", told), told
    assert told.count("1 1 1 0 0 0 0 0") == groups, told


def test_the_rows_that_the_package_ships_where_nothing_lies_beside_it(scratch: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "elsewhere" / "checkout"
    for package in ("collimate_rl", "producer", "worker"):
        # With what is compiled of them, but for what somebody compiles just now.
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("*.pyc.*"))
    process = start(scratch, cwd=checkout)
    told = finish(process)
    assert process.returncode == 0, told
    assert_all_is_well(told, groups=5)
    assert "Demo/4" in told
    assert not list(scratch.iterdir())


@pytest.mark.skipif(not (ROOT / DATA_BESIDE).is_file(), reason="no data set beside the checkout")
def test_rows_of_humaneval(scratch: Path) -> None:
    assert ROWS == 24
    process = start(scratch, *([] if ROWS_TAKEN == ROWS else ["--rows", str(ROWS_TAKEN)]))
    told = finish(process)
    assert process.returncode == 0, told
    assert_all_is_well(told, groups=ROWS_TAKEN)
    assert "HumanEval/" in told
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_all_that_it_started(scratch: Path, signum: signal.Signals) -> None:
    rows = scratch / "rows.jsonl"
    shipped = (ROOT / "collimate_rl" / "data" / "demo.jsonl").read_text()
    rows.write_text(shipped * 5)
    process = start(scratch, "--data", str(rows), "--rows", "25")
    assert process.stdout is not None
    for line in process.stdout:
        if "groups graded" in line:
            break
    else:
        pytest.fail("the demo ended before its first group")
    pids = descendants(process.pid)
    started = {one for pid in pids if (one := identity(pid))}
    assert len(started) >= 4, "Redis, daemon, supervisor and worker processes at least"
    assert not tcp_listeners(pids)
    process.send_signal(signum)
    told = finish(process)
    assert process.returncode == 128 + signum, told
    assert not wait_until_gone(started)
    rows.unlink()
    assert not list(scratch.iterdir()), told


def test_a_part_that_does_not_start_is_named_and_its_log_kept(scratch: Path) -> None:
    empty = scratch / "bin"
    empty.mkdir()
    broken = empty / "redis-server"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v=7.0.0" && exit\necho broken; exit 1\n')
    broken.chmod(0o755)
    env = {**os.environ, "TMPDIR": str(scratch), "PATH": f"{empty}:{os.environ['PATH']}"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "collimate_rl.cli", "demo", "--rows", "1"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "did not start" in done.stdout
    kept = re.search(r"logs are kept in (\S+)", done.stdout.replace("\n", ""))
    assert kept is not None, done.stdout
    assert time.monotonic() - began < 100


def test_data_of_another_form_is_bad_input(scratch: Path) -> None:
    data = scratch / "rows.jsonl"
    data.write_text('{"question": "?"}\n')
    process = start(scratch, "--data", str(data))
    told = finish(process)
    assert process.returncode == 2, told
    assert "line 1" in told
