"""What test files mean by `pytest`: marks, fixtures, raises, approx. The same whether a template has pytest or not."""

from __future__ import annotations

import collections
import contextlib
import importlib
import inspect
import io
import os
import pathlib
import re
import sys
import tempfile
import types
import unittest
import warnings as _warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

Marks = List["Mark"]
Output = collections.namedtuple("Output", "out err")
KEYWORDS = dict(scope=0, params=0, autouse=0, ids=0, name=0, match=0, rel=0, abs=0, nan_ok=0, marks=0, id=0, reason=0)  # noqa: C408 - as keywords
KEYWORDS.update(pytrace=0, msg=0, allow_module_level=0, minversion=0, raising=0, value=0, prepend=0, numbered=0)
"""Names that files pass arguments by: whoever makes one small program of the modules leaves these alone."""
_MARKS = "collimate_marks"
_FIXTURE = "collimate_fixture"


class Unsupported(Exception):
    """The file asks for something of pytest that isn't here."""


class Failed(AssertionError):
    """pytest.fail, and what a `raises` block that raises nothing comes to."""


class Skipped(unittest.SkipTest):
    """pytest.skip."""


class XFailed(Skipped):
    """pytest.xfail."""


class Mark:
    """One mark, with what it was given; called on a function or a class it stays on that."""

    def __init__(self, name: str, args: Any = (), kwargs: Any = None) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs or {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and (inspect.isfunction(args[0]) or inspect.isclass(args[0])):
            target = args[0]
            setattr(target, _MARKS, [self, *vars(target).get(_MARKS, [])])
            return target
        return Mark(self.name, self.args + args, dict(self.kwargs, **kwargs))


class _Marks:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Mark(name)


class Param:
    """One set of values for a parametrized test, with marks of its own."""

    def __init__(self, *values: Any, marks: Any = (), id: Any = None) -> None:
        self.values, self.marks = values, list(marks) if isinstance(marks, (list, tuple)) else [marks]


def marks_of(target: Any) -> Marks:
    """The marks on a function, or on a class and its bases."""
    if inspect.isclass(target):
        return [mark for kind in target.__mro__ for mark in vars(kind).get(_MARKS, [])]
    return list(getattr(target, _MARKS, []))


class FixtureMark:
    def __init__(self, scope: Any, params: Any, autouse: bool, name: Optional[str]) -> None:
        self.scope, self.params, self.autouse, self.name = scope, params, autouse, name


def fixture(function: Any = None, *, scope: Any = "function", params: Any = None, autouse: bool = False,
            ids: Any = None, name: Optional[str] = None) -> Any:  # fmt: skip
    def decorate(target: Any) -> Any:
        setattr(target, _FIXTURE, FixtureMark(scope, None if params is None else list(params), autouse, name))
        return target

    return decorate(function) if function is not None else decorate


def fixture_of(target: Any) -> Optional[FixtureMark]:
    return vars(target).get(_FIXTURE) if inspect.isfunction(target) else None


class ExceptionInfo:
    def __init__(self) -> None:
        self.value: Any = None

    @property
    def type(self) -> Any:
        return type(self.value)

    @property
    def tb(self) -> Any:
        return self.value.__traceback__

    def match(self, pattern: Any) -> bool:
        if not re.search(pattern, str(self.value)):
            raise Failed("the exception's words do not match")
        return True

    def __str__(self) -> str:
        return repr(self.value)


class _Raises:
    def __init__(self, expected: Any, match: Any = None) -> None:
        self.expected, self.match, self.info = expected, match, ExceptionInfo()

    def __enter__(self) -> ExceptionInfo:
        return self.info

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if kind is None:
            raise Failed("nothing was raised")
        if not issubclass(kind, self.expected):
            return False
        self.info.value = error
        if self.match is not None:
            self.info.match(self.match)
        return True


def raises(expected: Any, *args: Any, match: Any = None, **kwargs: Any) -> Any:
    block = _Raises(expected, match)
    if not args:
        return block
    with block as info:
        args[0](*args[1:], **kwargs)
    return info


@contextlib.contextmanager
def warns(expected: Any = Warning, *, match: Any = None) -> Iterator[Any]:
    with _warnings.catch_warnings(record=True) as seen:
        _warnings.simplefilter("always")
        yield seen
    fitting = [w for w in seen if issubclass(w.category, expected)]
    if not [w for w in fitting if match is None or re.search(match, str(w.message))]:
        raise Failed("no such warning")


class approx:  # noqa: N801 - a test file's word
    """Equal within 1e-6 of the expected number, or 1e-12, whichever is larger; item by item in containers."""

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, other: Any) -> bool:
        return self._same(self.expected, other)

    def __ne__(self, other: Any) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "approx(%r)" % (self.expected,)

    def _same(self, want: Any, got: Any) -> bool:
        if hasattr(want, "tolist") or hasattr(got, "tolist"):
            want = want.tolist() if hasattr(want, "tolist") else want
            got = got.tolist() if hasattr(got, "tolist") else got
        if isinstance(want, dict):
            return isinstance(got, dict) and set(want) == set(got) and all(self._same(want[k], got[k]) for k in want)
        if isinstance(want, (list, tuple)):
            same_length = isinstance(got, (list, tuple)) and len(want) == len(got)
            return same_length and all(self._same(a, b) for a, b in zip(want, got))
        if want == got or isinstance(want, (str, bytes, bool)) or want is None:
            return bool(want == got)
        try:
            if want != want or got != got:
                return self.nan_ok and want != want and got != got
            apart = abs(want - got)
            relative = 0.0 if self.rel is None and self.abs is not None else (1e-6 if self.rel is None else self.rel)
            return bool(apart <= max(relative * abs(want), 1e-12 if self.abs is None else self.abs) < float("inf"))
        except TypeError:
            return False


