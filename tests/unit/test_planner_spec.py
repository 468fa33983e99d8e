"""AssertReward: how completions become programs, how a spec travels, what it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path

import pytest

from collimate_rl.specs import AssertReward, spec_from_wire

PROMPT = (
    "from typing import List\n\n\ndef helper(n):\n    return n + 1\n\n\n"
    'def total(xs: List[int]) -> int:\n    """ The sum.\n    >>> total([1])\n    1\n    """\n'
)
SPEC = AssertReward("def check(candidate):\n    assert candidate([1, 2]) == 3\n", entry="total", prompt=PROMPT)


def total(completion: str, spec: AssertReward = SPEC) -> object:
    """What the program made of a completion gives for [1, 2]; the error's class where it is none."""
    space: dict[str, object] = {}
    try:
        exec(compile(spec.program(completion), "program", "exec", dont_inherit=True), space)
    except Exception as error:  # noqa: BLE001 - the class is what the test asks for
        return type(error)
    return space["total"]([1, 2])  # type: ignore[operator]


@pytest.mark.parametrize(
    "completion",
    [
        "    return sum(xs)\n",
        "    return sum(xs)",
        "\n\n    return sum(xs)\n",
        "    s: List[int] = xs\n    return helper(sum(s)) - 1\n\n\ndef other():\n    return 1\n",
        "return sum(xs)",
        "s = 0\n    for x in xs:\n        s += x\n    return s",
        "import math\n    return math.floor(sum(xs))",
        "for x in xs:\n        pass\n    return sum(xs)",
        "if not xs:\n        return 0\n    return sum(xs)",
        "def same(x):\n        return x\n    return sum(map(same, xs))",
        "s = sum(xs,\n            0)\n    return s",
        "for x in xs:\n    return sum(xs)",
        "if xs:\n        return sum(xs)",
        "# The sum.\n    return sum(xs)",
        "s = 0\nfor x in xs:\n    s += x\nreturn s\n",
        "for x in xs:\n    pass\nreturn sum(xs)\n",
        PROMPT + "    return sum(xs)\n",
        "def total(xs: List[int]) -> int:\n    return helper(sum(xs)) - 1\n",
        "import math\n\ndef total(xs):\n    return math.floor(sum(xs))\n",
        "def aid(xs): return sum(xs)\n\ndef total(xs):\n    return aid(xs)\n",
        "total = sum\n",
        "total: object = sum\n",
        "from __future__ import annotations\nfrom __future__ import division\ndef total(xs: A):\n    return sum(xs)\n",
        '"""Words."""\nfrom __future__ import annotations\n\ndef total(xs: Unknown):\n    return sum(xs)\n',
        "from __future__ import annotations  # for A\ndef total(xs: A):\n    return sum(xs)\n",
        "from __future__ import (annotations,\n    division)\ndef total(xs: A):\n    return sum(xs)\n",
        "from __future__ import annotations; import math\ndef total(xs: A):\n    return math.fsum(xs)\n",
        "async def other(): pass\ndef total(xs): return sum(xs)\n",
        "# A comment first.\ndef total(xs):\n    return sum(xs)\n",
        "    # A comment first.\n    return sum(xs)\n",
    ],
)
def test_a_completion_is_a_body_or_repeats_the_signature(completion: str) -> None:
    assert total(completion) == 3


def test_an_odd_completion_is_read_in_no_time() -> None:
    begun = time.process_time()
    for odd in (" " * 300_000 + "!", " (" + " " * 300_000, " a," * 100_000):
        SPEC.program("from __future__ import" + odd + "\ndef total(xs): return sum(xs)\n")
    assert time.process_time() - begun < 5


def test_the_stub_does_not_stand_in_for_a_completion_that_defines_something_else() -> None:
    space: dict[str, object] = {}
    exec(SPEC.program("def summe(xs):\n    return sum(xs)\n"), space)
    assert "total" not in space


def test_a_completion_that_is_no_python_stays_the_candidates_fault() -> None:
    assert total("    return return\n") is SyntaxError


def test_without_a_prompt_or_behind_words_a_completion_stands_alone() -> None:
    code = "def total(xs):\n    return sum(xs)\n"
    assert AssertReward("assert total([1]) == 1").program(code) == code
    words = AssertReward("assert total([1]) == 1", entry="total", prompt="Add up the numbers, please.\n")
    assert words.program(code) == code


def test_a_class_as_prompt_takes_a_method_as_completion() -> None:
    prompt = "class Solution:\n    def total(self, xs):\n        '''The sum.'''\n"
    space: dict[str, object] = {}
    exec(
        AssertReward("assert total([1]) == 1", entry="total", prompt=prompt).program("        return sum(xs)\n"), space
    )
    assert space["Solution"]().total([1, 2]) == 3  # type: ignore[operator]


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        AssertReward("assert f(1)", setup="import math", reference="def f(x): return x", per_assert=True),
        AssertReward("assert f('\u00e9')", case_timeout_s=0.5, max_cases=7),
    ],
)
def test_a_spec_travels(spec: AssertReward) -> None:
    wire = json.loads(json.dumps(spec.to_wire()))
    again = spec_from_wire(wire)
    assert again == spec
    assert isinstance(again, AssertReward)
    assert again.digest == spec.digest
    assert len(spec.digest) == 64


def test_digests_tell_specs_apart() -> None:
    assert len({AssertReward("assert f(1)", **extra).digest for extra in ({}, {"setup": "x = 1"}, {"entry": "f"})}) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"test": ""},
        {"test": "  \n"},
        {"test": "assert f(1"},
        {"test": 7},
        {"test": "assert f(1)", "setup": "def"},
        {"test": "assert f(1)", "prompt": None},
        {"test": "assert f(1)", "entry": "no name"},
        {"test": "assert f(1)", "entry": "Class.method"},
        {"test": "assert f(1)", "reference": 1},
        {"test": "assert f(1)", "per_assert": "yes"},
        {"test": "assert f(1)", "case_timeout_s": 0},
        {"test": "assert f(1)", "max_cases": True},
        {"test": "assert f(1)", "cases": 3},
        {},
    ],
)
def test_bad_ground_truth_is_a_value_error(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        spec_from_wire({"type": "assert", **fields})


@pytest.mark.parametrize(("body", "reward"), [("return sum(xs)", 1.0), ("return 0", 0.0), ("raise SystemExit", 0.0)])
def test_the_classic_program_runs_candidate_and_test_together(tmp_path: Path, body: str, reward: float) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(f"def total(xs): {body}\n")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(SPEC.build(str(path)), "program", "exec"), {})
    assert SPEC.parse("noise\n" + said.getvalue()) == reward
