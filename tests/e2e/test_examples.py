"""The examples run as they stand: inline with a daemon of their own, and through a queue when one is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collimate_rl.hooks.settings import HookSettings
from tests.fixtures.fences import ROOT

EXAMPLES = ("slime", "skyrl", "trl", "verl")
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in {f"COLLIMATE_{setting.upper()}" for setting in (*HookSettings.__dataclass_fields__, "serve_socket")}
}


def run(name: str, directory: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name / "run.py")],
        env={**ENVIRONMENT, **environment},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(re.findall(r"^\d\.\d\d", done.stdout, re.MULTILINE))


def expected(name: str) -> list[str]:
    return ["1.00", "1.00"] if name == "skyrl" else ["0.00", "0.67", "1.00", "1.00"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_with_a_daemon_of_its_own(name: str, daemon_socket: str, tmp_path: Path) -> None:
    if name == "skyrl":
        pytest.importorskip("skyrl_gym", reason="needs the extra [skyrl]")
    assert run(name, tmp_path) == expected(name)


def test_the_same_examples_go_over_a_queue(served_queue: str, tmp_path: Path) -> None:
    for name in EXAMPLES:
        assert run(name, tmp_path, COLLIMATE_REDIS_URL=served_queue) == expected(name)


def test_make_runs_them_all() -> None:
    target = re.search(r"^examples:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert target is not None
    assert all(name in target[1] for name in (*EXAMPLES, "examples/openenv/run.py"))
    assert {path.parent.name for path in (ROOT / "examples").glob("*/run.py")} == {*EXAMPLES, "openenv"}
