"""What is read out of test code and prompts before anything runs."""

from __future__ import annotations

import ast
import textwrap
from importlib.resources import files

import pytest

from collimate_rl.guest import MODULES
from collimate_rl.guest.planner import instrument, read_names, reads_check, wanted_names
from collimate_rl.guest.prompt import read_prompt


def wanted(test: str, *, setup: str = "", prompt: str = "", entry: str | None = None, reference: str = "") -> set[str]:
    shape = read_prompt(prompt, entry)
    own = read_prompt(reference, None)
    pieces = [read_names(setup, "<setup>"), read_names(textwrap.dedent(test), "<test>")]
    return wanted_names(pieces, shape.stubs, shape.defined, entry, own.stubs | own.defined)[0]


def test_names_that_nobody_defines_are_the_candidates() -> None:
    test = """
        import math
        LIMIT = 3
        def helper(n):
            inner = [n for n in range(n)]
            return double(n) + math.floor(LIMIT) + len(inner)
        class Case:
            limit = bound
            def run(self): return [treble(x) for x in self.xs]
        assert helper(2) == 4 and str(sum([1]))
    """
    assert wanted(test) == {"double", "bound", "treble"}


def test_names_that_setup_or_prompt_define_are_the_tests_own() -> None:
    prompt = "import re\nRATE = 2\ndef encode(s):\n    return s[::-1]\n\ndef decode(s):\n    '''The reverse.'''\n"
    test = "assert decode(encode(WORD)) == WORD and RATE and re"
    assert wanted(test, setup="WORD = 'abc'", prompt=prompt, entry="decode") == {"decode"}


def test_the_entry_is_recorded_even_where_the_prompt_defines_it() -> None:
    assert wanted("assert add(1, 2) == 3", prompt="def add(a, b):\n    return a - b\n", entry="add") == {"add"}


def test_a_name_that_hides_a_builtin_is_the_candidates_when_the_reference_defines_it() -> None:
    assert wanted("assert sum(1, 2) == 3") == set()
    assert wanted("assert sum(1, 2) == 3", reference="def sum(a, b): return a + b") == {"sum"}
    assert wanted("assert sum(1, 2) == 3", entry="sum") == {"sum"}


def test_unknown_names_in_the_place_of_an_exception_get_a_stand_in() -> None:
    test = "try:\n    f(1)\nexcept (Mine, KeyError):\n    pass\nwith t.assertRaises(Yours): f(2)\nraises(Theirs, f)\n"
    found, stand_ins = wanted_names([read_names(test, "<test>")], set(), set(), "f", set())
    assert stand_ins == {"Mine", "Yours", "Theirs"}
    assert found == {"f", "t", "raises"}


@pytest.mark.parametrize(
    ("body", "stub"),
    [
        ('    """Words."""\n', True),
        ("    pass\n", True),
        ("    ...\n", True),
        ('    """Words."""\n    raise NotImplementedError("yours")\n', True),
        ("    return x\n", False),
        ("    raise ValueError\n", False),
    ],
)
def test_stubs_are_told_from_helpers(body: str, stub: bool) -> None:
    shape = read_prompt("def other(x):\n" + body + "\ndef entry(x):\n    pass\n", "entry")
    assert ("other" in shape.stubs, "other" in shape.defined) == (stub, not stub)
    assert "entry" in shape.stubs


def test_a_prompt_may_end_in_a_bare_signature() -> None:
    shape = read_prompt("import math\n\ndef entry(x):", "entry")
    assert shape.stubs == {"entry"}
    assert shape.preamble.strip() == "import math"


@pytest.mark.parametrize("text", ["", "Write a function that adds two numbers.\n", "add", "Add 1 to x: def f(x)"])
def test_a_prompt_in_words_is_no_program(text: str) -> None:
    shape = read_prompt(text, "add")
    assert (shape.source.strip(), shape.preamble.strip(), shape.stubs, shape.defined) == ("", "", set(), set())


def test_the_preamble_leaves_out_the_entry_and_keeps_the_lines() -> None:
    shape = read_prompt("import os\n@deco\ndef f(x):\n    '''a'''\n\ndef g():\n    return 1\n", "f")
    assert shape.preamble == "import os\n\n\n\n\ndef g():\n    return 1\n"


@pytest.mark.parametrize(
    ("test", "call"),
    [
        ("def check(candidate):\n    assert candidate(1)\n", (True, True)),
        ("def check():\n    assert f(1)\n", (True, False)),
        ("def check(candidate):\n    assert candidate(1)\ncheck(f)\n", (False, False)),
        ("assert f(1)\n", (False, False)),
    ],
)
def test_check_is_called_by_whoever_is_to_call_it(test: str, call: tuple[bool, bool]) -> None:
    assert reads_check(ast.parse(test)) == call


def instrumented(source: str, per_assert: bool = False) -> str:
    tree = ast.parse(textwrap.dedent(source))
    instrument(tree, per_assert)
    return ast.unparse(tree)


def test_assert_messages_are_dropped() -> None:
    assert "f(2)" not in instrumented("assert f(1), f(2)\ndef g():\n    assert f(1), f(2)\n")


def test_docstrings_and_future_imports_stay_first() -> None:
    tree = ast.parse('"""Words."""\nfrom __future__ import annotations\nassert f(1)\n')
    instrument(tree, False)
    compile(tree, "<test>", "exec")


def test_a_helper_may_still_raise_for_its_caller() -> None:
    code = instrumented("def helper(n):\n    raise KeyError(n)\n")
    assert "try" not in code


def test_cases_are_the_top_level_asserts() -> None:
    tree = ast.parse(
        "assert f(1)\nfor n in (1, 2):\n    assert f(n)\ndef check(c):\n    assert c(1)\n    assert c(2)\n"
    )
    assert instrument(tree, True) == 3


def test_the_judges_modules_share_no_name() -> None:
    """They become one text, where a later definition would take an earlier one's place."""
    owners: dict[str, set[str]] = {}
    for module in MODULES["judge"]:
        tree = ast.parse(files("collimate_rl.guest").joinpath(f"{module}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                owners.setdefault(node.name, set()).add(module)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        owners.setdefault(target.id, set()).add(module)
    assert {name: where for name, where in owners.items() if len(where) > 1} == {}
