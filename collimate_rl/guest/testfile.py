"""A file's tests, pytest's and unittest's kinds alike: which there are, and running one of them.

Names: `test_x`, `Class.test_x`; of a parametrized one each set of values is a test, `test_x[0]`, `test_x[1]`.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import unittest
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from collimate_rl.guest.pytests import (
    BUILTIN,
    Mark,
    Param,
    Skipped,
    Unsupported,
    fixture_of,
    marks_of,
)

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def definitions(tree: ast.Module) -> List[str]:
    """The names of functions and classes that a module defines at its top level, in order, each once."""
    found: Dict[str, None] = {}
    rest: List[Any] = list(tree.body)
    while rest:
        node = rest.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.pop(node.name, None)
            found[node.name] = None
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            rest = [*node.body, *getattr(node, "orelse", []), *rest]
    return list(found)


class Test:
    """One test; `run` says how it ended, and the exception that ended it, if one did."""

    def __init__(self, name: str, body: Callable[[], None], marks: List[Mark]) -> None:
        self.name = name
        self.body = body
        self.marks = marks
        self.skips = False

    def is_skipped(self) -> bool:
        """Whether it would not even begin."""
        return self.skips or any(m.name == "skip" or (m.name == "skipif" and _holds(m)) for m in self.marks)

    def run(self) -> Tuple[str, Optional[BaseException]]:
        if self.is_skipped():
            return SKIPPED, None
        may_fail = any(mark.name == "xfail" and (not mark.args or _holds(mark)) for mark in self.marks)
        try:
            self.body()
        except unittest.SkipTest as error:
            return SKIPPED, error
        except BaseException as error:
            return (SKIPPED if may_fail else FAILED), error
        return PASSED, None


def _holds(mark: Mark) -> bool:
    condition = mark.args[0] if mark.args else mark.kwargs.get("condition", True)
    if isinstance(condition, str):
        raise Unsupported("a mark's condition as text isn't here")
    return bool(condition)


class TestFile:
    """The tests that `names`, the file's own definitions, stand for in `space`, in the order in which they run."""

    def __init__(self, space: Dict[str, Any], names: List[str]) -> None:
        self.space = space
        self.fixtures = {
            (mark.name or name): value for name, value in space.items() for mark in [fixture_of(value)] if mark
        }
        self.shared: Dict[Any, Any] = {}
        self.begun: Set[str] = set()
        self.tests: List[Test] = []
        given = space.get("pytestmark", [])
        self.marks = list(given) if isinstance(given, (list, tuple)) else [given]
        for name in names:
            found = space.get(name)
            if inspect.isclass(found) and issubclass(found, unittest.TestCase):
                self._cases(name, found)
            elif inspect.isclass(found) and name.startswith("Test") and "__init__" not in vars(found):
                self._class(name, found)
            elif name.startswith("test") and inspect.isfunction(found):
                self._function(name, found, None, [])

    # unittest

    def _cases(self, name: str, kind: Any) -> None:
        methods = unittest.TestLoader().getTestCaseNames(kind)
        for method in methods:
            last = method == methods[-1]
            body = self._case(name, kind, method, last)
            self.tests.append(Test("%s.%s" % (name, method), body, [*self.marks, *marks_of(kind)]))
            skips = [getattr(each, "__unittest_skip__", False) for each in (kind, getattr(kind, method))]
            self.tests[-1].skips = any(skips)

    def _case(self, name: str, kind: Any, method: str, last: bool) -> Callable[[], None]:
        def body() -> None:
            self._begin()
            if name not in self.begun:
                kind.setUpClass()
                self.begun.add(name)
            result = _Result()
            kind(method)(result)
            if last:
                kind.tearDownClass()
                getattr(kind, "doClassCleanups", bool)()
            if result.error is not None:
                raise result.error
            if result.skips or result.testsRun != 1:
                raise Skipped("it was skipped, or failed as expected")

        return body

    # pytest

    def _class(self, name: str, kind: Any) -> None:
        for method, function in _members(kind):
            if method.startswith("test"):
                self._function("%s.%s" % (name, method), function, kind, marks_of(kind))

    def _function(self, name: str, function: Any, kind: Any, marks: List[Mark]) -> None:
        marks = [*self.marks, *marks, *marks_of(function)]
        asked, sets = self._asked(function, kind, marks), []
        for mark in marks:
            if mark.name == "parametrize":
                sets.append(_parameters(mark))
        for fixture in sorted(asked):
            options = fixture_of(self.fixtures[fixture]) if fixture in self.fixtures else None
            if options is not None and options.params is not None:
                sets.append([({("param", fixture): value}, []) for value in options.params])
        numbers = [range(len(each)) for each in sets]
        for places in itertools.product(*numbers):
            values: Dict[Any, Any] = {}
            own: List[Mark] = []
            for each, place in zip(sets, places):
                values.update(each[place][0])
                own += each[place][1]
            suffix = "[%s]" % "-".join(map(str, places)) if places else ""
            self.tests.append(Test(name + suffix, self._body(function, kind, values, asked), marks + own))

    def _asked(self, function: Any, kind: Any, marks: List[Mark]) -> Set[str]:
        """The fixtures that a test needs, with those that these need; Unsupported for one that nobody has."""
        given = {name for mark in marks if mark.name == "parametrize" for name in _argument_names(mark)}
        rest = [name for name in _wants(function, kind) if name not in given]
        rest += [name for mark in marks if mark.name == "usefixtures" for name in mark.args]
        rest += [name for name, target in self.fixtures.items() if getattr(fixture_of(target), "autouse", False)]
        own = {name: item for name, item in _members(kind) if fixture_of(item)} if kind else {}
        self.fixtures.update(own)
        rest += [name for name, target in own.items() if getattr(fixture_of(target), "autouse", False)]
        asked: Set[str] = set()
        while rest:
            name = rest.pop()
            if name in asked or name == "request":
                continue
            if name not in self.fixtures and name not in BUILTIN:
                raise Unsupported("the fixture %r isn't here" % name)
            asked.add(name)
            if name in self.fixtures:
                rest += [each for each in _wants(self.fixtures[name], kind if name in own else None) if each != name]
        return asked

    def _body(self, function: Any, kind: Any, values: Dict[Any, Any], asked: Set[str]) -> Callable[[], None]:
        def body() -> None:
            self._begin()
            owner = kind() if kind else None
            if kind and kind.__name__ not in self.begun:
                self.begun.add(kind.__name__)
                getattr(kind, "setup_class", bool)()
            scene = _Scene(self, owner, values)
            try:
                _hook(owner if kind else None, "setup_method", function)
                if not kind:
                    _hook(self.space.get("setup_function"), None, function)
                for name in sorted(asked):
                    scene.value(name)
                given = {name: scene.value(name) for name in _wants(function, kind)}
                if inspect.iscoroutinefunction(function):
                    raise Unsupported("a coroutine as a test isn't here")
                function(*([owner] if kind and not _is_static(kind, function) else []), **given)
            finally:
                _hook(owner if kind else None, "teardown_method", function)
                if not kind:
                    _hook(self.space.get("teardown_function"), None, function)
                scene.close()

        return body

    def _begin(self) -> None:
        """setUpModule and its like, before the first test."""
        if "" not in self.begun:
            self.begun.add("")
            for name in ("setUpModule", "setup_module"):
                if callable(self.space.get(name)):
                    _hook(self.space[name], None, None)


