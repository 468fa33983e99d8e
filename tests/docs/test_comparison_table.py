"""The one table of comparisons says what specs and formats do."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from collimate_rl.formats import reward_spec_from_ground_truth
from collimate_rl.specs import StdioReward, UnitTestReward
from collimate_rl.specs.options import CREDITS, TEXT_MODES, VALUE_MODES
from tests.fixtures.fences import ROOT

TEXT = (ROOT / "docs/reference/rewards.md").read_text()
SECTION = TEXT.partition("### Comparison\n")[2].partition("\n###")[0]
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in SECTION.splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
}
OPTIONS = ("compare", "tolerance", "relative_tolerance", "unordered", "checker")

CALLS = [
    reward_spec_from_ground_truth({"inputs": [[1]], "outputs": [1], "fn_name": "f"}),
    reward_spec_from_ground_truth([{"input": "1", "output": "1", "testtype": "functional"}]),
]
FLOATS = reward_spec_from_ground_truth({"inputs": [[1]], "outputs": [1.5], "fn_name": "f"})
PROGRAMS = [
    reward_spec_from_ground_truth({"inputs": ["1"], "outputs": ["1"]}),
    reward_spec_from_ground_truth([{"input": "1", "output": "1", "testtype": "stdin"}]),
    reward_spec_from_ground_truth({"public_tests": {"input": ["1"], "output": ["1"]}}),
    reward_spec_from_ground_truth({"language": "python", "test_cases": [{"input": "1", "output": "1"}]}),
]


def told(cell: str) -> tuple[Any, Any]:
    """The values that a cell names for calls and for programs."""
    calls, _, programs = cell.partition("programs")
    first, last = re.search(r"`([^`]+)`", calls), re.findall(r"`([^`]+)`", programs)
    assert first, cell
    return ast.literal_eval(first[1]), ast.literal_eval(last[-1])


def test_the_table_has_every_option() -> None:
    assert tuple(ROWS) == OPTIONS
    for modes, cell in ((VALUE_MODES, ROWS["compare"][0]), (TEXT_MODES, ROWS["compare"][1])):
        assert re.findall(r"`(\w+)`:", cell) == list(modes)


@pytest.mark.parametrize("option", OPTIONS)
def test_the_defaults_are_the_specs(option: str) -> None:
    calls, programs = told(ROWS[option][2])
    assert getattr(UnitTestReward([]), option) == calls
    assert getattr(StdioReward([]), option) == programs


@pytest.mark.parametrize("option", OPTIONS)
def test_what_formats_set_is_what_they_set(option: str) -> None:
    calls, programs = told(ROWS[option][3])
    assert {getattr(spec, option) for spec in PROGRAMS} == {programs}
    assert getattr(FLOATS, option) == calls
    # A tolerance is for floats: without one among the expected values there is none.
    assert {getattr(spec, option) for spec in CALLS} == {None if option == "tolerance" else calls}


def test_the_classic_list_keeps_the_defaults() -> None:
    classic = reward_spec_from_ground_truth([{"input": 1, "expected": 1.5}])
    assert classic == UnitTestReward([{"input": 1, "expected": 1.5}])


def test_the_table_of_credit_has_every_mode() -> None:
    section = TEXT.partition("### Credit\n")[2].partition("\n###")[0]
    assert re.findall(r'^\| `"(\w+)"` \|', section, re.MULTILINE) == list(CREDITS)
