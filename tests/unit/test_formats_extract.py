"""Code extraction: the kinds of completion that models write, and the kinds that break extractors."""

from __future__ import annotations

import ast
import json
import re
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collimate_rl.formats.extract import extract_code

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
CODE = "def solve(x):\n    return x + 1"
OTHER = "def solve(x):\n    return x + 2"
BODY = "    total = 0\n    for y in x:\n        total += y\n    return total"


def fenced(code: str, tag: str = "python", mark: str = "```") -> str:
    return f"{mark}{tag}\n{code}\n{mark}"


# Fences


@pytest.mark.parametrize(
    "tag",
    [
        *("python", "py", "python3", "Python", "PY", "python ", " python", "python\t", "python3.11"),
        *("{python}", "{.python .lines}", 'python title="a.py"', "python:main.py"),
    ],
)
def test_tags_of_the_wanted_language(tag: str) -> None:
    text = f"{fenced('int x;', 'c++')}\nSo:\n{fenced(CODE, tag)}\n{fenced('6', '')}\nand\n{fenced('make', 'bash')}"
    assert extract_code(text) == CODE


@pytest.mark.parametrize("tag", ["", "c++", "text", "code", "PYTHON", "java"])
@pytest.mark.parametrize("code", [CODE, "this is no code (", BODY])
def test_the_only_fence_is_the_answer(tag: str, code: str) -> None:
    assert extract_code(f"Here you are:\n\n{fenced(code, tag)}\n\nIt adds one.") == code


def test_the_last_fence_of_the_wanted_language() -> None:
    text = f"{fenced(CODE)}\nNo, that is off by one.\n{fenced(OTHER, 'py')}\n{fenced('x = 1', '')}"
    assert extract_code(text) == OTHER
    assert extract_code(f"{fenced('a = 1')}\n{fenced('b = 2')}") == "b = 2"


@pytest.mark.parametrize("usage", ["print(solve(3))", "assert solve(1) == 2\nassert solve(2) == 3"])
def test_an_example_call_is_not_the_solution(usage: str) -> None:
    assert extract_code(f"{fenced(CODE)}\nExample:\n{fenced(usage)}") == CODE
    solution = "class Solution:\n    def solve(self, x):\n        return x"
    assert extract_code(f"{fenced(solution)}\nExample:\n{fenced('print(Solution().solve(3))')}") == solution
    # A program that does not name the entry at all is a program.
    assert extract_code(f"{fenced(CODE)}\nFinally:\n{fenced('print(int(input()) + 1)')}") == "print(int(input()) + 1)"


@pytest.mark.parametrize(
    "output", ["6", "[1, 2, 3]", "YES\nNO", "result: 7", "True", "'text'", "1 2 3", "-4", "Out: ok"]
)
def test_an_example_output_is_not_the_solution(output: str) -> None:
    for tag in ("", "text", "output", "console"):
        assert extract_code(f"{fenced(CODE, '')}\nOutput:\n{fenced(output, tag)}") == CODE
    program = "print(int(input()) + 1)"
    assert extract_code(f"{fenced(program, '')}\nOutput:\n{fenced(output, '')}") == program


def test_an_untagged_fence_that_parses_is_preferred_to_one_that_does_not() -> None:
    assert extract_code(f"{fenced(CODE, '')}\n{fenced('def solve(x) return x', '')}") == CODE
    assert extract_code(f"{fenced(CODE, '')}\n{fenced(OTHER, '')}") == OTHER
    assert extract_code(f"{fenced(CODE, 'solution')}\n{fenced('run it', 'sh')}") == CODE


@pytest.mark.parametrize("tag", ["python", ""])
def test_an_unclosed_fence_at_the_end_counts(tag: str) -> None:
    assert extract_code(f"So:\n```{tag}\n{CODE}") == CODE
    assert extract_code(f"{fenced(CODE, tag)}\nBetter:\n```{tag}\n{OTHER}\n") == OTHER
    assert extract_code(f"```{tag}\n{CODE}\nNow better.\n```python\n{OTHER}\n") == OTHER