class _Scene:
    """The fixtures of one test."""

    def __init__(self, file: TestFile, owner: Any, values: Dict[Any, Any]) -> None:
        self.file, self.owner, self.values = file, owner, dict(values)
        self.closing: List[Callable[[], Any]] = []

    def value(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        if name == "request":
            raise Unsupported("the fixture 'request' in a test isn't here")
        made = self.made(name)
        self.values[name] = made
        return made

    def made(self, name: str) -> Any:
        target = self.file.fixtures.get(name)
        if target is None:
            value = BUILTIN[name]()
            self.closing.append(getattr(value, "undo", bool))
            return value
        options: Any = fixture_of(target)
        wide = options.scope != "function"
        param = self.values.get(("param", name))
        key = (name, repr(param))
        if wide and key in self.file.shared:
            return self.file.shared[key]
        owner = self.owner if self.owner is not None and name in dict(_members(type(self.owner))) else None
        given = {each: self.value(each) for each in _wants(target, owner) if each != "request"}
        if "request" in _wants(target, owner):
            given["request"] = _Request(param, self)
        value = target(*([owner] if owner is not None else []), **given)
        if inspect.isgenerator(value):
            generator, value = value, next(value)
            if not wide:
                self.closing.append(lambda: next(generator, None))
        if wide:
            self.file.shared[key] = value
        return value

    def close(self) -> None:
        while self.closing:
            self.closing.pop()()


class _Request:
    def __init__(self, param: Any, scene: _Scene) -> None:
        self.param = param
        self.addfinalizer = scene.closing.append
        self.getfixturevalue = scene.value


class _Result(unittest.TestResult):
    def __init__(self) -> None:
        unittest.TestResult.__init__(self)
        self.error: Optional[BaseException] = None
        self.skips = 0

    def _went_wrong(self, error: Any) -> None:
        self.error = self.error or error

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest's
        self._went_wrong(err[1])

    addFailure = addError  # noqa: N815 - unittest's

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802 - unittest's
        if err is not None:
            self._went_wrong(err[1])

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802 - unittest's
        self._went_wrong(AssertionError("a success where a failure was expected"))

    def addSkip(self, test: Any, reason: Any) -> None:  # noqa: N802 - unittest's
        self.skips += 1

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802 - unittest's
        self.skips += 1


def _members(kind: Any) -> List[Tuple[str, Any]]:
    """A class's functions, its bases' first, in the order of their definition."""
    found: Dict[str, Any] = {}
    for each in reversed(kind.__mro__ if kind else ()):
        for name, value in vars(each).items():
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if inspect.isfunction(value):
                found.pop(name, None)
                found[name] = value
    return list(found.items())


def _is_static(kind: Any, function: Any) -> bool:
    return isinstance(inspect.getattr_static(kind, function.__name__, None), staticmethod)


def _wants(function: Any, kind: Any) -> List[str]:
    """The arguments of a test or a fixture that have no default."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty:
            names.append(name)
    return names[1:] if kind and names[:1] == ["self"] else names


def _argument_names(mark: Mark) -> List[str]:
    names = mark.args[0] if mark.args else mark.kwargs["argnames"]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _parameters(mark: Mark) -> List[Tuple[Dict[Any, Any], List[Mark]]]:
    if mark.kwargs.get("indirect"):
        raise Unsupported("indirect parameters aren't here")
    names = _argument_names(mark)
    values = mark.args[1] if len(mark.args) > 1 else mark.kwargs["argvalues"]
    found: List[Tuple[Dict[Any, Any], List[Mark]]] = []
    for value in values:
        marks: List[Mark] = []
        if isinstance(value, Param):
            marks, value = value.marks, value.values if len(names) > 1 else value.values[0]
        items = list(value) if len(names) > 1 else [value]
        if len(items) != len(names):
            raise Unsupported("%d values for %d parameters" % (len(items), len(names)))
        found.append((dict(zip(names, items)), marks))
    return found


def _hook(owner: Any, name: Optional[str], function: Any) -> None:
    """Calls a set-up function of the older kind, with the test where it takes one."""
    hook = getattr(owner, name, None) if name else owner
    if callable(hook):
        hook(*([function] if inspect.signature(hook).parameters else []))