def fail(reason: str = "", pytrace: bool = True, msg: str = "") -> None:
    raise Failed(reason or msg)


def skip(reason: str = "", *, allow_module_level: bool = False, msg: str = "") -> None:
    raise Skipped(reason or msg)


def xfail(reason: str = "") -> None:
    raise XFailed(reason)


def importorskip(name: str, minversion: Any = None, reason: Any = None) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Skipped("no module %s" % name) from None


class Capture:
    """capsys."""

    def __init__(self) -> None:
        self.kept = sys.stdout, sys.stderr
        self.start()

    def start(self) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        sys.stdout, sys.stderr = self.out, self.err

    def readouterr(self) -> Any:
        told = Output(self.out.getvalue(), self.err.getvalue())
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        return told

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        ours = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self.kept
        yield
        sys.stdout, sys.stderr = ours

    def undo(self) -> None:
        sys.stdout, sys.stderr = self.kept


_ABSENT = object()


class MonkeyPatch:
    """monkeypatch. `used` once anything was patched by any of them."""

    used = False

    def __init__(self) -> None:
        self.undoing: List[Callable[[], Any]] = []

    def setattr(self, target: Any, name: Any, value: Any = _ABSENT, raising: bool = True) -> None:
        if value is _ABSENT:
            value = name
            target, name = _found(target)
        MonkeyPatch.used = True
        old = vars(target).get(name, _ABSENT) if inspect.isclass(target) else getattr(target, name, _ABSENT)
        if raising and not hasattr(target, name):
            raise AttributeError(name)
        setattr(target, name, value)
        self.undoing.append(lambda: delattr(target, name) if old is _ABSENT else setattr(target, name, old))

    def delattr(self, target: Any, name: Any = _ABSENT, raising: bool = True) -> None:
        if name is _ABSENT:
            target, name = _found(target)
        old = getattr(target, name, _ABSENT)
        MonkeyPatch.used = True
        if old is not _ABSENT or raising:
            delattr(target, name)
            self.undoing.append(lambda: setattr(target, name, old))

    def setitem(self, mapping: Any, key: Any, value: Any) -> None:
        MonkeyPatch.used = True
        old = mapping.get(key, _ABSENT)
        mapping[key] = value
        self.undoing.append(lambda: mapping.pop(key, None) if old is _ABSENT else mapping.__setitem__(key, old))

    def delitem(self, mapping: Any, key: Any, raising: bool = True) -> None:
        MonkeyPatch.used = True
        if raising or key in mapping:
            old = mapping.pop(key)
            self.undoing.append(lambda: mapping.__setitem__(key, old))

    def setenv(self, name: str, value: Any, prepend: Any = None) -> None:
        whole = str(value) + prepend + os.environ[name] if prepend and name in os.environ else str(value)
        self.setitem(os.environ, name, whole)

    def delenv(self, name: str, raising: bool = True) -> None:
        self.delitem(os.environ, name, raising)

    def chdir(self, path: Any) -> None:
        here = os.getcwd()
        os.chdir(path)
        self.undoing.append(lambda: os.chdir(here))

    def syspath_prepend(self, path: Any) -> None:
        sys.path.insert(0, str(path))
        self.undoing.append(lambda: sys.path.remove(str(path)))

    @contextlib.contextmanager
    def context(self) -> Iterator["MonkeyPatch"]:
        inner = MonkeyPatch()
        try:
            yield inner
        finally:
            inner.undo()

    def undo(self) -> None:
        while self.undoing:
            self.undoing.pop()()


def _found(path: str) -> Tuple[Any, str]:
    """The owner and the name that a dotted path ends in."""
    owner, _, name = path.rpartition(".")
    parts = owner.split(".")
    target = importlib.import_module(parts[0])
    for part in parts[1:]:
        if not hasattr(target, part):
            importlib.import_module("%s.%s" % (target.__name__, part))
        target = getattr(target, part)
    return target, name


class _Folders:
    def mktemp(self, name: str, numbered: bool = True) -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(name))


BUILTIN: Dict[str, Callable[[], Any]] = {
    "capsys": Capture,
    "capfd": Capture,
    "monkeypatch": MonkeyPatch,
    "tmp_path": lambda: pathlib.Path(tempfile.mkdtemp()),
    "tmp_path_factory": _Folders,
}
"""Fixtures that no file defines; what has an `undo` is undone after the test."""


def stand_in() -> types.ModuleType:
    """The module that a test file gets for `pytest`."""
    module = types.ModuleType("pytest")
    skip.Exception = Skipped  # type: ignore[attr-defined]
    fail.Exception = Failed  # type: ignore[attr-defined]
    module.__dict__.update(
        fixture=fixture, raises=raises, warns=warns, approx=approx, fail=fail, skip=skip, xfail=xfail, param=Param,
        importorskip=importorskip, mark=_Marks(), MonkeyPatch=MonkeyPatch, ExceptionInfo=ExceptionInfo,
        FixtureRequest=object, main=lambda *_, **__: 0,
    )  # fmt: skip

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported("pytest.%s isn't here" % name)

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module
