"""`collimate grade` answers why a candidate got its reward, against the real daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from collimate_rl.cli.app import app
from collimate_rl.cli.explain import OUTCOMES as EXPLAINED
from collimate_rl.protocol import OUTCOMES

TESTS = json.dumps([{"input": [2], "expected": 4}, {"input": [-2], "expected": 4}])
HALF = "def solve(x):\n    print('seen', x)\n    return x * abs(x)\n"


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    path = tmp_path / "answer.py"
    path.write_text(HALF)
    return path


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["grade", *map(str, arguments)], input=stdin)


def test_it_says_what_came_of_each_case_and_what_was_printed(candidate: Path, daemon_socket: str) -> None:
    done = run(candidate, "--tests", TESTS, "--socket", daemon_socket)
    assert done.exit_code == 0, done.output
    assert "reward   0.5" in done.output
    assert "wrong_answer" in done.output
    assert "1 of 2 passed" in done.output
    assert "seen -2" in done.output


def test_json_carries_the_fields(candidate: Path, daemon_socket: str) -> None:
    seed = "ab" * 32
    done = run(candidate, "--tests", TESTS, "--url", f"unix:{daemon_socket}", "--seed", seed, "--json")
    told = json.loads(done.output)
    assert (told["reward"], told["outcome"], told["seed"]) == (0.5, "wrong_answer", seed)
    assert [case["outcome"] for case in told["cases"]] == ["passed", "wrong_answer"]


def test_a_completion_is_unpacked_and_a_row_read_from_a_file(tmp_path: Path, daemon_socket: str) -> None:
    row = tmp_path / "row.json"
    test = "def check(candidate):\n    assert candidate(2) == 4\n"
    row.write_text(json.dumps({"prompt": "def twice(x):\n", "test": test, "entry_point": "twice"}))
    said = "Sure.\n```python\ndef twice(x):\n    return 2 * x\n```\n"
    done = run("-", "--ground-truth", row, "--socket", daemon_socket, stdin=said)
    assert done.exit_code == 0, done.output
    assert "reward   1" in done.output


def test_local_starts_a_daemon_for_the_call(candidate: Path, daemon_socket: str) -> None:
    done = run(candidate, "--tests", TESTS, "--local")
    assert done.exit_code == 0, done.output
    assert "reward   0.5" in done.output


def test_no_daemon_is_infra_and_says_how_to_get_one(candidate: Path, tmp_path: Path) -> None:
    done = run(candidate, "--tests", TESTS, "--socket", tmp_path / "no.sock")
    assert done.exit_code == 3
    assert "--local" in done.output


def test_a_row_of_test_code_without_a_daemon_is_told_the_same(candidate: Path, tmp_path: Path) -> None:
    row = tmp_path / "row.json"
    row.write_text(json.dumps({"prompt": "", "test": "def check(f):\n    assert f(1) == 1\n", "entry_point": "solve"}))
    done = run(candidate, "--ground-truth", row, "--socket", tmp_path / "no.sock")
    assert done.exit_code == 3
    assert "--local" in done.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tests", '[{"inputs": 1}]'], "the ground truth cannot be used"),
        (["--tests", TESTS, "--template", "nope"], "no template 'nope'"),
        (["--tests", TESTS, "--seed", "zz"], "64 hex"),
        ([], "--ground-truth FILE or --tests JSON"),
        (["--tests", TESTS, "--local"], "give one"),
    ],
)
def test_bad_input_is_named(candidate: Path, daemon_socket: str, options: list[str], told: str) -> None:
    done = run(candidate, "--socket", daemon_socket, *options)
    assert done.exit_code == 2, done.output
    assert told in " ".join(done.output.split())


def test_every_outcome_is_explained() -> None:
    assert set(EXPLAINED) == set(OUTCOMES)
