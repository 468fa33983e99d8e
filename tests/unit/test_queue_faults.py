"""Fault points: off without their variable, a closed set, once over all processes, exactly where they are named."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from collimate_rl.queue import faults
from collimate_rl.queue.faults import POINTS, Fault, parse
from tests.fixtures.fences import ROOT

PROGRAM = """
import sys
from collimate_rl.queue import faults
for turn in range(4):
    print(turn, flush=True)
    faults.reach("noted")
    faults.reach("claimed")
"""


def run(plan: str, once: Path | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "COLLIMATE_FAULTS": plan}
    if once is not None:
        environment["COLLIMATE_FAULTS_ONCE"] = str(once)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def test_the_plan_is_read() -> None:
    assert parse("") == {}
    assert parse("noted=kill, claimed=stop@3") == {
        "noted": Fault(action="kill"),
        "claimed": Fault(action="stop", turn=3),
    }


@pytest.mark.parametrize(
    "plan", ["nowhere=kill", "noted", "noted=", "noted=raise", "noted=kill@", "noted=kill@0", "noted=kill@x", "=kill"]
)
def test_what_there_is_not_is_refused(plan: str) -> None:
    with pytest.raises(ValueError, match="COLLIMATE_FAULTS"):
        parse(plan)


def test_a_process_with_a_wrong_plan_does_not_start() -> None:
    process = run("nowhere=kill")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "which is no fault point" in err


def test_without_the_variable_nothing_happens() -> None:
    assert faults._plan == {}
    for point in POINTS:
        faults.reach(point)
    process = run("")
    assert process.communicate(timeout=60)[0].split() == ["0", "1", "2", "3"]
    assert process.returncode == 0


@pytest.mark.parametrize(("plan", "turns"), [("noted=kill", 1), ("claimed=kill@3", 3)])
def test_it_is_killed_there(plan: str, turns: int) -> None:
    process = run(plan)
    assert len(process.communicate(timeout=60)[0].split()) == turns
    assert process.returncode == -signal.SIGKILL


def test_it_stops_there_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    process = run("noted=stop@2", tmp_path)
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert (tmp_path / "noted").read_text() == f"{pid}\n"
    os.kill(pid, signal.SIGCONT)
    assert process.communicate(timeout=60)[0].split() == ["0", "1", "2", "3"]
    assert process.returncode == 0


def test_one_process_of_all_acts(tmp_path: Path) -> None:
    processes = [run("noted=kill", tmp_path) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=60)
    assert sorted(process.returncode for process in processes) == [-signal.SIGKILL, 0, 0]
    [killed] = [process.pid for process in processes if process.returncode]
    assert (tmp_path / "noted").read_text() == f"{killed}\n"


def test_every_point_is_reached_in_one_place() -> None:
    found: Counter[str] = Counter()
    for top in ("collimate_rl", "worker", "producer"):
        for path in (ROOT / top).rglob("*.py"):
            found.update(re.findall(r'faults\.reach\("(\w+)"\)', path.read_text(encoding="utf-8")))
    assert found == Counter(dict.fromkeys(POINTS, 1))
