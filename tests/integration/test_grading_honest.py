"""Right solutions get 1.0, however they are written, whatever they print, and however large their answers are."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.formats import reward_spec_from_ground_truth
from collimate_rl.rewards import AssertReward, StdioReward, TestFileReward, UnitTestReward, grade, grade_batch
from tests.fixtures import honest

HAS_NUMPY = find_spec("numpy") is not None  # the daemon's template is this interpreter
SUMS = StdioReward([{"stdin": "3\n1 2 3\n", "stdout": "6\n"}, {"stdin": "2\n5 5\n", "stdout": "10\n"}])
SQUARES = UnitTestReward([{"input": n, "expected": n * n} for n in (2, 3, -4)])
HUNDRED: Any = 0
for _ in range(100):
    HUNDRED = [HUNDRED]


@pytest.fixture
def client(daemon_socket: str) -> CollimateClient:
    return CollimateClient(unix_socket=daemon_socket)


def test_programs(client: CollimateClient) -> None:
    results = grade_batch(client, "py", list(honest.PROGRAMS.values()), SUMS, concurrency=3)
    assert {name: r.detail for name, r in zip(honest.PROGRAMS, results, strict=True) if r.reward != 1.0} == {}
    assert {name: r.flags for name, r in zip(honest.PROGRAMS, results, strict=True) if r.flags} == {}


def test_functions(client: CollimateClient) -> None:
    results = grade_batch(client, "py", list(honest.FUNCTIONS.values()), SQUARES, concurrency=3)
    assert {name: r.detail for name, r in zip(honest.FUNCTIONS, results, strict=True) if r.reward != 1.0} == {}
    assert {name: r.flags for name, r in zip(honest.FUNCTIONS, results, strict=True) if r.flags} == {}


STARTED = """
class Solution:
    def merge(self, intervals: List[List[int]], seen: Optional[dict] = None) -> List[int]:
        seen = defaultdict(int, Counter([a for a, _ in intervals]))
        return [pow(7, 2, 40), gcd(12, 18), *sorted(seen), copy.deepcopy(inf) > 0]
"""


def test_starter_code_without_imports(client: CollimateClient) -> None:
    gt = {"fn_name": "merge", "inputs": [[[[2, 3], [1, 2]]]], "outputs": [[9, 6, 1, 2, True]]}
    spec = reward_spec_from_ground_truth(gt)
    own = STARTED.replace("def merge", "def List(self): pass\n    def merge") + "List = Optional = dict\n"
    codes = [
        STARTED,
        "from __future__ import annotations\n" + STARTED,
        own.replace("List[", "dict["),
        "def other(): pass\n",
    ]
    results = grade_batch(client, "py", codes, spec)
    assert [(r.reward, r.outcome) for r in results] == [(1.0, "passed")] * 3 + [(0.0, "no_entry_point")]
    lacking = UnitTestReward([{"input": 1, "expected": 2}], prelude="from math import *\nimport no_such_module\n")
    assert grade(client, "py", "def solve(x): return factorial(x) + 1\n", lacking).reward == 1.0


OWN_ERRORS = """\
import pytest
from solution import Broken, solve
def test_its_base():
    with pytest.raises(ValueError):
        solve("base")
def test_itself():
    with pytest.raises(Broken, match="too far"):
        solve("itself")
def test_any():
    with pytest.raises(Exception) as caught:
        solve("any")
    assert caught.value.args == ("any",)
def test_none():
    assert solve("") == ""
