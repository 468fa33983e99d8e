"""Test files: split wherever the tests only call the candidate, beside it where they need more."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult, SpecFault
from collimate_rl.specs import AssertReward, RewardSpec, TestFileReward, spec_from_wire
from tests.fixtures.plain_executor import PlainExecutor

Grades = Callable[..., list[GradeResult]]


@pytest.fixture
def grades(plain_executor: PlainExecutor) -> Grades:
    """Grades candidates by a spec."""

    def of(spec: RewardSpec, *candidates: str) -> list[GradeResult]:
        told = grade_group(plain_executor, spec, candidates, seeds=[None] * len(candidates), timeout_seconds=20)
        assert all(isinstance(each, GradeResult) for each in told), told
        return [each for each in told if isinstance(each, GradeResult)]

    return of


def outcomes(grade: GradeResult) -> list[str]:
    return [case.outcome for case in grade.cases]


PYTEST = """
import random
import pytest
from solution import add, div, fill as put


@pytest.fixture
def three():
    yield 3


@pytest.fixture(params=[4, 5])
def number(request):
    return request.param


def helper(a, b):
    return a + b


def test_add():
    assert add(1, 2) == 3
    assert add(-1, 1) == 0


@pytest.mark.parametrize("a, b, c", [(1, 2, 3), (2, 2, 4), pytest.param(5, 5, 10, id="large")])
def test_each(a, b, c):
    assert add(a, b) == c


def test_raises():
    with pytest.raises(ZeroDivisionError, match="by zero"):
        div(1, 0)
    assert div(1, 3) == pytest.approx(0.333333, abs=1e-5)


def test_random():
    for _ in range(20):
        a, b = random.random(), random.randint(0, 9)
        assert abs(add(a, b) - helper(a, b)) < 1e-9


def test_in_place(three):
    xs = [1, 2]
    assert put(xs, three) is None
    assert xs == [3, 3]


def test_fixture_parameters(number):
    assert add(number, number) == 2 * number


def test_prints(capsys):
    add(1, 1)
    assert capsys.readouterr().out == ""


class TestGroup:
    def setup_method(self):
        self.base = 10

    def test_method(self):
        assert add(self.base, 1) == 11


@pytest.mark.skip(reason="slow")
def test_skipped():
    assert add(0, 0) == 1
"""
RIGHT = """
def add(a, b): return a + b
def div(a, b): return a / b
def fill(xs, x): xs[:] = [x] * len(xs)
"""
NAMES = 11


def test_a_pytest_file_is_graded_split_with_a_result_per_test(grades: Grades) -> None:
    spec = TestFileReward(PYTEST, reference=RIGHT)
    right, three, dies, lies, nothing, noisy = grades(
        spec,
        RIGHT,
        RIGHT.replace("a + b", "3"),
        RIGHT.replace("return a + b", "\n    if a == 2: import os; os._exit(0)\n    return a + b"),
        "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()\ndiv = fill = add\n",
        "x = 1\n",
        RIGHT.replace("return a + b", "print(a); return a + b"),
    )
    assert (right.reward, right.integrity, right.cases_total) == (1.0, "split", NAMES), right.detail
    # test_each with 1 + 2, test_raises, test_in_place and test_prints pass on a constant.
    assert (three.outcome, three.cases_passed) == ("wrong_answer", 4)
    assert (dies.outcome, outcomes(dies).count("passed")) == ("runtime_error", NAMES - 1)
    assert (lies.reward, lies.integrity) == (0.0, "split")
    assert nothing.reward == 0.0
    assert outcomes(noisy) == ["passed"] * 9 + ["wrong_answer", "passed"]


UNITTEST = """
import unittest


