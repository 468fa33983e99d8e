"""A gateway that says what no terminal can show, or nothing of use: every command ends with words and a status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.scripted_server import ScriptedServer, answer

ODD = "n\ud800\x1b[31m"
ANSWER = {
    "id": ODD,
    "name": ODD,
    "image": ODD,
    "phase": "Live",
    "converge_state": ODD,
    "status": ODD,
    "version": ODD,
    "images": [{"id": ODD}],
    "templates": [{"id": ODD}],
    "per_node": [{"node": ODD, "warm": 10**400}],
    "stdout": ODD,
    "exit_code": 0,
    "fork_time_ms": 10**400,
    "isolation": "none",
    "failed_templates": [ODD],
}
REFUSAL = {"code": ODD, "message": f"{ODD} [bold]"}
COMMANDS = (
    "images",
    "status x",
    "fleet --include-public",
    "bake --image py --timeout 2 --max-exec 1",
    "burst py -n 2 -c 2",
    "rl py --steps 1 --group 2 --prompts 1 -c 2",
    "demo --rounds 1 --max-exec 1 --timeout 1",
)


def run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLLIMATE_API_KEY": f"col_pro_aaaaaaaa_{'b' * 32}", "COLLIMATE_BASE_URL": url}
    return subprocess.run(
        [sys.executable, "-m", "collimate_rl.cli", *arguments],
        capture_output=True,
        text=True,
        env={**env, "PYTHONIOENCODING": "ascii"},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
@pytest.mark.parametrize("refuses", [False, True], ids=["answers", "refuses"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_ends_in_a_traceback(command: str, refuses: bool, as_json: bool) -> None:
    with ScriptedServer() as server:
        server.default = answer(REFUSAL, 400) if refuses else answer(ANSWER)
        done = run(server.base_url, *command.split(), *(["--json"] if as_json else []))
    said = done.stdout + done.stderr
    assert done.returncode in ({1, 2} if refuses else {0, 1, 3}), said
    assert "Traceback" not in said
    assert "\x1b" not in said
    assert said.strip()
    if as_json and done.returncode == 0:
        for line in [done.stdout] if command != "fleet" else done.stdout.splitlines():
            json.loads(line)


def test_the_doctor_and_a_row_with_an_odd_name(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"id": ODD, "ground_truth": [{"input": 1, "expected": 1}], "completions": ["x"]}))
    with ScriptedServer() as server:
        server.default = answer(ANSWER)
        for arguments in (("doctor", "--no-trial", "--url"), ("grade", str(rows), "--url")):
            done = run(server.base_url, *arguments, server.base_url)
            assert "Traceback" not in done.stdout + done.stderr
            assert done.returncode in (0, 1, 3)