"""


def test_exceptions_of_its_own_in_a_file_of_pytests_kind(client: CollimateClient) -> None:
    code = "class Broken(ValueError): pass\nclass Odd(Exception): pass\ndef solve(x):\n"
    code += "    if x == 'any': raise Odd(x)\n    if x: raise Broken('too far')\n    return x\n"
    wrong = code.replace("Broken(ValueError)", "Broken(KeyError)")
    right, other = grade_batch(client, "py", [code, wrong], TestFileReward(OWN_ERRORS))
    assert (right.reward, right.integrity, right.detail) == (1.0, "split", None)
    assert (other.reward, other.integrity) == (0.75, "split")


def test_wrapped_answers(client: CollimateClient) -> None:
    spec = reward_spec_from_ground_truth({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[[1]], [[2]]]})
    codes = ["def f(x): return [x]\n", "def f(x): return [[x]]\n", "def f(x): return x\n", "def f(x): return [[[x]]]\n"]
    assert [r.reward for r in grade_batch(client, "py", codes, spec)] == [1.0, 1.0, 0.0, 0.0]


def test_expecting_what_equals_nothing_is_the_row_s_fault(client: CollimateClient) -> None:
    nan: Any = [{"input": 1, "expected": [float("nan")]}]
    with pytest.raises(ValueError, match="test 0 expects what equals nothing"):
        grade(client, "py", "def solve(x): return [float('nan')]\n", UnitTestReward(nan))
    assert (
        grade(client, "py", "def solve(x): return [float('nan')]\n", UnitTestReward(nan, compare="json")).reward == 1.0
    )


ANSWERS: list[tuple[str, Any, Any]] = [
    ("return a[::-1]", [list(range(100_000))], list(range(99_999, -1, -1))),
    ("return [x / 7 for x in a]", [list(range(100_000))], [x / 7 for x in range(100_000)]),
    ("return [float(x) for x in a]", [list(range(100_000))], list(range(100_000))),
    ("return [[x] for x in a]", [list(range(30_000))], [[x] for x in range(30_000)]),
    ("return 'é' * a", 300_000, "é" * 300_000),
    ("return 7 ** a", 20_000, 7**20_000),
    ("return [a.sort(), a][1]", [[3, 1, 2]], [1, 2, 3]),
    ("return set(a)", [[3, 1, 3]], {1, 3}),
    ("return {k: 1 for k in reversed(range(a))}", 10_000, dict.fromkeys(range(10_000), 1)),
    ("for _ in range(100): a = [a]\n    return a", 0, HUNDRED),
    ("return a", "\ud800", "\ud800"),
]


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_answers_of_every_size_and_kind(client: CollimateClient, number: int) -> None:
    code, given, expected = ANSWERS[number]
    result = grade(
        client, "py", f"def solve(a):\n    {code}\n", UnitTestReward([{"input": given, "expected": expected}])
    )
    assert result.reward == 1.0, result.detail


OUTPUTS: list[tuple[str, list[tuple[str, str]]]] = [
    ("print('\\n'.join(map(str, range(60_000))))", [("", "\n".join(map(str, range(60_000))))]),
    ("print(input() * 1_900_000)", [(c, c * 1_900_000) for c in "abcde"]),
    ("print('\U0001f600' * 100_000)", [("", "\U0001f600" * 100_000)] * 8),
    ("import os\nos.write(1, b'\\xff\\n')\nprint('ok')", [("", "\ufffd\nok")]),
    ("import sys\nprint(len(sys.stdin.read()))", [("x" * 2_000_000, "2000000")]),
    ("print(len(str(2 ** 20_000)), len(str(int(input()))))", [("7" * 20_000, "6021 20000")]),
    ("import time\ntime.sleep(1.5)\nprint(input())", [(c, c) for c in "abcde"]),
    ("print(1 / 3)", [("", "0.333333")]),
    ("print(6.0)", [("", "6")]),
]


@pytest.mark.parametrize("number", range(len(OUTPUTS)))
def test_output_of_every_size_and_kind(client: CollimateClient, number: int) -> None:
    code, cases = OUTPUTS[number]
    spec = reward_spec_from_ground_truth({"inputs": [a for a, _ in cases], "outputs": [b for _, b in cases]})
    result = grade(client, "py", code, spec, timeout_seconds=15)
    assert result.reward == 1.0, result.detail


def test_values_of_every_kind_that_honest_code_returns(client: CollimateClient) -> None:
    names = [name for name in honest.VALUES if HAS_NUMPY or "numpy" not in name]
    tests = [{"input": honest.VALUES[name][0], "expected": honest.VALUES[name][1]} for name in names]
    spec = UnitTestReward(tests, compare="json", tolerance=1e-6)
    result = grade(client, "py", honest.VALUES_CODE, spec, timeout_seconds=60)
    assert [name for name, case in zip(names, result.cases, strict=True) if case.outcome != "passed"] == [], (
        result.detail
    )
    assert result.reward == 1.0


def test_values_of_every_kind_that_python_itself_calls_equal(client: CollimateClient) -> None:
    space: dict[str, Any] = {}
    exec(honest.EXACT, space)
    pairs = honest.EXACT_VALUES
    code = f"{honest.EXACT}def solve(text): return eval(text)\n"
    spec = UnitTestReward([{"input": text, "expected": eval(other, space)} for text, other in pairs.items()])
    result = grade(client, "py", code, spec)
    passed = [case.outcome == "passed" for case in result.cases]
    assert [text for text, right in zip(pairs, passed, strict=True) if not right] == [], result.detail
    lines = [f"assert solve({text!r}) == {other}" for text, other in pairs.items()]
    result = grade(client, "py", code, AssertReward("\n".join(lines), entry="solve", setup=honest.EXACT))
    assert result.reward == 1.0, result.detail


def test_outputs_of_every_kind_that_honest_programs_print(client: CollimateClient) -> None:
    names = [name for name in honest.OUTPUTS if HAS_NUMPY or "numpy" not in name]
    cases = [(str(n), honest.OUTPUTS[name][1]) for n, name in enumerate(names)]
    spec = reward_spec_from_ground_truth({"inputs": [a for a, _ in cases], "outputs": [b for _, b in cases]})
    table = [honest.OUTPUTS[name][0] for name in names]
    result = grade(client, "py", f"exec({table!r}[int(input())])\n", spec, timeout_seconds=60)
    assert [name for name, case in zip(names, result.cases, strict=True) if case.outcome != "passed"] == [], (
        result.detail
    )


def test_files_of_tests(client: CollimateClient) -> None:
    split = TestFileReward(
        "import pytest\nfrom solution import f\n@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_a(n):\n    assert f(n) == n\n",
        reference="def f(n): return n\n",
    )
    live = TestFileReward(
        "import unittest\nfrom unittest.mock import patch\nclass TestCases(unittest.TestCase):\n"
        "    @patch('os.getcwd', return_value='/x')\n"
        "    def test_a(self, mock):\n        self.assertEqual(f(1), '/x')\n"
    )
    good, bad = grade_batch(client, "py", ["def f(n): return n\n", "def f(n): return 1\n"], split)
    assert (good.reward, bad.reward, good.integrity, good.cases_total) == (1.0, 0.5, "split", 2), good.detail
    codes = ["import os\ndef f(n): return os.getcwd()\n", "import os\ndef f(n): os._exit(0)\n"]
    good, bad = grade_batch(client, "py", codes, live)
    assert (good.reward, bad.reward, good.integrity) == (1.0, 0.0, "shared"), good.detail


def test_a_checker_judges_in_a_fork_of_its_own(client: CollimateClient) -> None:
    checker = "def check(given, got, expected): return sum(map(int, got.split())) == int(given)\n"
    spec = StdioReward([{"stdin": "5", "stdout": "2 3"}], checker=checker)
    good, bad = grade_batch(client, "py", ["print(1, int(input()) - 1)\n", "print(2, 2)\n"], spec)
    assert (good.reward, bad.reward, good.integrity) == (1.0, 0.0, "split")
