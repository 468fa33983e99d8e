"""`python -m benchmarks.publish`: puts the committed results into the documents.

A document names a table of them by a pair of marks, and what stands between them is written from here alone:

    <!-- figures: PART/TABLE -->
    <!-- end of figures -->

PART/figures is a part's figures, and targets all figures that have a target. With `--check` nothing is written; the
exit code says whether the documents hold what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.report import Figure, Table, figures_table, markdown, section_of

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = Path(__file__).resolve().parent / "results" / "reference.json"
DOCUMENTS: Final = (ROOT / "docs" / "explanation" / "performance.md", ROOT / "docs" / "howto" / "sizing.md")
CHARTS: Final = ROOT / "docs" / "explanation" / "charts"
_MARKED = re.compile(r"(<!-- figures: ([\w/-]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)


def figures_of(parts: Mapping[str, Any]) -> list[Figure]:
    """All figures of these parts, in order."""
    return [figure for told in parts.values() for figure in section_of(told).figures]


def block(parts: Mapping[str, Any], name: str) -> str:
    """What stands between the marks of that name; KeyError when the results have no such table."""
    if name == "targets":
        aimed = [figure for figure in figures_of(parts) if figure.target is not None]
        loads = [told["machine"]["load_before"] for told in parts.values()]
        load = f"*The machine's load before each part: {min(loads)} to {max(loads)}.*"
        return f"\n{markdown(figures_table(aimed))}\n\n{load}\n\n"
    part, _, key = name.partition("/")
    told = parts[part]
    section = section_of(told)
    tables = {table.key: table for table in section.tables}
    table: Table = figures_table(section.figures, title="figures") if key == "figures" else tables[key]
    lines = [markdown(table), "", f"*{_caption(table, told)}*"]
    return "\n" + "\n".join(lines) + "\n\n"


def _caption(table: Table, told: Mapping[str, Any]) -> str:
    machine = told["machine"]
    what = table.title[:1].upper() + table.title[1:]
    note = f" {table.note[:1].upper()}{table.note[1:]}." if table.note else ""
    return (
        f"{what}.{note} {machine['cores']} cores, Python {machine['python']}, {machine['date']}, load before: "
        f"{machine['load_before']}."
    )


def filled(text: str, parts: Mapping[str, Any]) -> str:
    """A document's text with every marked block as the results say."""
    return _MARKED.sub(lambda found: found[1] + block(parts, found[2]) + found[4], text)


def names_in(text: str) -> list[str]:
    """The blocks that a document asks for."""
    return [found[2] for found in _MARKED.finditer(text)]


def reference() -> dict[str, Any]:
    """The committed results, by part; empty where nothing has been published yet."""
    if not REFERENCE.exists():
        return {}
    parts: dict[str, Any] = json.loads(REFERENCE.read_text())["parts"]
    return parts


def publish(told: Mapping[str, Any]) -> None:
    """Merge these parts into the committed results, and write documents and charts from them. Raw values are left out:
    they are in the run's own file."""
    parts = {**reference(), **{name: {**part, "data": {}} for name, part in told.items()}}
    REFERENCE.parent.mkdir(parents=True, exist_ok=True)
    REFERENCE.write_text(json.dumps({"parts": parts}, indent=1) + "\n")
    for path, content in written(parts).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        print(f"published: {path.relative_to(ROOT)}")


def written(parts: Mapping[str, Any]) -> dict[Path, str]:
    """Every document and chart with the content that the results give it."""
    found = {path: filled(path.read_text(), parts) for path in DOCUMENTS}
    for part in parts.values():
        found.update({CHARTS / f"{name}.svg": svg for name, svg in part["charts"].items()})
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when something is out of date")
    options = parser.parse_args(argv)
    if not options.check:
        publish({})
        return 0
    stale = [path for path, text in written(reference()).items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"out of date: {path.relative_to(ROOT)}: run python -m benchmarks.publish", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
