"""Under CI a skip that nobody expects fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.fences import ROOT
from tests.fixtures.skips import allowed

SKIPS = "import pytest\n\n\ndef test_one():\n    pytest.skip({reason!r})\n\n\ndef test_two():\n    pass\n"


@pytest.mark.parametrize(
    ("ci", "reason", "code", "told"),
    [
        ("true", "the tool is broken", 1, "skips that CI does not allow"),
        ("true", "no valkey server on this machine", 0, ""),
        ("", "the tool is broken", 0, ""),
    ],
)
def test_ci_allows_only_the_skips_on_the_list(tmp_path: Path, ci: str, reason: str, code: int, told: str) -> None:
    (tmp_path / "test_it.py").write_text(SKIPS.format(reason=reason))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.fixtures.skips", "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stdout


def test_the_list_does_not_cover_a_broken_daemon() -> None:
    assert not allowed("no isolated sandboxes on this machine: the daemon did not start")
    assert not allowed("no Redis or Valkey server on this machine")
