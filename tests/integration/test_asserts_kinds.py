"""The kinds of test code that data sets hold, each with candidates that pass it and candidates that don't."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.grading.execute import OneShotExecutor
from collimate_rl.grading.group import grade_group
from collimate_rl.grading.result import GradeResult
from collimate_rl.specs import AssertReward


@dataclass
class Kind:
    """A spec with candidates that pass, and ones that fail. `rounds` when the plan has to grow for the passing ones."""

    spec: AssertReward
    right: list[str]
    wrong: list[str] = field(default_factory=list)
    rounds: bool = False


POLY = '''import math


def poly(xs: list, x: float):
    """Evaluates the polynomial with coefficients xs at point x."""
    return sum([coeff * math.pow(x, i) for i, coeff in enumerate(xs)])


def find_zero(xs: list):
    """A point where poly(xs, point) is 0."""
'''
POLY_TEST = """
def check(candidate):
    import copy
    import math
    import random
    rng = random.Random(42)
    for _ in range(50):
        coeffs = [rng.randint(-10, 10) or 1 for _ in range(2 * rng.randint(1, 4))]
        solution = candidate(copy.deepcopy(coeffs))
        assert math.fabs(poly(coeffs, solution)) < 1e-4
"""
BISECT = """    begin, end = -1., 1.
    while poly(xs, begin) * poly(xs, end) > 0:
        begin *= 2.0
        end *= 2.0
    while end - begin > 1e-10:
        center = (begin + end) / 2.0
        if poly(xs, center) * poly(xs, begin) > 0:
            begin = center
        else:
            end = center
    return begin
"""
SHIFT = '''def encode_shift(s: str):
    """Every letter shifted by 5."""
    return "".join([chr(((ord(ch) + 5 - ord("a")) % 26) + ord("a")) for ch in s])


def decode_shift(s: str):
    """The reverse of encode_shift."""
'''
SHIFT_TEST = """
def check(candidate):
    from random import randint, choice
    import copy
    import string
    letters = string.ascii_lowercase
    for _ in range(50):
        str = ''.join(choice(letters) for i in range(randint(10, 20)))
        encoded_str = encode_shift(str)
        assert candidate(copy.deepcopy(encoded_str)) == str
"""
RAISES = """
import unittest
try:
    f(-1)
    assert False, "no error"
except ValueError as e:
    assert "negative" in str(e)
def assert_raises(kind, function, *args):
    try:
        function(*args)
    except kind:
        return
    raise AssertionError(function.__name__)
assert_raises(TypeError, f, "a")
case = unittest.TestCase()
with case.assertRaises(ValueError):
    f(-2)
