"""The promises of the page about what holds recovery name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs/explanation/recovery-tests.md").read_text()
    table = page.split("## Promise by promise")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for promise, tests in rows:
        named = re.findall(r"`([a-z_]+)`", tests)
        assert named, promise
        for name in named:
            assert (ROOT / f"tests/integration/test_{name}.py").exists(), f"{name}: {promise}"


def test_every_file_of_promises_is_named() -> None:
    page = (ROOT / "docs/explanation/recovery-tests.md").read_text()
    for path in (ROOT / "tests/integration").glob("test_promises_*.py"):
        assert f"`{path.stem.removeprefix('test_')}`" in page, path.name
