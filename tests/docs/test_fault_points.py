"""The page about what holds recovery says of every fault point what is left there, and which tests stop there."""

from __future__ import annotations

import re

from collimate_rl.queue.faults import POINTS
from tests.fixtures.fences import ROOT

PAGE = (ROOT / "docs" / "explanation" / "recovery-tests.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| [^|]+ \| ((?:`\w+`(?:, )?)+) \|$", PAGE.split("| stopped at |")[1], re.MULTILINE)


def test_every_point_has_its_row() -> None:
    assert [point for point, _ in ROWS] == list(POINTS)


def test_the_tests_that_a_row_names_stop_there() -> None:
    for point, names in ROWS:
        for name in re.findall(r"\w+", names):
            path = ROOT / "tests" / "integration" / f"test_crash_windows_{name}.py"
            assert re.search(rf"[\"f,]{point}[=\"]", path.read_text(encoding="utf-8")), (point, name)
