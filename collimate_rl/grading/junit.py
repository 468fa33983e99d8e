"""JUnit XML from a sandbox, where a candidate may have written every byte of it: read by a parser that expands nothing.

A document type (and with it every entity of one's own) is refused, so is whatever is deep, large or long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.parsers import expat

MAX_XML: Final = 4 << 20
MAX_TESTS: Final = 100_000
MAX_DEPTH: Final = 32
MAX_NAME: Final = 4000
_BAD: Final = {"failure": "failed", "error": "error", "skipped": "skipped", "rerunFailure": "failed"}
_UNITTEST: Final = re.compile(r"(\S+) \(([\w.]+)\)")


class BadResults(ValueError):
    """The results file is no JUnit XML that could be read."""


@dataclass(frozen=True, kw_only=True)
class TestRun:
    """One run of one test, by the names that the file has: `state` is "passed", "failed", "error" or "skipped"."""

    __test__ = False

    classname: str
    name: str
    state: str
    ms: float
    words: str = ""


class _Reader:
    def __init__(self) -> None:
        self.runs: list[TestRun] = []
        self._open: list[str] = []
        self._case: dict[str, str] | None = None
        self._state = "passed"
        self._words = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._open.append(tag)
        if len(self._open) > MAX_DEPTH:
            raise BadResults("its elements are nested too deep")
        if len(self._open) == 1 and tag not in ("testsuites", "testsuite"):
            raise BadResults(f"its outermost element is {tag!r:.60}, not testsuites")
        if tag == "testcase":
            if self._case is not None:
                raise BadResults("a testcase in a testcase")
            self._case, self._state, self._words = attributes, "passed", ""
        elif self._case is not None and self._open[-2] == "testcase" and tag in _BAD:
            self._state, self._words = _BAD[tag], attributes.get("message", "")[:300]

    def end(self, tag: str) -> None:
        self._open.pop()
        if tag != "testcase" or self._case is None:
            return
        if len(self.runs) >= MAX_TESTS:
            raise BadResults(f"more than {MAX_TESTS:,} tests")
        case, self._case = self._case, None
        if case.get("status") in ("notrun", "disabled", "skipped"):
            self._state = "skipped"
        self.runs.append(
            TestRun(
                classname=case.get("classname", "")[:MAX_NAME],
                name=case.get("name", "")[:MAX_NAME],
                state=self._state,
                ms=_milliseconds(case.get("time", "")),
                words=self._words,
            )
        )

    def refuse(self, *_: object) -> None:
        raise BadResults("it declares a document type")


def read_junit(data: bytes) -> list[TestRun]:
    """The test runs in a results file, in its order. Raises BadResults."""
    if len(data) > MAX_XML:
        raise BadResults(f"{len(data):,} bytes, above {MAX_XML:,}")
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.refuse
    parser.EntityDeclHandler = reader.refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as fault:
        raise BadResults(f"no XML: {fault}") from None
    return reader.runs


def _milliseconds(text: str) -> float:
    try:
        seconds = float(text.replace(",", "")[:40])
    except ValueError:
        return 0.0
    return seconds * 1000 if 0.0 <= seconds < 1e6 else 0.0


def keys_of(name: str) -> list[tuple[str, str]]:
    """What a named test may be called in a file, as (classname, name); a classname of "*" is any.

    pytest's node ids (`tests/test_a.py::TestB::test_c[1]`), unittest's words (`test_c (tests.test_a.TestB)`), dotted
    names, and bare ones.
    """
    plain, bracket, parameters = name.partition("[")
    if "::" in plain:
        *places, last = plain.split("::")
        classname = ".".join([re.sub(r"\.py$", "", places[0]).replace("/", "."), *places[1:]])
        return [(classname, last + bracket + parameters)]
    found = _UNITTEST.fullmatch(name)
    if found is not None:
        method, where = found[1], found[2]
        return [(where.removesuffix("." + method), method)]
    if "." in plain and "/" not in plain and " " not in plain:
        classname, _, last = plain.rpartition(".")
        return [(classname, last + bracket + parameters), ("*", name)]
    return [("*", name)]


class Runs:
    """The runs in a file, found by a named test's keys."""

    def __init__(self, runs: Sequence[TestRun]) -> None:
        self.all = runs
        self._by_key: dict[tuple[str, str], list[TestRun]] = {}
        for run in runs:
            self._by_key.setdefault((run.classname, run.name), []).append(run)
            self._by_key.setdefault(("*", run.name), []).append(run)

    def of(self, name: str) -> list[TestRun]:
        """All runs of one named test."""
        for key in keys_of(name):
            found = self._by_key.get(key)
            if found:
                return found
        return []
