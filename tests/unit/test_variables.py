"""Variables of the environment that look like ours and are none are told, by whoever starts, and refused nowhere."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from collimate_rl import _variables
from collimate_rl._variables import KNOWN, unknown, warn_once
from collimate_rl.hooks.settings import HookSettings
from worker.settings import WorkerSettings, environment_name

ROOT = Path(__file__).parents[2]
MISSPELLED = {"COLLIMATE_SLOT": "4", "COLLIMATE_REDIS_ULR": "redis://:secret@h", "PATH": "/bin"}
TOLD = (
    "nothing of collimate-rl reads COLLIMATE_REDIS_ULR (did you mean COLLIMATE_REDIS_URL?), "
    "COLLIMATE_SLOT (did you mean COLLIMATE_SLOTS?) of the environment"
)


def test_the_known_ones_are_those_that_are_read() -> None:
    found = {environment_name(each.name) for kind in (WorkerSettings, HookSettings) for each in fields(kind)}
    sources = [path for top in ("collimate_rl", "producer", "worker") for path in (ROOT / top).rglob("*.py")]
    for path in [*sources, ROOT / "Procfile"]:
        found |= set(re.findall(r"COLLIMATE_[A-Z][A-Z_]+[A-Z]", path.read_text()))
    assert found == KNOWN


def test_a_misspelled_one_is_told_with_what_may_be_meant_and_without_its_value() -> None:
    assert unknown(MISSPELLED) == TOLD
    assert unknown({"COLLIMATE_ZZZ\n": "", "COLLIMATE_SLOTS": "4"}) == (
        "nothing of collimate-rl reads COLLIMATE_ZZZ\\n of the environment"
    )


OF_A_SERVICE = {
    f"COLLIMATE_REDIS_{name}": "x"
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_REDIS", "PORT", "PORT_6379_TCP", "PORT_6379_TCP_ADDR")
}
"""What Kubernetes puts into every pod beside a service named collimate-redis."""


@pytest.mark.parametrize(
    "environ",
    [{}, {"COLLIMATE_SLOTS": "4"}, {"COLLIMATER": "x", "MY_COLLIMATE_SLOT": "x"}, OF_A_SERVICE],
    ids=["empty", "ours", "others", "service"],
)
def test_nothing_is_said_of_what_is_ours_or_not_like_it(environ: dict[str, str]) -> None:
    assert unknown(environ) is None


def test_a_process_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_variables, "_said", threading.Event())
    for name, value in MISSPELLED.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        warn_once()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, TOLD)]


@pytest.mark.parametrize(
    ("module", "arguments", "said_by"),
    [
        ("worker", ["config"], "worker: "),
        ("producer", ["submit", "-", "--run", "r"], "producer: "),
        ("collimate_rl.cli", ["--version"], "collimate: "),
        ("collimate_rl.local_backend", ["--config", "/nonexistent"], ""),
    ],
    ids=["worker", "producer", "cli", "daemon"],
)
def test_every_program_says_so(module: str, arguments: list[str], said_by: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLIMATE_")}
    ended = subprocess.run(
        command, env=environ | {"COLLIMATE_SLOT": "4"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    told = "nothing of collimate-rl reads COLLIMATE_SLOT (did you mean COLLIMATE_SLOTS?) of the environment"
    assert ended.stderr.count(told) == 1, ended.stderr
    assert f"{said_by}{told}" in ended.stderr
