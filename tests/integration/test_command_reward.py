"""`CommandReward` against the real daemon: honest work gets what it is worth, and attacks get nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.rewards import CommandReward, GradeResult, grade, grade_batch, work_from_session
from collimate_rl.sandbox import Sandbox
from tests.fixtures.command_tasks import (
    ATTACKS,
    FAIL_TO_PASS,
    FILES,
    PASS_TO_PASS,
    RIGHT,
    TESTS,
    WRONG,
    task,
    work,
)

QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Without the plugins that happen to be installed here pytest starts in a quarter of the time."""


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


@pytest.fixture(scope="module")
def attacked(sandbox_daemon: Any) -> dict[str, GradeResult]:
    """Every attack's grade, and the right work's between them."""
    client = CollimateClient(unix_socket=sandbox_daemon.socket_path)
    candidates = {**ATTACKS, "the right work": RIGHT}
    grades = grade_batch(client, "py", list(candidates.values()), task(env=QUICK), concurrency=4, timeout_seconds=60)
    return dict(zip(candidates, grades, strict=True))


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_gets_nothing(attacked: dict[str, GradeResult], attack: str) -> None:
    result = attacked[attack]
    assert (result.reward, result.integrity) == (0.0, "shared"), result
    assert result.outcome != "passed"
    assert result.detail


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name.startswith("tests rewritten")])
def test_test_files_that_change_meanwhile_spoil_the_run(attacked: dict[str, GradeResult], attack: str) -> None:
    """Each of these would have passed."""
    result = attacked[attack]
    assert (result.outcome, result.cases_passed, result.flags) == ("tampered", 3, ("touched_harness",))
    assert "tests/test_ops.py" in str(result.detail)


def test_the_right_work_among_them_passes(attacked: dict[str, GradeResult]) -> None:
    result = attacked["the right work"]
    assert (result.reward, result.outcome, result.cases_total, result.flags) == (1.0, "passed", 3, ())


def test_honest_work_gets_what_it_is_worth(client: CollimateClient) -> None:
    half = work(add="5")
    kept = {"env": QUICK, "credit": "fraction"}
    wrong, part, right, nothing = grade_batch(
        client, "py", [WRONG, half, f"Fixed:\n```diff\n{RIGHT}```", "no idea"], task(**kept), timeout_seconds=60
    )
    assert (wrong.reward, wrong.outcome, wrong.cases_passed) == (1 / 3, "wrong_answer", 1)
    assert wrong.detail == "test 1 of 3: wrong_answer: tests/test_ops.py::test_add: failed"
    assert (part.reward, part.cases_passed) == (2 / 3, 2)
    assert (right.reward, right.outcome) == (1.0, "passed")
    assert (nothing.reward, nothing.outcome) == (0.0, "no_code")
    assert b"FAILED tests/test_ops.py::test_add" in wrong.output_tail


def test_a_patch_of_the_tests_is_written_over_the_work(client: CollimateClient) -> None:
    patch = (
        "--- a/tests/test_old.py\n+++ b/tests/test_old.py\n@@ -1,5 +1,9 @@\n-from calc.ops import mul\n"
        "+from calc.ops import add, mul\n \n \n def test_mul():\n     assert mul(2, 3) == 6\n"
        "+\n+\n+def test_add():\n+    assert add(2, 3) == 5\n"
    )
    spec = task(
        "{python} -m pytest -q --junitxml={results} tests",
        tests={},
        test_patch=patch,
        fail_to_pass=["tests/test_old.py::test_add"],
        reference=RIGHT,
        env=QUICK,
    )
    mine = work({"tests/test_old.py": "def test_add(): pass\ndef test_mul(): pass\n"}, deleted=("README",))
    right, forged = grade_batch(client, "py", [RIGHT, mine], spec, timeout_seconds=60)
    assert (right.reward, right.flags) == (1.0, ())
    assert (forged.reward, forged.flags) == (0.0, ("dropped_files",))


