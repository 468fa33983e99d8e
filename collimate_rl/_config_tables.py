"""Which top-level tables a `collimate.toml` may hold. Each program reads its own of them, and refuses a file that holds
others: a table whose name is mistyped would otherwise be left out without a word."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLES = {"worker": "[worker]", "templates": "[templates.NAME]"}
"""By name, how each is written."""


class UnknownTable(ValueError):
    """The file holds a table (or a key beside its tables) that no program of ours reads."""


def check_tables(path: Path, document: Mapping[str, Any]) -> None:
    """Raises `UnknownTable`, which names what is there, and what there may be."""
    unknown = sorted(set(document) - set(TABLES))
    if unknown:
        named = ", ".join(f"[{name}]" if isinstance(document[name], dict) else name for name in unknown)
        known = " and ".join(TABLES.values())
        raise UnknownTable(f"the configuration file {path} holds {named}, which nothing reads: there are {known}")
