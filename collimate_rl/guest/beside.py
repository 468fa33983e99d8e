"""Tests that need the candidate's live objects: they run beside it, in its own process.

Nothing that happens here can be trusted as what a judge says can. What is done to make cheating hard: the test's code
comes sealed, and its key only with the first test that is asked for, once the candidate has been loaded; a pass is a
word that the sealed text holds, one for each test; what tests rely on (builtins, unittest, the stand-in for pytest) is
put back before every test; a comparison in which an object of the candidate's own class claims to equal plain data is
told. Which tests there are is known from outside, so that one that never ran has failed.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import json
import operator
import os
import random
import sys
import types
import unittest
from typing import Any, Callable, Dict, List, Set, Tuple

from collimate_rl.guest.planner import instrument
from collimate_rl.guest.pytests import Failed, approx, stand_in
from collimate_rl.guest.testfile import FAILED, PASSED, Test, TestFile, definitions

OWN = "solution.py"
KEPT_NAMES = dict(collimate_begin=0, collimate_test=0)  # noqa: C408 - as keywords: whoever calls them knows these
PLAIN = (int, float, complex, str, bytes, bool, type(None), list, tuple, dict, set, frozenset, approx)
MOST_NODES = 10_000


class Scene:
    """What this process holds: the candidate's module, the tests once they are unsealed, and what was before both."""

    def __init__(self) -> None:
        self.sealed = ""
        self.module = types.ModuleType("solution")
        self.file: Dict[str, Test] = {}
        self.words: Dict[str, str] = {}
        self.job: Dict[str, Any] = {}
        self.opened = False
        self.flags: Set[str] = set()
        self.before = _state()
        self.modules = [(n, sys.modules[n]) for n in sorted(sys.modules) if n == "builtins" or n.startswith("unittest")]
        self.classes = {id(kind) for kind in _all_classes()}

    def put_back(self) -> None:
        """Makes what tests rely on as it was, and notes whether it wasn't."""
        for owner, name, value in self.before:
            space = vars(owner)
            if space.get(name, scene) is not value:
                self.flags.add("patched_modules")
                setattr(owner, name, value)
        for name, module in self.modules:
            sys.modules[name] = module

    def claims(self, one: Any, other: Any) -> bool:
        """Whether one of the two holds an object that answers for itself, and the other is plain data."""
        mine, theirs = self.answers_for_itself(one), self.answers_for_itself(other)
        return mine != theirs and _is_plain(other if mine else one)

    def answers_for_itself(self, value: Any) -> bool:
        rest, left = [value], MOST_NODES
        while rest and left:
            left -= 1
            item = rest.pop()
            kind = type(item)
            if kind in (list, tuple, set, frozenset):
                rest.extend(item)
            elif kind is dict:
                rest.extend(item.keys())
                rest.extend(item.values())
            elif any("__eq__" in vars(base) and not self.known(base) for base in kind.__mro__):
                return True
        return False

    def known(self, kind: Any) -> bool:
        """Whether a class is none of the candidate's: it was there before, or it is a library's."""
        if id(kind) in self.classes:
            return True
        home = sys.modules.get(kind.__module__)
        path = getattr(home, "__file__", None) or ""
        return os.sep in path and not path.endswith(OWN) and vars(home).get(kind.__name__) is kind


def _state() -> List[Tuple[Any, str, Any]]:
    owners: List[Any] = [builtins, operator]
    owners += [module for name, module in sorted(sys.modules.items()) if name.startswith("unittest")]
    owners += [unittest.TestCase, unittest.TestResult, approx, Test, TestFile, Failed]
    return [(o, n, v) for o in owners for n, v in list(vars(o).items()) if not (n.startswith("__") and n != "__eq__")]


def _all_classes() -> List[Any]:
    found: List[Any] = []
    rest: List[Any] = [object]
    while rest:
        kind = rest.pop()
        found.append(kind)
        rest.extend(type.__subclasses__(kind))
    return found


def _is_plain(value: Any) -> bool:
    rest, left = [value], MOST_NODES
    while rest and left:
        left -= 1
        item = rest.pop()
        if type(item) not in PLAIN:
            return False
        if type(item) in (list, tuple, set, frozenset):
            rest.extend(item)
        elif type(item) is dict:
            rest.extend(item.values())
    return True


def collimate_begin(source: str, sealed: str, module: str, mocks: bool) -> None:
    """Loads the candidate, after what tests rely on (`mocks`: unittest.mock, too). The tests are still sealed."""
    if mocks:
        importlib.import_module("unittest.mock")
    scene.__init__()  # type: ignore[misc]
    this = scene.module
    this.__file__ = OWN
    for name in ("solution", "__main__", module):
        sys.modules[name] = this
    try:
        with open(OWN, "w", encoding="utf-8") as file:
            file.write(source)
    except (OSError, ValueError):
        pass  # no room, or no text: most code never looks
    scene.sealed = sealed
    exec(compile(source, OWN, "exec", 0, True), this.__dict__)


scene = Scene()


