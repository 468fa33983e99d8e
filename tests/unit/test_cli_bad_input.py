"""What cannot be is said in a line, and with exit status 2; no command ends in a traceback."""

from __future__ import annotations

import io
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from collimate_rl.cli.app import app

KEY = f"col_pro_aaaaaaaa_{'b' * 32}"
NOWHERE = ("--api-key", KEY, "--base-url", "http://127.0.0.1:1")
TESTS = ("--tests", '[{"input": 1, "expected": 1}]')


def refused(*arguments: str, with_input: bytes = b"") -> str:
    done = CliRunner().invoke(app, arguments, input=io.BytesIO(with_input))
    assert isinstance(done.exception, SystemExit), (done.output, done.exception)
    assert done.exit_code == 2, done.output
    return done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("bake",),
        ("bake", "--image", "py", "--timeout", "nan"),
        ("bake", "--image", "py", "--timeout", "inf"),
        ("bake", "--image", "py", "--cold-fraction", "nan"),
        ("bake", "--image", "py", "--ready-http-timeout", "nan"),
        ("bake", "--image", "py", "--port", "0"),
        ("bake", "--image", "py", "--width", "-1"),
        ("fleet", "--watch", "--interval", "nan"),
        ("fleet", "--watch", "--timeout", "nan"),
        ("burst",),
        ("burst", "py", "-n", "0"),
        ("burst", "py", "-c", "0"),
        ("burst", "py", "--timeout", "0"),
        ("rl",),
        ("rl", "py", "--group", "0"),
        ("rl", "py", "--steps", "0"),
        ("status",),
        ("demo", "--rounds", "0"),
        ("images", "--nonsense"),
    ],
    ids=" ".join,
)
def test_arguments_on_a_gateway(arguments: tuple[str, ...]) -> None:
    assert "Error: " in refused(*arguments, *NOWHERE)


@pytest.mark.parametrize("key", ["a\nb", "ü", "a b"])
def test_keys_that_cannot_be(key: str) -> None:
    assert "API key" in refused("images", "--api-key", key, "--base-url", "http://127.0.0.1:1")


@pytest.mark.parametrize("origin", ["ftp://x", "http://[::1", "http://127.0.0.1:99999", "nonsense"])
def test_origins_that_cannot_be(origin: str) -> None:
    refused("images", "--api-key", KEY, "--base-url", origin)


GOOD = '"ground_truth": [{"input": 1, "expected": 1}]'
ROWS = {
    "deep": "[" * 100_000,
    "deep in its truth": f'{{"ground_truth": {"[" * 900}{"]" * 900}, "completions": ["x"]}}',
    "no JSON": "nonsense",
    "no object": "3",
    "no completions": f"{{{GOOD}}}",
    "a template that is no text": f'{{{GOOD}, "completions": ["x"], "template": 3}}',
    "an entry that is no text": f'{{{GOOD}, "completions": ["x"], "entry": 3}}',
    "a time without end": f'{{{GOOD}, "completions": ["x"], "timeout_seconds": 1e999}}',
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_cannot_be_graded(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{ROWS[name]}\n")
    assert "line 1: " in refused("grade", str(file), "--socket", "/nowhere/s")


@pytest.mark.parametrize("name", ["x.jsonl", "x.py", "x.md"])
def test_files_that_are_no_text(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(b"\xff\xfe\x00")
    refused("grade", str(file), "--socket", "/nowhere/s", *(() if name == "x.jsonl" else TESTS))


def test_a_truth_that_is_nested_without_end(tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text("[" * 100_000)
    refused("grade", "-", "--ground-truth", str(truth), "--socket", "/nowhere/s")


def test_rows_of_the_demo_that_are_nested_without_end(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("[" * 100_000)
    refused("demo", "--data", str(data))


def test_every_command_takes_the_queues_server_under_the_same_names() -> None:
    context = click.Context(app)
    found = {
        name: option.opts
        for name in app.list_commands(context)
        for option in getattr(app.get_command(context, name), "params", ())
        if option.name == "redis_url"
    }
    assert found == {name: ["--redis-url", "--redis"] for name in ("doctor", "replay", "top", "trace")}
