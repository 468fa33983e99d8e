"""Figures in the documents come from the committed results, and from nowhere else."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from benchmarks import publish
from benchmarks.report import Figure, Section, Table, Target
from benchmarks.targets import TARGETS
from tests.fixtures.fences import ROOT

MARK = "<!-- figures:"
PART = {
    **Section(
        tables=(Table(key="rates", title="rates", columns=("who", "per second"), rows=(("a", 12.5),), note="medians"),),
        figures=(
            Figure(name="ratio", value=0.5, target=Target(bound=0.6)),
            Figure(name="plain", value=1.0),
        ),
    ).as_json(),
    "machine": {"cores": 2, "python": "3.11", "kernel": "6", "date": "2026-01-01", "load_before": 0.1},
}


def test_documents_and_charts_hold_what_the_results_say() -> None:
    parts = publish.reference()
    assert parts, "benchmarks/results/reference.json: make bench PUBLISH=1 writes it"
    for path, content in publish.written(parts).items():
        assert path.read_text() == content, f"{path.relative_to(ROOT)} is out of date: python -m benchmarks.publish"


@pytest.mark.parametrize("document", publish.DOCUMENTS, ids=lambda path: path.name)
def test_every_mark_is_a_block_that_is_written(document: object) -> None:
    text = document.read_text()  # type: ignore[attr-defined]
    assert publish.names_in(text), "a document among these has figures"
    assert text.count(MARK) == len(publish.names_in(text)), "a mark without its end, or with another form"


def test_every_chart_of_a_document_is_drawn_from_the_results() -> None:
    drawn = {path.name for path in publish.written(publish.reference()) if path.suffix == ".svg"}
    for document in publish.DOCUMENTS:
        for name in re.findall(r"charts/([\w-]+\.svg)\)", document.read_text()):
            assert name in drawn


def test_a_block_holds_the_table_and_where_it_was_measured() -> None:
    text = f"before\n{MARK} p/rates -->\nstale\n<!-- end of figures -->\nafter\n"
    filled = publish.filled(text, {"p": PART})
    assert "| a | 12.5 |" in filled
    assert "stale" not in filled
    assert "*Rates. Medians. 2 cores, Python 3.11, 2026-01-01, load before: 0.1.*" in filled
    assert filled.startswith("before\n")
    assert filled.endswith("after\n")
    assert publish.filled(filled, {"p": PART}) == filled


def test_targets_are_the_figures_that_have_one_and_a_miss_is_in_it() -> None:
    block = publish.block({"p": PART}, "targets")
    assert "| ratio | 0.50 | at least 0.6 | MISSED |" in block
    assert "plain" not in block
    assert "plain" in publish.block({"p": PART}, "p/figures")


def test_a_table_that_nobody_measured_is_no_block() -> None:
    with pytest.raises(KeyError):
        publish.block({"p": PART}, "p/other")


def test_published_figures_keep_the_targets_of_today() -> None:
    for figure in publish.figures_of(publish.reference()):
        if figure.target is not None and figure.name in TARGETS:
            assert asdict(figure.target) == asdict(TARGETS[figure.name]), f"measure {figure.name!r} again"