def test_an_exit_code_and_a_shell_do_without_python(client: CollimateClient) -> None:
    spec = CommandReward(
        "grep -q two README && test -x run.sh && ./run.sh", files=FILES, setup="echo ready > /tmp/ready"
    )
    good = work({"run.sh": "#!/bin/sh\ntest -e /tmp/ready && test $# = 0\n"})
    bad = work({"run.sh": "#!/bin/sh\nexit 3\n"})
    first, second = grade_batch(client, "py", [good, bad], spec)
    assert (first.reward, first.outcome, first.integrity) == (1.0, "passed", "shared")
    assert (second.reward, second.outcome) == (0.0, "wrong_answer")
    assert "exit code 3" in str(second.detail)


def test_a_template_of_the_spec_own_is_its_fault(client: CollimateClient) -> None:
    for spec, words in (
        (CommandReward("true", files=FILES, setup="echo broken >&2; exit 4"), "setup fails.*exit code 4.*broken"),
        (CommandReward("true", base="/data/nothing"), "tree can't be made.*no directory /data/nothing"),
        (task(test_patch="--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n"), "the tests.*no such file"),
        (task("true {results}", reference=WRONG), "own reference does not pass"),
    ):
        with pytest.raises(ValueError, match=words):
            grade(client, "py", RIGHT, spec)


def test_limits_end_a_command_with_all_that_it_started(client: CollimateClient) -> None:
    slow = CommandReward("(setsid sleep 1000 &) ; sleep 1000", files=FILES, case_timeout_s=0.5)
    loud = CommandReward("yes & yes", files=FILES)
    hungry = CommandReward("{python} -c 'x = []\nwhile 1: x.append(bytearray(1 << 20))'", files=FILES)
    outcomes = [grade(client, "py", RIGHT, spec).outcome for spec in (slow, loud, hungry)]
    assert outcomes == ["timeout", "output_limit", "memory_limit"]


def test_nothing_of_a_session_meets_the_grading(client: CollimateClient) -> None:
    """An agent's session is where its work is taken from, never where it is graded."""
    session = client.create_session("py")["session_id"]
    try:
        spoil = "mkdir -p tree/calc tree/tests; echo 'import os; os._exit(0)' > tree/conftest.py; "
        spoil += "mkdir -p ~/.local; printf '#!/bin/sh\\nexit 0\\n' > pytest; chmod +x pytest"
        client.session_exec(session, command=spoil, timeout_seconds=30)
        spec = task(env=QUICK)
        with Sandbox.attach(client, session, keep_on_error=True) as sandbox:
            for path, content in FILES.items():
                sandbox.upload_bytes(f"tree/{path}", str(content).encode())
            sandbox.upload_bytes(
                "tree/calc/ops.py", b"def add(a, b):\n    return a + b\n\n\ndef mul(a, b): return a * b\n"
            )
            sandbox.exec("rm tree/README; ln -s /etc/passwd tree/link")
            found = work_from_session(client, session, spec)
            assert sorted(json.loads(found)["files"]) == ["calc/ops.py", "conftest.py"]
            assert json.loads(found)["deleted"] == ["README"]
            graded = grade(client, "py", found, spec, session_id=session, timeout_seconds=60)
            assert (graded.reward, graded.flags) == (1.0, ("dropped_files",))
            with pytest.raises(CollimateError, match="more than 10 bytes"):
                work_from_session(client, session, spec, max_bytes=10)
    finally:
        client.delete_session(session)


def test_an_agents_plugin_with_autoload_is_no_plugin(client: CollimateClient) -> None:
    [result] = grade_batch(client, "py", [ATTACKS["a plugin by its entry point"]], task(), timeout_seconds=60)
    assert (result.reward, result.outcome, result.flags) == (0.0, "wrong_answer", ("dropped_files",))


def test_the_command_line_grades_a_patch(daemon_socket: str, tmp_path: Path) -> None:
    row = {"FAIL_TO_PASS": FAIL_TO_PASS, "PASS_TO_PASS": PASS_TO_PASS, "files": FILES, "tests": TESTS, "env": QUICK}
    (tmp_path / "row.json").write_text(json.dumps(row))
    (tmp_path / "answer.md").write_text(f"It was the sign.\n```diff\n{RIGHT}```\n")
    command = [sys.executable, "-m", "collimate_rl.cli", "grade", "answer.md", "--ground-truth", "row.json"]
    done = subprocess.run(
        [*command, "--socket", daemon_socket, "--timeout-seconds", "60", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["reward"], told["cases_total"], told["integrity"]) == (1.0, 3, "shared")