def test_carriage_returns() -> None:
    text = f"So:\n{fenced(CODE, 'python ')}\nOutput:\n{fenced('6', '')}\n".replace("\n", "\r\n")
    assert extract_code(text) == CODE


@pytest.mark.parametrize("mark", ["```", "````", "~~~"])
def test_marks(mark: str) -> None:
    code = CODE + "\n# ```" if mark != "```" else CODE
    assert extract_code(f"So:\n{fenced(code, 'python', mark)}\nDone.") == code


def test_a_fence_in_a_list_loses_the_indentation_of_the_list() -> None:
    item = "\n".join("    " + line for line in fenced(CODE).split("\n"))
    assert extract_code(f"1. Like so:\n\n{item}\n\n2. Done.") == CODE


def test_a_fence_in_a_docstring_ends_nothing() -> None:
    examples = "    ```\n    solve(1)\n    ```\n\n    ```python\n    solve(2)\n    ```"
    code = f'def solve(x):\n    """Adds.\n\n{examples}\n    """\n    return x'
    assert extract_code(f"So:\n{fenced(code)}\nDone.") == code
    assert extract_code(code) == code


def test_marks_in_the_middle_of_a_line() -> None:
    assert extract_code(f"Here: ```python\n{CODE}\n```\nDone.") == CODE
    assert extract_code(f"So:\n```python\n{CODE}```\nThis adds one.") == CODE
    assert extract_code(f"So:\n```python\n{CODE}```\nUse:\n```python\nprint(solve(1))\n```") == CODE


def test_blank_lines_and_trailing_blanks_go_and_indentation_stays() -> None:
    assert extract_code(f"```python\n\n\n{BODY}\n\n\n```") == BODY
    assert extract_code(f"\n\n{BODY}\n\n") == BODY


def test_empty_fences() -> None:
    assert extract_code("```python\n```") == ""
    assert extract_code(f"{fenced(CODE)}\n```python\n```") == CODE
    assert extract_code(f"{fenced(CODE)}\n```python") == CODE


# Thoughts


def test_thoughts_are_dropped() -> None:
    thought = f"<think>\nMaybe\n{fenced(OTHER)}\n```python\nno\n</think>\n"
    assert extract_code(thought + CODE) == CODE
    assert extract_code(thought + fenced(CODE)) == CODE
    assert extract_code(f"maybe {fenced(OTHER)} hm</think>again</think>{CODE}") == CODE
    assert extract_code(thought) == ""


@pytest.mark.parametrize("before", ["", "\n", "Well. ", f"{CODE}\n", f"{fenced(CODE)}\n"])
def test_a_thought_that_never_ends_means_no_code(before: str) -> None:
    assert extract_code(f"{before}<think>\nSo\n{fenced(CODE)}\nand") == ""


def test_the_word_in_the_code_is_no_thought() -> None:
    code = "def solve(x):\n    return x.replace('<think>', '')"
    assert extract_code(code) == code
    assert extract_code(f"So:\n{fenced(code)}\nDone.") == code


# Without fences


def test_code_alone_is_taken_as_it_is() -> None:
    for code in (CODE, BODY, "import sys\nprint(sys.stdin.read())", f"import math\n\n{CODE}\n\nprint(solve(1))"):
        assert extract_code(code) == code
        assert extract_code(f"{code}\n") == code


def test_a_body_and_what_follows_it() -> None:
    code = f"{BODY}\n\ndef helper(y):\n    return y"
    assert extract_code(code) == code


@pytest.mark.parametrize(
    "after", ["", "\n\nThis adds one.", "\n\nExplanation\nIt's simple.", "\n\n**Done!**\n- a\n- b"]
)
@pytest.mark.parametrize(
    "before", ["", "Sure! Here is it:\n\n", "First, a draft.\n\ndef solve(x):\n    pass\n\nNow it:\n"]
)
def test_the_slice_from_the_definition(before: str, after: str) -> None:
    assert extract_code(before + CODE + after) == CODE


