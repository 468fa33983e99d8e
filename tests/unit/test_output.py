"""A standard output that takes nothing ends every program with one line, and a reader that has gone with none."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collimate_rl._output import printing

FULL = Path("/dev/full")
PROGRAMS = [
    ("collimate_rl.cli", ["--help"], "collimate"),
    ("collimate_rl.cli", ["top", "--redis-url", "unix:/nowhere"], "collimate"),
    ("worker", ["config"], "worker"),
    ("producer", ["--help"], "producer"),
    ("collimate_rl.local_backend", ["--help"], "collimate sandboxd"),
    ("collimate_rl.local_gateway", ["--help"], "collimate gateway"),
]


def run(module: str, arguments: list[str], stdout: int) -> tuple[int, str]:
    """The exit code and what was said on stderr."""
    # Buffered: argparse passes over what its help meets at once.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
        env=environ, text=True, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this machine")
@pytest.mark.parametrize(("module", "arguments", "name"), PROGRAMS, ids=[f"{m}-{a[0]}" for m, a, _ in PROGRAMS])
def test_a_full_disk_ends_a_program_with_one_line(module: str, arguments: list[str], name: str) -> None:
    with FULL.open("wb") as full:
        code, said = run(module, arguments, full.fileno())
    assert (code, said) == (1, f"{name}: its output could not be written: {os.strerror(errno.ENOSPC)}\n")


@pytest.mark.parametrize(("module", "arguments"), [PROGRAMS[0][:2], PROGRAMS[2][:2]], ids=["cli", "worker"])
def test_a_reader_that_has_gone_ends_a_program_without_a_word(module: str, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(module, arguments, writer) == (1, "")
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no such file", "there"),
        OSError(errno.ENOSPC, "no room", "a file of its own"),
        BrokenPipeError(errno.EPIPE, "a socket's"),
        ConnectionResetError(errno.ECONNRESET, "a socket's"),
    ],
    ids=lambda error: errno.errorcode[error.errno],
)
def test_other_errors_are_left_alone(error: OSError, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)) as met, capfd.disabled(), printing("it"):
        raise error
    assert met.value is error


@pytest.mark.parametrize("code", [0, 3, None])
def test_an_exit_code_passes_where_all_is_written(code: int | None) -> None:
    with pytest.raises(SystemExit) as end, printing("it"):
        raise SystemExit(code)
    assert end.value.code == code
