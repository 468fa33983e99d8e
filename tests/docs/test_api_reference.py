"""docs/reference/api is what the sources say, and has every public name."""

from __future__ import annotations

import inspect
from functools import cache

import pytest

import collimate_rl
import collimate_rl.openenv
import collimate_rl.slime
import collimate_rl.trl
import collimate_rl.verl
import producer
from collimate_rl.errors import CollimateError
from docs.apigen import FOLDER, PAGES, ROOT, items, pages
from docs.apisource import Item, Source

SOURCE = Source(ROOT)
made = cache(pages)  # not at import: every process that collects this file would write all of them


def entries() -> list[tuple[str, Item]]:
    return [(module, item) for name in PAGES for module, found in items(SOURCE, name) for item in found]


@pytest.mark.parametrize("name", [*(f"{name}.md" for name in PAGES), "index.md"])
def test_each_page_is_what_the_sources_say(name: str) -> None:
    there = (FOLDER / name).read_text(encoding="utf-8") if (FOLDER / name).exists() else ""
    assert there == made(SOURCE)[name], (
        f"docs/reference/api/{name} is stale: run `make docs`, and commit what it writes"
    )


def test_there_is_no_other_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(made(SOURCE))


def test_every_public_name_has_its_entry() -> None:
    there = {item.name for module, item in entries()}
    assert set(collimate_rl.__all__) | set(producer.__all__) <= there
    for package in (collimate_rl.openenv, collimate_rl.slime, collimate_rl.trl, collimate_rl.verl):
        assert set(package.__all__) <= {item.name for module, item in entries() if module == package.__name__}
    classes = inspect.getmembers(collimate_rl.errors, inspect.isclass)
    assert {name for name, cls in classes if issubclass(cls, CollimateError)} <= there


def test_every_name_and_every_method_says_what_it_is() -> None:
    silent = [f"{module}.{item.name}" for module, item in entries() if not item.text]
    silent += [
        f"{module}.{item.name}.{member.name}"
        for module, item in entries()
        for member in item.members
        if member.signature and not member.text and member.name not in ("as_json_data", "from_json_data")
    ]
    assert not silent, f"without a docstring: {', '.join(silent)}"
