"""Pairs of input and output, as data sets write them, turned into the two specs that judge pairs."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collimate_rl.specs import StdioReward, UnitTestReward

FLOAT_TOLERANCE: Final = 1e-6
"""What contest checkers allow: absolute up to 1, relative above. 0.333333 and 0.3333333333 are the same answer."""

PRELUDE: Final = """\
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from operator import *
from random import *
from re import *
from string import *
from typing import *
import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, operator, random, re, string, sys
"""
"""What is imported on the sites that such problems come from: starter code says `List[int]` and imports nothing."""

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


def shown(value: Any) -> str:
    """A short form of any value for a message, however large or deep it is."""
    return _repr.repr(value)


def without_arrays(value: Any, layers: int = 10) -> Any:
    """The value with numpy arrays in its outer layers as lists: rows that come by way of pandas have them for lists."""
    if not layers:
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: without_arrays(item, layers - 1) for key, item in value.items()}
    return [without_arrays(item, layers - 1) for item in value] if type(value) is list else value


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One test of a row, as the row has it; `where` names it in messages."""

    given: Any
    wanted: Any
    where: str


def stdio_spec(pairs: Sequence[Pair]) -> StdioReward:
    """Standard input and output; an item is text, or a list of lines."""
    _check_any(pairs)
    cases = [
        {
            "stdin": _text(pair.given, f"{pair.where}: the input"),
            "stdout": _text(pair.wanted, f"{pair.where}: the output"),
        }
        for pair in pairs
    ]
    return StdioReward(cases, compare="lines", tolerance=FLOAT_TOLERANCE)


def call_spec(pairs: Sequence[Pair], name: str, *, may_be_wrapped: bool = False) -> UnitTestReward:
    """Calls of the function `name`, or of that method of `class Solution`.

    An input is text with one JSON value per argument and line (the output is JSON text then), or a list of arguments
    (the output is a value then); anything else is one argument. With `may_be_wrapped`, outputs that are all lists of
    one item are that item, or that list: APPS and its kin wrap them, and a row does not say whether it did.
    """
    _check_any(pairs)
    arguments = [_arguments(pair) for pair in pairs]
    expected = [_expected(pair) for pair in pairs]
    wrapped = may_be_wrapped and all(isinstance(value, list) and len(value) == 1 for value in expected)
    if wrapped:
        expected = [value[0] for value in expected]
    tests = [{"input": given, "expected": wanted} for given, wanted in zip(arguments, expected, strict=True)]
    has_float = any(_has_float(value) for value in expected)
    return UnitTestReward(
        tests,
        entry=name,
        compare="json",
        tolerance=FLOAT_TOLERANCE if has_float else None,
        wrapped=wrapped,
        prelude=PRELUDE,
    )


def _check_any(pairs: Sequence[Pair]) -> None:
    if not pairs:
        raise ValueError("the ground truth has no test cases: every candidate would score alike")


def _text(item: Any, what: str) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and all(isinstance(line, str) for line in item):
        return "\n".join(item)
    raise ValueError(f"{what} is neither text nor a list of lines: {shown(item)}")


def _arguments(pair: Pair) -> list[Any]:
    if isinstance(pair.given, str):
        lines = [line for line in pair.given.split("\n") if line.strip()]
        return [_json(line, f"{pair.where}: an argument") for line in lines]
    return list(pair.given) if isinstance(pair.given, list) else [pair.given]


def _expected(pair: Pair) -> Any:
    if isinstance(pair.given, str) and isinstance(pair.wanted, str):
        return _json(pair.wanted, f"{pair.where}: the output")
    return pair.wanted


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"{what} is no JSON ({exc}): {shown(text)}") from exc


def _has_float(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float):
            return True
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
    return False
