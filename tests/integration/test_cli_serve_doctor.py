"""`collimate serve`, `doctor` and `grade FILE.jsonl`, each run for real."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from collimate_rl.cli import doctor_checks
from collimate_rl.cli.app import app
from collimate_rl.client import CollimateClient
from collimate_rl.gateway import GatewayClient
from tests.fixtures.sandbox_daemon import RunningDaemon

PATIENCE_S = 60.0
ROW = {"ground_truth": [{"input": [2], "expected": 4}], "id": "twice"}
RIGHT = "```python\ndef solve(x):\n    return 2 * x\n```"
WRONG = "```python\ndef solve(x):\n    return x\n```"


def run(*arguments: object) -> Result:
    done = CliRunner(env={"COLLIMATE_SERVE_SOCKET": None, "COLLIMATE_REDIS_URL": None}).invoke(
        app, [str(argument) for argument in arguments]
    )
    assert "Traceback" not in done.output
    return done


@contextmanager
def serving(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The process, and the line of JSON that it prints once its gateway serves."""
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "collimate_rl.cli",
                "serve",
                "--gateway",
                "--gateway-port",
                "0",
                "--json",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            cwd=tmp_path,
        )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, log.read_text()
        yield process, json.loads(first)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_serve_the_gateway_with_keys_of_ones_own(sandbox_daemon: RunningDaemon, tmp_path: Path) -> None:
    key = f"col_ent_{'a' * 8}_{os.urandom(16).hex()}"
    with serving(tmp_path, "--key", "demo", "--key", key, "--template", "mine") as (_, told):
        assert [one["tier"] for one in told["keys"]] == ["demo", "ent"]
        assert told["keys"][1]["key"] == key
        with GatewayClient(key, told["base_url"]) as client:
            assert "mine" in [row["id"] for row in client.images()]
            assert client.exec_once("mine", command="echo hello")["stdout"] == "hello\n"


def test_serve_both_in_one_process(sandbox_daemon: RunningDaemon, tmp_path: Path) -> None:
    socket = f"/tmp/cs{os.getpid()}.sock"
    with serving(tmp_path, "--daemon", "--socket", socket) as (_, told):
        with GatewayClient(told["keys"][1]["key"], told["base_url"]) as client:
            assert client.exec_once("py", command="echo one")["stdout"] == "one\n"
        deadline = time.monotonic() + PATIENCE_S
        while not os.path.exists(socket):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with CollimateClient(unix_socket=socket, retries=8, backoff=0.3) as direct:
            assert direct.exec_once("py", command="echo two")["stdout"] == "two\n"
    assert not os.path.exists(socket)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--no-daemon"], "nothing to serve"),
        (["--key", "pro"], "give --gateway too"),
        (["--gateway", "--key", "gold"], "a key is"),
        (["--gateway", "--config", "/none.toml"], "cannot be read"),
    ],
)
def test_serve_refuses_what_cannot_be(options: list[str], told: str) -> None:
    done = run("serve", *options)
    assert done.exit_code == 2
    assert told in done.output


def test_doctor_finds_a_well_machine_well(sandbox_daemon: RunningDaemon, redis_url: str) -> None:
    done = run("doctor", "--socket", sandbox_daemon.socket_path, "--redis-url", redis_url)
    assert done.exit_code == 0, done.output
    for line in ("Python", "bubblewrap", "trial", "policy", "clock", "ok, templates py", "no faults"):
        assert line in done.output
    assert f"at unix:{sandbox_daemon.socket_path}" in done.output
    assert "none serves queue 'grade'" in done.output
    told = json.loads(run("doctor", "--socket", sandbox_daemon.socket_path, "--no-trial", "--json").stdout)
    assert told["well"] is True
    assert {"python", "sandboxes", "redis", "daemon"} < set(told)
    assert "trial" not in {finding["name"] for finding in told["sandboxes"]}


def test_doctor_names_each_fault_and_what_to_do(tmp_path: Path) -> None:
    done = run("doctor", "--no-trial", "--socket", tmp_path / "no.sock", "--redis-url", f"unix:{tmp_path}/no.sock")
    assert logging.getLogger("collimate_rl").level == logging.NOTSET, "it silenced the process that called it for good"
    assert done.exit_code == 1
    assert done.output.count("FAULT ") == 2
    assert "collimate serve --socket" in done.output
    assert "name the right one with --redis-url" in done.output
    assert run("doctor", "--socket", "a", "--url", "b").exit_code == 2
    assert run("doctor", "--no-trial", "--redis-url", "http://x").exit_code == 1


def test_doctor_sees_a_server_that_may_evict_and_a_clock_that_is_off(redis_url: str) -> None:
    from collimate_rl.queue.clients import connect_commands

    with connect_commands(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = doctor_checks.redis_server(redis_url, "grade", now=lambda: time.time() + 3600)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    states = {finding.name: finding.state for finding in found}
    assert states == {"server": "ok", "clock": "missing", "policy": "missing", "nodes": "doubtful"}
    assert all(finding.remedy for finding in found if finding.state == "missing")


def test_doctor_sees_a_package_of_another_called_like_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").touch()
    script = "from collimate_rl.cli.doctor_checks import _is_ours; print(_is_ours('worker').found)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, cwd=tmp_path, check=True
    )
    assert done.stdout.startswith("not ours: ")


def rows(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_grade_a_file_of_rows(tmp_path: Path, daemon_socket: str) -> None:
    path = rows(tmp_path, {**ROW, "completions": [RIGHT, WRONG]}, "", {**ROW, "id": None, "completions": [RIGHT]})
    done = run("grade", path, "--socket", daemon_socket)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "twice: 1 0  (1 passed, 1 wrong_answer)",
        "3: 1  (1 passed)",
        "2 rows, 3 verdicts, mean reward 0.667, 0 infra errors",
    ]
    told = [json.loads(line) for line in run("grade", path, "--socket", daemon_socket, "--json").stdout.splitlines()]
    assert [[one["reward"] for one in row["results"]] for row in told] == [[1.0, 0.0], [1.0]]


def test_rows_that_cannot_be_graded_are_named_and_the_others_graded(tmp_path: Path, daemon_socket: str) -> None:
    wrong = [
        "nonsense",
        {"completions": ["x"]},
        {**ROW, "completions": []},
        {**ROW, "completions": ["x"], "timeout_seconds": 0},
    ]
    path = rows(tmp_path, *wrong, {**ROW, "completions": [RIGHT]})
    done = run("grade", path, "--socket", daemon_socket)
    assert done.exit_code == 2
    assert [line.partition(":")[0] for line in done.output.splitlines()][:5] == [
        *(f"line {n}" for n in range(1, 5)),
        "twice",
    ]
    assert run("grade", rows(tmp_path, ""), "--socket", daemon_socket).exit_code == 2
    assert run("grade", path, "--socket", daemon_socket, "--tests", "[]").exit_code == 2


def test_rows_without_a_daemon_have_no_verdict(tmp_path: Path, daemon_socket: str) -> None:
    path = rows(tmp_path, {**ROW, "completions": [RIGHT]})
    done = run("grade", path, "--socket", tmp_path / "no.sock")
    assert done.exit_code == 3
    assert "1 unreachable" in done.output
    assert run("grade", path, "--socket", daemon_socket, "--template", "nope").exit_code == 2
