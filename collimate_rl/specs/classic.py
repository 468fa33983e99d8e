"""The classic one-program graders of the two classic specs.

The candidate and its tests share one process here: whoever runs these grades as integrity "shared". They serve
subclasses that override `build` or `parse`; the specs themselves are graded split.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from collimate_rl.specs.plain_json import is_json

_LOAD = """\
import json, random
_scope = {{"__name__": "solution"}}
with open({path!r}, encoding="utf-8") as _file:
    _source = _file.read()
try:
    exec(compile(_source, {path!r}, "exec"), _scope)
    _entry = _scope[{entry!r}]
except BaseException:
    _entry = None
"""

_UNIT = """\
_tests = {tests}
_passed = 0
for _test in _tests if _entry is not None else []:
    _input = _test["input"]
    try:
        _got = _entry(*_input) if isinstance(_input, list) else _entry(_input)
        _passed += bool(_got == _test["expected"])
    except BaseException:
        pass
print(_passed / len(_tests) if _tests else 0.0)
"""

_PROPERTY = """\
{reference}
_passed = 0
for _ in range({k}):
    x = {generator}
    _want = _ref(x)
    try:
        _passed += bool(_entry is not None and _entry(x) == _want)
    except BaseException:
        pass
print(_passed / {k})
"""


def unit_program(candidate_path: str, entry: str, tests: Sequence[tuple[Any, Any]]) -> str:
    """The program that prints the fraction of tests passed. Tests that aren't JSON must have a repr that is source."""
    table = [{"input": given, "expected": expected} for given, expected in tests]
    literal = f"json.loads({json.dumps(table)!r})" if is_json(table) else repr(table)
    return _LOAD.format(path=candidate_path, entry=entry) + _UNIT.format(tests=literal)


def property_program(candidate_path: str, entry: str, reference: str, generator: str, k: int) -> str:
    """The program that prints the fraction of inputs on which candidate and reference agree."""
    load = _LOAD.format(path=candidate_path, entry=entry)
    return load + _PROPERTY.format(reference=reference, generator=f"({generator.strip()})", k=k)