case.assertRaises(ValueError, f, -3)
case.assertEqual(f(4), 2)
case.assertAlmostEqual(f(2), 1.41421356, places=5)
"""
ROOT = 'def f(x):\n    if x < 0:\n        raise ValueError("negative %d" % x)\n    return x ** 0.5\n'

KINDS: dict[str, Kind] = {
    "a helper of the prompt judges": Kind(
        AssertReward(POLY_TEST, entry="find_zero", prompt=POLY),
        [BISECT, POLY + BISECT, "from __future__ import annotations\ndef find_zero(xs: list):\n" + BISECT],
        ["    return 0.0\n", "    return float('nan')\n", "def poly(xs, x): return 0\ndef find_zero(xs): return 0\n"],
    ),
    "a helper of the prompt encodes": Kind(
        AssertReward(SHIFT_TEST, entry="decode_shift", prompt=SHIFT),
        ["    for _ in range(25):\n        s = encode_shift(s)\n    return s\n"],
        ["    return s\n", "def encode_shift(s): return s\ndef decode_shift(s): return s\n"],
    ),
    "a pair of the candidate's own": Kind(
        AssertReward("for i in range(20):\n    s = 'x' * i + 'ab'\n    assert decode(encode(s)) == s != encode(s)\n"),
        ["import random\ndef encode(s): return s + str(random.random())[:5].zfill(5)\ndef decode(s): return s[:-5]\n"],
        ["def encode(s): return s\ndef decode(s): return s\n", "def encode(s): return s[::-1]\n"],
    ),
    "arguments changed in place": Kind(
        AssertReward(
            "xs = [3, 1, 2]\nassert order(xs) is None and xs == [1, 2, 3]\nd = {'a': [1]}\nadd(d)\n"
            "assert d == {'a': [1, 5], 'b': 2}\nassert same(xs) is xs\nassert fresh(xs) == xs and fresh(xs) is not xs"
        ),
        [
            "def order(xs): xs.sort()\ndef add(d):\n    d['a'].append(5)\n    d['b'] = 2\n"
            "def same(xs): return xs\ndef fresh(xs): return list(xs)\n"
        ],
        [
            "def order(xs): xs.sort()\ndef add(d):\n    d['a'].append(5)\n    d['b'] = 2\n"
            "def same(xs): return list(xs)\ndef fresh(xs): return list(xs)\n",
            "def order(xs): return None\ndef add(d): pass\ndef same(xs): return xs\ndef fresh(xs): return xs\n",
        ],
        rounds=True,
    ),
    "expected exceptions": Kind(
        AssertReward(RAISES),
        [ROOT],
        ["def f(x): return x ** 0.5\n", ROOT.replace("ValueError", "KeyError"), ROOT.replace("negative", "bad")],
    ),
    "an exception class of the candidate's": Kind(
        AssertReward("try:\n    f(1)\n    assert False\nexcept MyError as e:\n    assert e.args == (3,)\n"),
        ["class MyError(Exception): pass\ndef f(x): raise MyError(3)\n"],
        ["def f(x): raise Exception(3)\n", "class MyError(Exception): pass\ndef f(x): raise MyError(4)\n"],
    ),
    "an exception class of the prompt's": Kind(
        AssertReward(
            "caught = 0\ntry:\n    f(1)\nexcept MyError:\n    caught = 1\nassert caught\n",
            entry="f",
            prompt="class MyError(ValueError): pass\ndef f(x):\n    'Raises MyError.'\n",
        ),
        ["    raise MyError('3')\n"],
        ["    raise ValueError('3')\n"],
    ),
    "an exception class of a module": Kind(
        AssertReward("import json\ntry:\n    f('{')\n    assert False\nexcept json.JSONDecodeError:\n    pass\n"),
        ["import json\ndef f(x): return json.loads(x)\n"],
        ["def f(x): raise ValueError\n"],
    ),
    "loops that follow from results": Kind(
        AssertReward(
            "n = count(5)\nassert n == 5\nfor i in range(n):\n    assert square(i) == i * i\n"
            "x = 1\nwhile x < 100:\n    x = double(x)\nassert x == 128\n"
        ),
        ["def count(n): return n\ndef square(x): return x * x\ndef double(x): return 2 * x\n"],
        [
            "def count(n): return n\ndef square(x): return x + x\ndef double(x): return 2 * x\n",
            "def count(n): return n\ndef square(x): return x * x\ndef double(x): return x\n",
            "def count(n): return 10 ** 9\ndef square(x): return x * x\ndef double(x): return x\n",
        ],
        rounds=True,
    ),
    "quantifiers": Kind(
        AssertReward(
            "assert f(1) == 0 or f(1) == 1\nassert all(f(i) == i for i in range(10))\n"
            "assert any(f(i) == 9 for i in range(10))\nassert sorted(map(f, [3, 2, 1])) == [1, 2, 3]\n"
        ),
        ["def f(x): return x\n"],
        ["def f(x): return 0\n", "def f(x): raise StopIteration\n"],
        rounds=True,
    ),
    "a loop that a raised StopIteration would end": Kind(
        AssertReward("def ok(i):\n    assert f(i) == i\n    return True\nassert all(map(ok, range(5)))\n"),
        ["def f(x): return x\n"],
        ["def f(x): raise StopIteration\n"],
    ),
    "a StopIteration that is asked for": Kind(
        AssertReward("try:\n    f([])\n    assert False\nexcept StopIteration:\n    pass\n"),
        ["def f(x): return next(iter(x))\n"],
        ["def f(x): return None\n"],
    ),
    "state from call to call": Kind(
        AssertReward("assert nxt() == 1\nassert nxt() == 2\nassert nxt() == 3\n"),
        ["n = 0\ndef nxt():\n    global n\n    n += 1\n    return n\n"],
        ["def nxt(): return 1\n"],
    ),
    "generators": Kind(
        AssertReward(
            "assert list(gen(3)) == [0, 1, 2]\ng = gen(2)\nassert next(g) == 0 and next(g) == 1\n"
            "try:\n    next(g)\n    assert False\nexcept StopIteration:\n    pass\nassert total(gen(4)) == 6\n"
        ),
        ["def gen(n):\n    yield from range(n)\ndef total(g): return sum(g)\n"],
        ["def gen(n): return list(range(n))\ndef total(g): return sum(g)\n"],
    ),
    "what is printed": Kind(
        AssertReward(
            "import io\nfrom contextlib import redirect_stdout\nout = io.StringIO()\nwith redirect_stdout(out):\n"
            "    hello('x')\nassert out.getvalue() == 'hi x\\n'\n"
        ),
        ["def hello(n): print('hi', n)\n"],
        ["def hello(n): print('ho', n)\n", "def hello(n): return 'hi x\\n'\n"],
    ),
    "builtins as arguments": Kind(
        AssertReward("assert apply(max, [1, 3]) == 3\nassert apply(str.upper, 'a') == 'A'\n"),
        ["def apply(f, x): return f(x)\n"],
        ["def apply(f, x): return 3\n"],
    ),
    "text of the test's own run as code": Kind(
        AssertReward("x = 5\nassert eval('x') == add(2, 3)\nassert eval('1 + 1') == add(1, 1)\n"),
        ["def add(a, b): return a + b\n"],
        ["def add(a, b): return 5\n"],
    ),
    "only greater than is asked": Kind(
        AssertReward("assert not abs(f(1) - 1) > 0.1\n"),
        ["def f(x): return 1.0\n"],
        ["def f(x): return float('nan')\n", "def f(x): return 3\n"],
    ),
    "only greater than is asked, assert by assert": Kind(
        AssertReward(
            "a = f(0)\nassert not abs(a - 1) > 0.1\n" + "assert not abs(f(1) - 1) > 0.1\n" * 2, per_assert=True
        ),
        ["def f(x): return 1.0\n"],
        ["def f(x): return float('nan')\n"],
    ),
    "an argument that is spoilt for later asserts": Kind(
        AssertReward(
            "xs = [1.0]\nassert f(xs) is None and xs\n" + "assert not abs(xs[0] - 2) > 0.1\n" * 2,
            per_assert=True,
        ),
        ["def f(xs): xs[0] += 1\n"],
        ["def f(xs): xs[0] = float('nan')\n"],
    ),
    "what ends a loop, assert by assert": Kind(
        AssertReward("assert all(map(lambda n: f(n) == n, [1, 2]))\n" * 3, per_assert=True),
        ["def f(x): return x\n"],
        ["def f(x): raise StopIteration\n"],
    ),
    "cases of unittest": Kind(
        AssertReward(
            "import unittest\nclass Cases(unittest.TestCase):\n    def test(self): self.assertEqual(f(2), 4)\n"
            "loaded = unittest.defaultTestLoader.loadTestsFromTestCase(Cases)\n"
            "assert unittest.TextTestRunner(stream=open('/dev/null', 'w')).run(loaded).wasSuccessful()\n"
        ),
        ["def f(x): return x * x\n"],
        ["def f(x): return 5\n", "import unittest\ndef f(x): raise unittest.SkipTest\n"],
    ),
    "a record without fields": Kind(
        AssertReward("assert f(0) != 0\nassert f(1) == f(2) and f(1) != f(3)\n"),
        [
            "from dataclasses import dataclass\n@dataclass\nclass A: pass\n@dataclass\nclass B: pass\n"
            "def f(x): return A() if x < 3 else B()\n"
        ],
        ["class A: pass\ndef f(x): return A()\n"],
    ),
    "not a number is asked for": Kind(
        AssertReward("import math\nassert math.isnan(f(1))\n"),
        ["def f(x): return float('nan')\n"],
        ["def f(x): return 1.0\n"],
    ),
    "a reference inside the test": Kind(
        AssertReward(
            "def brute(n):\n    try:\n        return {1: 1}[n]\n    except KeyError:\n        return n * n\n"
            "for i in range(5):\n    assert f(i) == brute(i), f(100)\n"
        ),
        ["def f(x): return x * x\n"],
        ["def f(x): return x\n"],
    ),
    "raising instead of asserting": Kind(
        AssertReward("for i in range(5):\n    r = f(i)\n    if r != i * i:\n        raise Exception(r)\n"),
        ["def f(x): return x * x\n"],
        ["def f(x): return x\n"],
    ),
    "keywords and their changes": Kind(
        AssertReward("assert f(1, b=[2]) == [1, 2]\nxs = []\nf(1, b=xs)\nassert xs == [9]\n"),
        ["def f(a, b):\n    r = [a] + b\n    b.append(9)\n    return r\n"],
        ["def f(a, b): return [a] + b\n"],
    ),
    "randomness and clocks of every sort": Kind(
        AssertReward(
            "import datetime, os, random, time, uuid\nr = random.Random()\nfor _ in range(5):\n    x = r.random()\n"
            "    assert f(x) == x\n    assert f(os.urandom(4)) and f(uuid.uuid4().hex)\n"
            "now = datetime.datetime.now()\nassert f(now) == now and f(datetime.date.today())\n"
            "begun = time.time()\nf(1)\nassert time.time() - begun < 1\n"
        ),
        ["def f(x): return x\n"],
        ["def f(x): return None\n"],
    ),
    "records of the prompt's": Kind(
        AssertReward(
            "assert f(1) == Point(1, 1) and isinstance(f(1), Point)\nassert f(2).y == 2\n",
            entry="f",
            prompt="from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int\n"
            "def f(n):\n    'A point.'\n",
        ),
        ["    return Point(n, n)\n"],
        ["    return (n, n)\n", "    return Point(n, 0)\n"],
    ),
    "containers of every sort": Kind(
        AssertReward(
            "from collections import *\nassert f(deque([1])) == deque([1, 2])\nassert g('aab') == Counter('aab')\n"
            "assert type(h()) is tuple and k(1) is True and k(0) is None\nassert s({1, 2}) == {1, 2, 3}\n"
        ),
        [
            "from collections import Counter\ndef f(d):\n    d.append(2)\n    return d\ndef g(s): return Counter(s)\n"
            "def h(): return (1,)\ndef k(x): return True if x else None\ndef s(x): return x | {3}\n"
        ],
        ["def f(d): return d\ndef g(s): return {}\ndef h(): return [1]\ndef k(x): return x\ndef s(x): return x\n"],
        rounds=True,
    ),
    "more calls than one plan holds": Kind(
        AssertReward("for i in range(2000):\n    assert f(i) == i\n"),
        ["def f(x): return x\n"],
        ["def f(x): return x if x < 1900 else 0\n"],
        rounds=True,
    ),
    "a method of a class": Kind(
        AssertReward("def check(candidate):\n    assert candidate([1, 2]) == 3\n", entry="total"),
        ["class Solution:\n    def total(self, xs):\n        return sum(xs)\n"],
        ["class Solution:\n    def total(self, xs):\n        return 0\n"],
    ),
    "check called by the test itself": Kind(
        AssertReward("def check(candidate):\n    assert candidate(2) == 4\n\ncheck(f)\n", entry="f"),
        ["def f(x): return x * x\n"],
        ["def f(x): return x\n"],
    ),
}


@pytest.fixture
def execute(daemon_socket: str) -> OneShotExecutor:
    return OneShotExecutor(CollimateClient(unix_socket=daemon_socket), "py")


@pytest.mark.parametrize("name", sorted(KINDS))
def test_kind(execute: OneShotExecutor, name: str) -> None:
    kind = KINDS[name]
    candidates = [*kind.right, *kind.wrong]
    grades = grade_group(execute, kind.spec, candidates, seeds=[None] * len(candidates), timeout_seconds=6)
    told = [grade for grade in grades if isinstance(grade, GradeResult)]
    assert len(told) == len(candidates), grades
    right, wrong = told[: len(kind.right)], told[len(kind.right) :]
    assert [grade.reward for grade in right] == [1.0] * len(right), [grade.detail for grade in right]
    assert [grade.reward for grade in wrong] == [0.0] * len(wrong), [grade.flags for grade in wrong]
    assert [grade.outcome for grade in right] == ["passed"] * len(right)
    assert {"replanned" in grade.flags for grade in right} == {kind.rounds}


FAULTS = {
    "passes a value of type function": AssertReward("assert apply(lambda x: x + 1, 3) == 4\n"),
    r"sets \.left of a result": AssertReward("root = Node(1)\nroot.left = Node(2)\nassert height(root) == 2\n"),
    r"reads \.area of a result": AssertReward("assert Square(2).area() == 4\n"),
    "calls a result": AssertReward("assert adder(3)(4) == 7\n"),
    "runs a result as code": AssertReward("assert eval('%s + 0' % expression(24)) == 24\n"),
    "an object of the class": AssertReward(
        "class Mine:\n    pass\nfrom collections import namedtuple\nP = namedtuple('P', 'x')\nassert f(P(1)) == 1\n"
    ),
    "reads or prints with": AssertReward("import io, sys\nsys.stdin = io.StringIO('5')\nassert f() == 5\n"),
    "never calls the candidate": AssertReward("assert 1 + 1 == 2\n"),
    "fails on no results": AssertReward(
        "def check(candidate):\n    try:\n        assert candidate(1) == 5\n    except Exception as error:\n"
        "        print('failed', error)\n",
        entry="f",
    ),
    "whoever the candidate is": AssertReward("import no_such_module\nassert f(1) == 1\n"),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_what_cannot_be_graded_so_is_the_specs_fault(execute: OneShotExecutor, fault: str) -> None:
    spec = replace(FAULTS[fault], integrity="split")
    with pytest.raises(ValueError, match=fault):
        grade_group(execute, spec, ["def f(*a): return 1\n"], seeds=[None])