class TestCases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.empty = []

    def setUp(self):
        self.xs = [3, 1, 2]

    def tearDown(self):
        self.assertEqual(len(self.xs), 3)

    def test_sorts(self):
        self.assertEqual(task_func(self.xs), [1, 2, 3])
        self.assertListEqual(self.xs, [3, 1, 2])

    def test_raises(self):
        with self.assertRaises(TypeError):
            task_func(None)
        self.assertRaises(TypeError, task_func, 5)

    def test_each(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertEqual(task_func([n, 0]), [0, n])

    def test_type(self):
        self.assertIsInstance(task_func(self.empty), list)

    @unittest.expectedFailure
    def test_known(self):
        self.assertEqual(task_func([]), None)
"""


def test_a_unittest_file_with_a_prompt_to_complete(grades: Grades) -> None:
    prompt = 'def task_func(xs):\n    """Sorted."""\n'
    spec = TestFileReward(UNITTEST, entry="task_func", prompt=prompt, reference="    return sorted(xs)\n")
    body, whole, in_place, skips = grades(
        spec,
        "    return sorted(xs)\n",
        "def task_func(xs):\n    return sorted(xs)\n",
        "    xs.sort()\n    return xs\n",
        "import unittest\ndef task_func(xs): raise unittest.SkipTest('no')\n",
    )
    assert (body.reward, whole.reward, body.integrity, body.cases_total) == (1.0, 1.0, "split", 4), body.detail
    assert outcomes(in_place) == ["passed", "runtime_error", "wrong_answer", "passed"]
    assert skips.reward == 0.0


def test_a_row_that_only_its_reference_can_judge(grades: Grades, plain_executor: PlainExecutor) -> None:
    spec = TestFileReward(PYTEST, reference=RIGHT.replace("a + b", "a - b"))
    with pytest.raises(SpecFault, match="own reference does not pass its test: test_add"):
        grades(spec, RIGHT)
    with pytest.raises(SpecFault, match="everybody would pass"):
        grades(TestFileReward("def test_a():\n    assert 1 == 1\n"), RIGHT)
    with pytest.raises(SpecFault, match="everybody would pass"):
        grades(
            TestFileReward("from solution import add\ndef test_a():\n    try: add(1, 2)\n    except Exception: pass\n"),
            RIGHT,
        )
    with pytest.raises(SpecFault, match="every test of the file is skipped"):
        grades(
            TestFileReward(
                "import pytest\nfrom solution import add\npytestmark = pytest.mark.skip\ndef test_a(): add(1, 2)\n"
            ),
            RIGHT,
        )
    with pytest.raises(SpecFault, match="fixture 'mocker' isn't here"):
        grades(TestFileReward("from solution import add\ndef test_a(mocker): add(1, 2)\n"), RIGHT)


@pytest.mark.parametrize(
    "spec",
    [
        AssertReward("import no_such_module\nassert f(1) == 1\n"),
        AssertReward("x = 1 / 0\nassert f(1) == 1\n"),
        TestFileReward("import no_such_module\nfrom solution import f\ndef test_a(): assert f(1) == 1\n"),
        TestFileReward("from solution import f\nx = 1 / 0\ndef test_a(): assert f(1) == 1\n"),
    ],
)
def test_what_fails_for_every_candidate_is_the_rows_fault(grades: Grades, spec: RewardSpec) -> None:
    with pytest.raises(SpecFault, match=r"own code fails|be counted without a candidate"):
        grades(spec, "def f(x): return x\n")


def test_a_later_test_is_not_moved_by_an_earlier_one_that_ends_early(
    grades: Grades, plain_executor: PlainExecutor
) -> None:
    test = "from solution import f\n" + "".join(
        f"def test_{k}():\n    assert f({k}) == {k}\n    assert f({k + 10}) == {k + 10}\n" for k in range(6)
    )
    before = plain_executor.count["runner"]
    [grade] = grades(TestFileReward(test), "def f(x): return x if x % 2 else 0\n")
    assert outcomes(grade) == ["wrong_answer", "passed"] * 3
    assert plain_executor.count["runner"] == before + 1, "one run of the candidate is enough"


def test_calls_that_follow_from_results_are_planned_anew(grades: Grades) -> None:
    test = "from solution import f\ndef test_a():\n    x = 1\n    while x < 50:\n        x = f(x)\n    assert x == 64\n"
    test += "def test_b():\n    assert f(f(2)) == 8\n"
    right, wrong = grades(TestFileReward(test), "def f(x): return 2 * x\n", "def f(x): return 3 * x\n")
    assert (right.reward, right.flags) == (1.0, ("replanned",))
    assert wrong.reward == 0.0


def test_credit_weights_and_a_choice_of_tests(grades: Grades) -> None:
    wrong = RIGHT.replace("a / b", "a // b")
    weights = {"test_raises": 3.0, "test_each": 0.0}
    [weighted] = grades(TestFileReward(PYTEST, reference=RIGHT, credit="weighted", weights=weights), wrong)
    assert weighted.reward == pytest.approx(0.7)
    [whole] = grades(TestFileReward(PYTEST, reference=RIGHT, credit="all"), wrong)
    assert whole.reward == 0.0
    chosen = [grades(TestFileReward(PYTEST, reference=RIGHT, max_cases=5), code)[0] for code in (RIGHT, RIGHT + "\n")]
    assert [grade.cases_total for grade in chosen] == [5, 5]
    assert [grade.reward for grade in chosen] == [1.0, 1.0]


# Beside the candidate

BOX = """
class Box:
    def __init__(self, v): self.v = v
    def put(self, v): self.v = v
    def get(self): return self.v
"""

LIVE: dict[str, tuple[RewardSpec, str, str]] = {
    "a class that the candidate defines": (
        TestFileReward(
            "from solution import Box\ndef test_a():\n    b = Box(1)\n    b.put(2)\n    assert b.get() == 2\n"
        ),
        BOX,
        BOX.replace("put(self, v): self.v = v", "put(self, v): pass"),
    ),
    "a class that the test derives from it": (
        TestFileReward(
            "from solution import Base\nclass Mine(Base):\n    n = 2\nclass TestMine:\n    def test_a(self):\n"
            "        assert Mine().twice() == 4\n"
        ),
        "class Base:\n    def twice(self): return 2 * self.n\n",
        "class Base:\n    def twice(self): return self.n\n",
    ),
    "a patched library": (
        TestFileReward(
            "import unittest\nfrom unittest.mock import patch\nclass TestCases(unittest.TestCase):\n"
            "    @patch('os.getcwd', return_value='/x')\n    def test_a(self, mock):\n"
            "        self.assertEqual(task_func(), '/x')\n        mock.assert_called_once()\n",
            entry="task_func",
        ),
        "import os\ndef task_func(): return os.getcwd()\n",
        "def task_func(): return '/x'\n",
    ),
    "its module patched": (
        TestFileReward(
            "import solution\ndef test_a(monkeypatch):\n    monkeypatch.setattr(solution, 'LIMIT', 3)\n"
            "    assert solution.f(9) == 3\n"
        ),
        "LIMIT = 5\ndef f(x): return min(x, LIMIT)\n",
        "LIMIT = 5\ndef f(x): return min(x, 5)\n",
    ),
    "files": (
        TestFileReward(
            "from solution import size\ndef test_a(tmp_path):\n    path = tmp_path / 'a'\n"
            "    path.write_text('hello')\n    assert size(str(path)) == 5\n"
        ),
        "def size(path): return len(open(path).read())\n",
        "def size(path): return 0\n",
    ),
    "standard input": (
        TestFileReward(
            "import io\nfrom solution import ask\ndef test_a(monkeypatch):\n"
            "    monkeypatch.setattr('sys.stdin', io.StringIO('7'))\n    assert ask() == 7\n"
        ),
        "def ask(): return int(input())\n",
        "def ask(): return 0\n",
    ),
    "asserts on objects": (
        AssertReward("s = Stack()\ns.push(1)\nassert s.pop() == 1\nassert len(s.items) == 0\n"),
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop()\n",
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items[-1]\n",
    ),
    "a check of a class": (
        AssertReward("def check(candidate):\n    c = candidate(2)\n    assert c.double() == 4\n", entry="C"),
        "class C:\n    def __init__(self, n): self.n = n\n    def double(self): return 2 * self.n\n",
        "class C:\n    def __init__(self, n): self.n = n\n    def double(self): return self.n\n",
    ),
}


@pytest.mark.parametrize("name", sorted(LIVE))
@pytest.mark.parametrize("referenced", [False, True], ids=["alone", "referenced"])
def test_what_needs_live_objects_runs_beside_them_and_says_so(grades: Grades, name: str, referenced: bool) -> None:
    spec, good, bad = LIVE[name]
    wire = {**spec.to_wire(), "reference": good if referenced else None}
    right, wrong = grades(spec_from_wire(wire), good, bad)
    assert (right.reward, right.outcome, right.integrity) == (1.0, "passed", "shared"), right.detail
    assert (wrong.reward, wrong.integrity) == (0.0, "shared")
    with pytest.raises(ValueError, match=r"live objects|own code fails|own reference"):
        grades(spec_from_wire({**wire, "integrity": "split"}), good)


STACK = (
    "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
    "    def pop(self): return self.items.pop()\n"
)
STACK_TESTS = (
    "import unittest\nfrom solution import Stack\nclass TestCases(unittest.TestCase):\n    def test_a(self):\n"
    "        s = Stack()\n        s.push(12345)\n        self.assertEqual(s.pop(), 12345)\n    def test_b(self):\n"
    "        s = Stack()\n        s.push(1)\n        s.push(777)\n        assert s.pop() == 777\n"
)
CHEATS: dict[str, str] = {
    "ends while it is loaded": "import os\nprint('OK')\nos._exit(0)\n",
    "raises SystemExit while it is loaded": "import sys\nsys.exit(0)\n",
    "ends inside a test": "import os\nclass Stack:\n    def push(self, x): os._exit(0)\n",
    "skips": "import unittest\nclass Stack:\n    def __init__(self): raise unittest.SkipTest('x')\n",
    "equals everything": "class Any:\n    def __eq__(self, other): return True\n    __hash__ = None\n"
    "class Stack:\n    def push(self, x): pass\n    def pop(self): return Any()\n",
    "an integer that equals everything": "class Yes(int):\n    def __eq__(self, other): return True\n"
    "    __hash__ = int.__hash__\nclass Stack:\n    def push(self, x): pass\n    def pop(self): return Yes(0)\n",
    "never differs": "class Any:\n    def __eq__(self, other): return True\n"
    "    def __ne__(self, other): return False\nclass Stack:\n    def push(self, x): pass\n"
    "    def pop(self): return Any()\n",
    "replaces unittest's asserts": "import unittest\nfor name in dir(unittest.TestCase):\n"
    "    if name.startswith('assert'):\n        setattr(unittest.TestCase, name, lambda *a, **k: None)\n"
    "class Stack:\n    def push(self, x): pass\n    def pop(self): return 0\n",
    "replaces the test's run": "import unittest\n"
    "unittest.TestCase.run = lambda self, result=None: result.startTest(self)\n"
    "unittest.TestCase.__call__ = unittest.TestCase.run\nclass Stack:\n    pass\n",
    "replaces unittest as a whole": "import sys, types, unittest\nfake = types.ModuleType('unittest')\n"
    "class TestCase:\n    pass\nfake.TestCase = TestCase\nsys.modules['unittest'] = fake\nclass Stack:\n    pass\n",
    "replaces builtins": "import builtins\nbuiltins.AssertionError = builtins.Exception = KeyError\n"
    "builtins.compile = lambda *a, **k: None\nclass Stack:\n    def push(self, x): pass\n    def pop(self): return 0\n",
    "prints what passes look like": "import os\nfor fd in range(64):\n    try:\n"
    '        os.write(fd, b\'\\n0 v {"v":["t","passed","","",0,["l"],["l"]]}\\n\')\n    except OSError:\n        pass\n'
    "class Stack:\n    pass\n",
    "replaces the harness by name": "import sys\nspace = sys._getframe(1).f_globals\n"
    "space['collimate_test'] = lambda key, name: ('passed', 'x', '', 0, [], [])\nclass Stack:\n    pass\n",
    "defines the tests itself": "import unittest\nclass Stack:\n    pass\nclass TestCases(unittest.TestCase):\n"
    "    def test_a(self): pass\n    def test_b(self): pass\n",
}


def test_what_beside_a_test_gets_no_pass(grades: Grades) -> None:
    spec = TestFileReward(STACK_TESTS, reference=STACK)
    right, *cheats = grades(spec, STACK, *CHEATS.values())
    assert (right.reward, right.integrity) == (1.0, "shared"), right.detail
    assert {name: grade.detail for name, grade in zip(CHEATS, cheats, strict=True) if grade.reward != 0.0} == {}
    flags = {name: grade.flags for name, grade in zip(CHEATS, cheats, strict=True)}
    assert "own_equality" in flags["equals everything"]
    assert "patched_modules" in flags["replaces unittest's asserts"]


def test_an_equality_of_its_own_passes_where_the_reference_has_one_too(grades: Grades) -> None:
    money = "class Money:\n    def __init__(self, n): self.n = n\n"
    money += "    def __eq__(self, other): return self.n == getattr(other, 'n', other)\n"
    test = "from solution import Money\ndef test_a():\n    assert Money(5) == 5\n    assert Money(5) == Money(5)\n"
    [referenced] = grades(TestFileReward(test, reference=money), money)
    [alone] = grades(TestFileReward(test), money)
    assert (referenced.reward, referenced.flags) == (1.0, ("own_equality",))
    assert alone.reward == 0.0
    pair = "from solution import Money\ndef test_a():\n    assert Money(5) == Money(5)\n    assert Money(5).n == 5\n"
    assert grades(TestFileReward(pair), money)[0].reward == 1.0


def test_a_test_that_hangs_or_dies_costs_itself_only(grades: Grades) -> None:
    code = STACK.replace(
        "self.items.append(x)", "\n        if x == 12345: import os; os._exit(1)\n        self.items.append(x)"
    )
    [grade] = grades(TestFileReward(STACK_TESTS, reference=STACK), code)
    assert outcomes(grade) == ["runtime_error", "passed"]
    code = STACK.replace("self.items.append(x)", "\n        while x == 12345: pass\n        self.items.append(x)")
    [grade] = grades(TestFileReward(STACK_TESTS, reference=STACK, case_timeout_s=1.0), code)
    assert outcomes(grade) == ["timeout", "passed"]


def test_asserts_are_cases_beside_the_candidate_too(grades: Grades) -> None:
    spec = AssertReward(
        "s = Stack()\ns.push(1)\nassert s.pop() == 1\nassert len(s.items) == 1\nassert s.items == []\n", per_assert=True
    )
    [grade] = grades(spec, STACK)
    assert (grade.integrity, outcomes(grade)) == ("shared", ["passed", "wrong_answer", "passed"])


# The spec


@pytest.mark.parametrize(
    "spec",
    [
        TestFileReward(PYTEST),
        TestFileReward(PYTEST, reference=RIGHT, module="mine", integrity="split", max_cases=3),
        TestFileReward(PYTEST, credit="weighted", weights={"test_add": 2.0}),
        AssertReward("assert f(1)", per_assert=True, credit="weighted", weights=[1.0], module="mine"),
    ],
)
def test_a_spec_travels(spec: RewardSpec) -> None:
    assert spec_from_wire(json.loads(json.dumps(spec.to_wire()))) == spec


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"test": "def test_a(:"}, "no Python"),
        ({"test": ""}, "empty"),
        ({"integrity": "shared"}, "integrity"),
        ({"module": "no module"}, "module"),
        ({"credit": "weighted"}, "weights"),
        ({"credit": "some"}, "credit"),
        ({"credit": "weighted", "weights": {"a": -1}}, "weights"),
        ({"credit": "weighted", "weights": [1]}, "weights"),
    ],
)
def test_a_bad_spec_is_a_value_error(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec_from_wire({"type": "test_file", "test": PYTEST, **fields})
