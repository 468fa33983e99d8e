"""The benchmark's tables, figures and charts: the arithmetic and the text, on given numbers."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from benchmarks import chart
from benchmarks.report import Figure, Section, Table, Target, figures_table, markdown, plain, section_of, shown

TABLE = Table(
    key="rates",
    title="per second",
    columns=("who", "rate", "why"),
    rows=(("first", 1234.5, "a"), ("second", None, "b")),
    note="medians",
)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, ""),
        ("as it is", "as it is"),
        (12345, "12,345"),
        (0.0, "0"),
        (1234.5, "1,234"),
        (99.94, "99.9"),
        (1.234, "1.23"),
        (0.0123, "0.012"),
        (-55.44, "-55.4"),
    ],
)
def test_cells_have_three_digits_or_so(cell: str | float | None, text: str) -> None:
    assert shown(cell) == text


def test_markdown_puts_numbers_to_the_right() -> None:
    assert markdown(TABLE).split("\n") == [
        "| who | rate | why |",
        "|---|---:|---|",
        "| first | 1,234 | a |",
        "| second |  | b |",
    ]


def test_a_terminal_sees_title_rows_and_note() -> None:
    lines = plain(TABLE).split("\n")
    assert lines[0] == "per second"
    assert lines[-1] == "  (medians)"
    assert len({line.index(end) for line, end in zip(lines[2:4], "ab", strict=True)}) == 1


def test_a_row_has_a_cell_per_column() -> None:
    with pytest.raises(ValueError, match="3 columns"):
        Table(key="t", title="t", columns=("a", "b", "c"), rows=(("only", 1),))


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (Target(bound=0.6), 0.6, "met"),
        (Target(bound=0.6), 0.59, "MISSED"),
        (Target(bound=10, at_least=False), 10, "met"),
        (Target(bound=10, at_least=False), 10.1, "MISSED"),
        (None, 1.0, ""),
    ],
)
def test_a_miss_is_said(target: Target | None, value: float, verdict: str) -> None:
    assert Figure(name="f", value=value, target=target).verdict == verdict


def test_figures_stand_beside_target_and_floor() -> None:
    figure = Figure(name="added", value=12.0, unit="ms", target=Target(bound=10, at_least=False), floor="1 ms")
    [row] = figures_table([figure]).rows
    assert row == ("added", "12.0 ms", "at most 10", "MISSED", "1 ms")


def test_a_section_survives_json() -> None:
    section = Section(
        tables=(TABLE,),
        figures=(Figure(name="f", value=1.0, target=Target(bound=2.0)), Figure(name="g", value=3.0)),
        charts={"c": "<svg/>"},
        data={"raw": [1, 2]},
    )
    assert section_of(json.loads(json.dumps(section.as_json()))) == section


def lengths(svg: str) -> list[float]:
    found = ET.fromstring(svg)
    _background, *bars = found.iter("{http://www.w3.org/2000/svg}rect")
    return [float(each.attrib["width"]) for each in bars]


def test_bars_are_as_long_as_their_values_longest_first() -> None:
    short, long = 50.0, 100.0
    first, second = lengths(chart.bars("a < b", {"short": short, "long": long}, unit="/s"))
    assert first / second == pytest.approx(long / short, rel=0.01)


def test_a_bar_far_beyond_the_rest_is_broken_off_and_says_its_number() -> None:
    svg = chart.bars("far", {"pool": 2000.0, "a": 100.0, "b": 50.0}, unit="/s")
    pool, a, b = lengths(svg)
    assert pool / a == pytest.approx(1.25, rel=0.01)
    assert a / b == pytest.approx(2, rel=0.02)
    assert svg.count("<polyline") == 1
    assert "2,000 /s" in svg


def test_bars_of_nothing_and_of_zero_can_be_drawn() -> None:
    assert lengths(chart.bars("none", {}, unit="/s")) == []
    assert lengths(chart.bars("zero", {"a": 0.0}, unit="/s")) == [1.0]


def test_lines_keep_their_points_in_the_frame_and_leave_out_what_no_logarithm_has() -> None:
    svg = chart.lines("growth", {"cost": [(1, 2), (10, 20), (100, 0)], "flat": [(1, 5), (100, 5)]}, x="K", y="ms")
    circles = list(ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == 4
    places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in circles]
    assert all(chart.LEFT <= x <= chart.WIDTH - chart.RIGHT and chart.TOP <= y <= 320 - chart.BOTTOM for x, y in places)
    assert places[0][0] < places[1][0], "a larger size is further to the right"
    assert places[0][1] > places[1][1], "a higher cost is further up"
    assert places[2][1] == places[3][1], "the same cost is as high"


def test_lines_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="point above zero"):
        chart.lines("none", {"a": [(0, 1)]}, x="x", y="y")
