"""`python -m producer submit`, as a process, against a real server and a worker in a thread."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.protocol import GradeBatch, Verdict, batch_key, infra_verdict
from collimate_rl.protocol.keys import BatchKeys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from tests.fixtures.acl_users import as_user
from tests.fixtures.queue_batches import passed
from tests.fixtures.tiny_worker import TinyWorker
from tests.fixtures.worker_nodes import until

ROOT = Path(__file__).parents[2]
UNIT = [{"input": 1, "expected": 2}]


def row(*completions: str, **fields: Any) -> str:
    return json.dumps({"ground_truth": UNIT, "completions": list(completions or ["def solve(x): return 2"]), **fields})


def submit(
    tmp_path: Path, lines: list[str], *options: str, url: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines) + "\n")
    url = as_user(url, "producer")
    return subprocess.run(
        [sys.executable, "-m", "producer", "submit", str(file), "--redis-url", url, "--run", "cli", *options],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        check=False,
    )


def output(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_verdicts_come_out_in_the_files_order(tmp_path: Path, redis_url: str) -> None:
    def answer(batch: GradeBatch) -> list[Verdict]:
        return [passed(i, 1.0 if "right" in code else 0.0) for i, code in enumerate(batch.candidates)]

    lines = [row("right = 1", "wrong = 1", id=f"r{n}") for n in range(30)]
    with TinyWorker(redis_url, answer):
        done = submit(tmp_path, lines, "--window", "4", url=redis_url)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["id"] for line in output(done)] == [f"r{n}" for n in range(30)]
    for line in output(done):
        assert [v["reward"] for v in line["results"]] == [1.0, 0.0]
        assert [v["index"] for v in line["results"]] == [0, 1]
        assert {"outcome", "infra_error", "error_code", "seed", "detail", "integrity"} <= set(line["results"][0])


def test_bad_lines_print_their_error_in_place_and_stop_nobody(tmp_path: Path, redis_url: str) -> None:
    lines = [
        row(id="first"),
        "not JSON",
        "",
        json.dumps({"ground_truth": {"unknown": 1}, "completions": ["x"]}),
        row(id="no name!"),
        row(timeout_seconds=0),
        json.dumps({"ground_truth": UNIT, "completions": []}),
        row("x = 1", id="first"),
        row(id="last"),
    ]
    with TinyWorker(redis_url):
        done = submit(tmp_path, lines, url=redis_url)
    assert done.returncode == 2
    told = output(done)
    assert [line.get("line", line.get("id")) for line in told] == ["first", 2, 4, 5, 6, 7, 8, "last"]
    assert all(line["error"] for line in told if "line" in line)
    assert "other content" in told[6]["error"]


def test_infra_errors_exit_with_three_and_bad_input_wins(tmp_path: Path, redis_url: str) -> None:
    def answer(batch: GradeBatch) -> list[Verdict]:
        return [infra_verdict(0, "at_capacity", "full")] if batch.id == "infra" else [passed(0)]

    with TinyWorker(redis_url, answer):
        done = submit(tmp_path, [row(id="fine"), row(id="infra")], url=redis_url)
        assert done.returncode == 3
        verdict = output(done)[1]["results"][0]
        assert (verdict["reward"], verdict["infra_error"], verdict["error_code"]) == (None, True, "at_capacity")
        assert submit(tmp_path, [row(id="infra"), "bad"], url=redis_url).returncode == 2


def test_a_misconfigured_run_exits_with_two(tmp_path: Path, redis_url: str) -> None:
    with TinyWorker(redis_url, lambda batch: [infra_verdict(0, "no_template", "no such template")]):
        done = submit(tmp_path, [row(id="a")], url=redis_url)
    assert done.returncode == 2
    assert output(done)[0]["results"][0]["error_code"] == "no_template"


def test_a_template_that_no_node_has(tmp_path: Path, redis_url: str) -> None:
    client = connect_commands(redis_url)
    BatchQueue(client).beat("n1", {"templates": ["py"]})
    client.close()
    with TinyWorker(redis_url):
        done = submit(tmp_path, [row(id="a", template="cobol"), row(id="b")], url=redis_url)
    assert done.returncode == 2
    told = output(done)
    assert "there are: py" in told[0]["error"]
    assert told[1]["id"] == "b"


def test_the_same_file_again_grades_nothing_again(tmp_path: Path, redis_url: str) -> None:
    lines = [row(), row("y = 2")]
    with TinyWorker(redis_url) as worker:
        first = submit(tmp_path, lines, "--seed-mode", "crn", url=redis_url)
        again = submit(tmp_path, lines, "--seed-mode", "crn", url=redis_url)
        assert first.stdout == again.stdout
        assert len(worker.graded) == 2


@pytest.mark.parametrize("url", ["unix:/nowhere/redis.sock", "nonsense"])
def test_a_server_that_is_not_there(tmp_path: Path, url: str) -> None:
    done = submit(tmp_path, [row()], url=url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("producer: ")
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there(redis_url: str) -> None:
    url = as_user(redis_url, "producer")
    command = [sys.executable, "-m", "producer", "submit", "/nowhere.jsonl", "--redis-url", url, "--run", "r"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "/nowhere.jsonl" in done.stderr


def test_no_answer_within_the_deadline(tmp_path: Path, redis_url: str) -> None:
    done = submit(tmp_path, [row(id="a")], "--deadline-seconds", "0.5", url=redis_url)
    assert done.returncode == 3
    assert "no worker served queue 'grade'" in done.stderr
    assert output(done)[0]["results"][0]["error_code"] == "expired"


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, redis_url: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(row(id="a") + "\n")
    url = as_user(redis_url, "producer")
    command = [sys.executable, "-m", "producer", "submit", str(file), "--redis-url", url, "--run", "cli"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            client = connect_commands(redis_url)
            until(lambda: client.exists(BatchKeys(batch_key("cli", 0, "a")).payload))
            client.close()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert "takes it up again" in err
    assert "Traceback" not in err
