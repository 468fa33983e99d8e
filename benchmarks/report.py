"""What a part of the benchmark hands over: tables and figures, printed, kept as JSON, and put into the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Cell = str | int | float | None
"""None is "does not apply"."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a figure is to be: `at_least` a number, or at most it."""

    bound: float
    at_least: bool = True
    why: str = ""

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    @property
    def text(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number people ask for. `floor` says what the same machine does at best, in words and numbers."""

    name: str
    value: float
    unit: str = ""
    target: Target | None = None
    floor: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target is met; a miss is said, and nothing fails by it."""
        if self.target is None:
            return ""
        return "met" if self.target.met(self.value) else "MISSED"


@dataclass(frozen=True, kw_only=True)
class Table:
    """`key` is unique within its part: by it documents name the table."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.key!r} has {len(self.columns)} columns, and a row of {len(row)}")


@dataclass(frozen=True, kw_only=True)
class Section:
    """All that one part measured. `charts` are SVG texts by name, `data` the raw values."""

    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    charts: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain data; what `section_of` reads again."""
        return {
            "tables": [asdict(table) for table in self.tables],
            "figures": [asdict(figure) for figure in self.figures],
            "charts": dict(self.charts),
            "data": dict(self.data),
        }


def section_of(told: Mapping[str, Any]) -> Section:
    """The section that `as_json` wrote."""
    return Section(
        tables=tuple(
            Table(**{**table, "columns": tuple(table["columns"]), "rows": tuple(map(tuple, table["rows"]))})
            for table in told["tables"]
        ),
        figures=tuple(
            Figure(**{**figure, "target": None if figure["target"] is None else Target(**figure["target"])})
            for figure in told["figures"]
        ),
        charts=told.get("charts", {}),
        data=told.get("data", {}),
    )


def shown(cell: Cell) -> str:
    """Three significant digits, thousands with commas; a cell of text as it is."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if cell == 0:
        return "0"
    if abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.{2 if abs(cell) < 10 else 1}f}" if abs(cell) >= 0.1 else f"{cell:.2g}"


def markdown(table: Table) -> str:
    """A Markdown table without its title, numbers to the right."""
    kinds = [any(isinstance(row[place], int | float) for row in table.rows) for place in range(len(table.columns))]
    lines = [
        "| " + " | ".join(table.columns) + " |",
        "|" + "|".join("---:" if number else "---" for number in kinds) + "|",
        *("| " + " | ".join(shown(cell) for cell in row) + " |" for row in table.rows),
    ]
    return "\n".join(lines)


def plain(table: Table) -> str:
    """The table for a terminal, its title above it."""
    cells = [list(table.columns), *([shown(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.columns))]
    lines = [table.title]
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  " + "  ".join([row[0].ljust(widths[0]), *rest]).rstrip())
    if table.note:
        lines.append(f"  ({table.note})")
    return "\n".join(lines)


def figures_table(figures: Sequence[Figure], key: str = "figures", title: str = "against the targets") -> Table:
    """Figures with their targets and floors, as a table."""
    return Table(
        key=key,
        title=title,
        columns=("figure", "measured", "target", "", "floor on this machine"),
        rows=tuple(
            (
                figure.name,
                f"{shown(figure.value)}{' ' + figure.unit if figure.unit else ''}",
                "" if figure.target is None else figure.target.text,
                figure.verdict,
                figure.floor,
            )
            for figure in figures
        ),
    )