def test_the_slice_takes_imports_and_helpers_along() -> None:
    above = "import math\nfrom typing import List\n\nLIMIT = 3\n\n\ndef helper(y):\n    return y\n\n\n@staticmethod\n"
    code = above + CODE
    assert extract_code(f"from the above it follows that\n\n{code}\n\nIt is done.") == code


def test_the_slice_of_another_entry_and_of_a_method() -> None:
    assert extract_code("Well:\ndef add(a, b):\n    return a + b\n", entry="add") == "def add(a, b):\n    return a + b"
    code = "class Solution:\n    def add(self, a, b):\n        return a + b"
    assert extract_code(f"Well:\n{code}\nThat's it.", entry="add") == code
    assert extract_code(f"Well:\n{code}\nThat's it.", entry="Solution.add") == code


def test_code_that_is_wrong_stays_for_the_interpreter_to_judge() -> None:
    code = "def solve(x):\n    y = (x\n    return y"
    assert extract_code(f"Well:\n{code}") == code
    assert extract_code(code) == code


def test_prose_stays_prose() -> None:
    assert extract_code("I cannot do that.") == "I cannot do that."
    assert extract_code("") == ""


# Robustness


def test_no_warning_reaches_the_trainer() -> None:
    code = "def solve(x):\n    return '\\d' + '\\'' + x"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert extract_code(f"So:\n{fenced(code, '')}\nand\n{fenced('6', '')}") == code


@pytest.mark.parametrize(
    "text",
    [
        "(" * 200_000,
        "1+" * 100_000,
        "```" * 100_000,
        "`" * 300_000 + "a`",
        "```a" * 100_000,
        "```\n" * 50_000,
        "```python\n" * 50_000,
        "def solve(x):\n" * 5_000,
        "x\ndef solve(\n" * 5_000,
        "<think>" * 50_000,
        "\0" * 1000,
        "\ud800def solve(x):\n    return 1",
        "~" * 100_000,
    ],
)
def test_hostile_completions_end(text: str) -> None:
    assert isinstance(extract_code(text), str)


FRAGMENTS = [
    "```python\n",
    "```\n",
    "~~~\n",
    "def solve(x):\n",
    "    return x\n",
    "<think>",
    "</think>",
    "prose\n",
    "`",
    "\r",
]


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=5)), max_size=12).map("".join))
def test_any_text_gives_a_text_and_the_same_again(text: str) -> None:
    code = extract_code(text)
    assert code == code.rstrip()
    if code.strip() and "```" not in code and "~~~" not in code and "think>" not in code:
        again = extract_code(code)
        assert again == code or again in code


@pytest.mark.parametrize("piece", ["`", "```\n", "~~~a", "` ", " ", "a```", "<think>", "```python\nx = 1\n"])
def test_long_texts_are_read_in_no_time(piece: str) -> None:
    begun = time.process_time()
    for text in (piece * 30_000, "```" + piece * 30_000 + "`x", piece * 30_000 + "`"):
        extract_code("words\n" + text)
    assert time.process_time() - begun < 20


def test_a_byte_order_mark_is_no_code() -> None:
    assert extract_code("\ufeffdef solve(x): return x\n") == "def solve(x): return x"


def rows(name: str) -> list[dict[str, str]]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs the data set slices at {DATA}")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("wrap", ["{}", "{}\n", "```python\n{}\n```", "Here:\n\n```\n{}\n```\nOutput:\n```\n5\n```\n"])
def test_every_reference_of_the_data_sets_survives(wrap: str) -> None:
    for row in rows("humaneval.jsonl"):
        body = re.sub(r"\A(?:[ \t]*\n)+", "", row["canonical_solution"].rstrip())
        for code in (body, (row["prompt"] + body).lstrip("\n")):
            assert extract_code(wrap.format(code), row["entry_point"]) == code
            ast.parse(code if code is not body else row["prompt"] + extract_code(wrap.format(body)))
    for row in rows("mbpp.jsonl"):
        code = row["code"].replace("\r\n", "\n").rstrip()
        assert extract_code(wrap.format(row["code"])) == code