def collimate_test(key: str, name: str) -> Any:
    """Runs one test: (how it ended, the word for it or "", exception class, line, flags, passed cases)."""
    scene.put_back()
    if not scene.opened:
        _open(key)
    random.seed(scene.job["seed"])
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(scene.job["seed"] % 2**32)
    passed: List[int] = []
    if scene.job["file"]:
        test = scene.file.get(name)
        if test is None:
            raise LookupError("the file has no test of that name here")
        outcome, error = test.run()
    else:
        outcome, error = _script(passed)
    scene.put_back()
    told = error if outcome == FAILED and error is not None else None
    word = scene.words[name] if outcome == PASSED else ""
    return (outcome, word, type(told).__name__ if told else "", _line(told), sorted(scene.flags), passed)


def _open(key: str) -> None:
    """Unseals the test and runs the file's own level."""
    told = json.loads(mixed(bytes.fromhex(scene.sealed), key).decode("utf-8", "surrogatepass"))
    scene.job, scene.words = told, told["words"]
    sys.modules["pytest"] = stand_in()
    _watch_asserts()
    space: Dict[str, Any] = {n: v for n, v in vars(scene.module).items() if not n.startswith("__")}
    space.update(__name__="__judge__", __builtins__=builtins, _collimate_same=_same)
    told["space"] = space
    random.seed(told["seed"])
    exec(compile(told["setup"], "<setup>", "exec", 0, True), space)
    tree = ast.parse(told["test"], "<test>")
    told["cases"] = instrument(tree, told["per_assert"]) if not told["file"] else 0
    told["code"] = compile(ast.fix_missing_locations(_Watched().visit(tree)), "<test>", "exec", 0, True)
    if told["file"]:
        exec(told["code"], space)
        scene.file = {test.name: test for test in TestFile(space, definitions(tree)).tests}
    scene.opened = True


def _script(passed: List[int]) -> Tuple[str, Any]:
    """Runs a test that is no file, asserts on the outer level by themselves where they are cases."""
    job = scene.job
    space = job["space"]
    good: Dict[int, bool] = {}
    space.update(
        _collimate_step=bool,
        _collimate_exploring=bool,
        _collimate_case=bool,
        _collimate_passed=lambda k: good.setdefault(k, True),
        _collimate_failed=lambda k: good.update({k: False}),
    )
    try:
        exec(job["code"], space)
        if job["check"] is not None:
            space["check"](*[_entry(name) for name in job["check"]])
    except BaseException as error:
        return FAILED, error
    finally:
        passed.extend(sorted(k for k, well in good.items() if well))
    return PASSED, None


def _entry(name: str) -> Any:
    own = vars(scene.module)
    return own[name] if name in own or "Solution" not in own else getattr(own["Solution"](), name)


def mixed(data: bytes, key: str) -> bytes:
    """The bytes, each exclusive-or one of a stream that the key makes: twice gives them back."""
    stream, n = b"", 0
    while len(stream) < len(data):
        stream += hashlib.sha256(("%s %d" % (key, n)).encode()).digest()
        n += 1
    both = int.from_bytes(data, "big") ^ int.from_bytes(stream[: len(data)], "big")
    return both.to_bytes(len(data), "big")


def _same(how: str, one: Any, other: Any) -> Any:
    """A comparison in the test."""
    if how == "==":
        result = one == other
    elif how == "!=":
        result = one != other
    else:
        result = one in other
    if type(result) is bool and (result or how == "!=") and scene.claims(one, other):
        scene.flags.add("own_equality")
    return result


class _Watched(ast.NodeTransformer):
    """Sends the test's comparisons through `_same`."""

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        how = {"Eq": "==", "NotEq": "!=", "In": "in"}.get(type(node.ops[0]).__name__)
        if len(node.ops) != 1 or how is None:
            return node
        arguments: List[ast.expr] = [ast.Constant(value=how), node.left, node.comparators[0]]
        name = ast.Name(id="_collimate_same", ctx=ast.Load())
        return ast.copy_location(ast.Call(func=name, args=arguments, keywords=[]), node)


def _watch_asserts() -> None:
    """Has unittest's own comparisons looked at, too."""
    for name, real in list(vars(unittest.TestCase).items()):
        if name.startswith(("assertEqual", "assertNotEqual", "assertIn", "assertAlmost", "assertCount", "assertList",
                            "assertDict", "assertTuple", "assertSet", "assertSequence", "assertMulti")):  # fmt: skip
            setattr(unittest.TestCase, name, _looking(real))
    scene.before = _state()


def _looking(real: Callable[..., Any]) -> Callable[..., Any]:
    def looking(self: Any, *args: Any, **kwargs: Any) -> Any:
        told = real(self, *args, **kwargs)
        values = [*args, *kwargs.values()]
        if len(values) > 1 and scene.claims(values[0], values[1]):
            scene.flags.add("own_equality")
        return told

    looking.__name__ = real.__name__
    return looking


def _line(error: Any) -> int:
    line, trace = 0, getattr(error, "__traceback__", None)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<test>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
