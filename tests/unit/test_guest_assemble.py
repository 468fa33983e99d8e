"""Assembled programs mean what their modules mean."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collimate_rl import guest
from collimate_rl.guest.assemble import assemble, minified


def run(source: str, kept: tuple[str, ...] = ()) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "assembled"}
    exec(compile(minified(source, kept), "<minified>", "exec"), space)
    return space


def test_only_what_people_read_goes() -> None:
    source = '''"""Doc."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple

from collimate_rl.guest.plain import dumps

Alias = Dict[str, Any]
LIMIT: int = 3  # a comment


class Pair(NamedTuple):
    left: int


class Empty(Exception):
    """Nothing but words."""


def outer(first: int, *rest: int, word: str = "a: b", **more: Any) -> Any:
    """Doc."""
    total: int = first
    bare: int
    try:
        raise Empty("no # comment")
    except Empty as fault:
        text = "%s" % fault
    inner = lambda value: value + total
    return [inner(item) for item in rest], text, {"first": first, **more}, word
'''
    text = minified(source, ["word"])
    assert "Doc" not in text
    assert "comment" in text
    assert "# a" not in text
    assert "collimate_rl" not in text
    assert "Alias" not in text
    space = run(source, ("word",))
    assert space["Pair"](5).left == 5
    assert space["outer"](1, 2, 3, word="w", k=5) == ([3, 4], "no # comment", {"first": 1, "k": 5}, "w")
    assert space["LIMIT"] == 3


def test_names_passed_by_keyword_are_kept() -> None:
    source = "def f(long_name, other):\n    return long_name - other\n"
    text = minified(source, ["long_name"])
    assert "long_name" in text
    assert "other" not in text


def test_what_stands_side_by_side_stays_apart() -> None:
    source = """
import json
import os, sys
def told(x):
    if x == 1_000_000:
        return "many" if x in (1_000_000,) else b"" or r"few"
    yield "one"
    return 1 if x else "none"
word = "a" "b" 'c' if not "" and "x" in "xyz" else u"d"
"""
    plain: dict[str, Any] = {"__name__": "plain"}
    exec(source, plain)
    made = run(source)
    assert made["word"] == plain["word"] == "abc"
    assert list(made["told"](1)) == ["one"]
    assert minified(source).startswith("import json,os,sys\n")
    assert minified(source).count("import") == 1
    assert 'return"many"if' in minified(source)


def test_globals_and_imports_inside_functions_are_kept() -> None:
    source = """
count = 0
def up():
    global count
    import math as numbers
    count += numbers.floor(1.5)
    for count2 in range(2):
        pass
    return count, count2
"""
    space = run(source)
    assert space["up"]() == (1, 1)
    assert space["count"] == 1


def test_a_none_that_is_returned_anyway_goes() -> None:
    source = "def f(x):\n    if x: return None\n    return None or x\ntext = 'return None'\n"
    assert minified(source) == "def f(x):\n if x:return\n return None or x\ntext='return None'\n"


def test_statements_stand_side_by_side_and_mean_the_same() -> None:
    source = """
import functools
told = []
def note(word):
    told.append(word)
    return word
class Kept:
    first = note("class")
    @functools.lru_cache(None)
    def get(self, n):
        total = 0
        for k in range(n):
            if k % 2:
                note("odd")
                continue
            total += k
        else:
            note("else")
        while total > 100:
            total -= 1
        return total
    last = note("end")
try:
    note("try")
    1 / 0
except ZeroDivisionError:
    with open(0, closefd=False) as stream:
        note("except")
        note("with")
finally:
    (note("finally"), note("tuple"))
text = \"\"\"
    kept: as it is
\"\"\"
"""
    plain: dict[str, Any] = {"__name__": "plain"}
    exec(source, plain)
    made = run(source)
    assert made["Kept"]().get(4) == plain["Kept"]().get(4) == 2
    assert made["told"] == plain["told"]
    assert made["text"] == plain["text"]
    assert len(minified(source).splitlines()) < 25


def test_the_text_depends_on_the_sources_alone() -> None:
    code = "from collimate_rl.guest import MODULES, assemble; print([assemble(MODULES[name]) for name in MODULES])"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2)
    }
    assert len(seen) == 1


@pytest.mark.parametrize("name", sorted(guest.programs()))
def test_every_program_parses_as_python_38(name: str) -> None:
    ast.parse(guest.programs()[name], feature_version=(3, 8))
    assert assemble(guest.MODULES[name]) == guest.programs()[name]


def test_guest_modules_are_preloaded() -> None:
    wanted: set[str] = set()
    for text in guest.programs().values():
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
    assert wanted - {"builtins", "sys"} <= set(guest.PRELOAD) | set(sys.builtin_module_names)
