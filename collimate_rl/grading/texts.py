"""Comparing what a program printed with what it should have printed."""

from __future__ import annotations

import math
import re
from collections import Counter
from fractions import Fraction
from typing import Final

from collimate_rl.specs.options import CompareOptions

_LONGEST: Final = 4000
"""Characters; longer numbers have to be the same text."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def same_text(got: str, want: str, options: CompareOptions) -> bool:
    """Whether the output is right, by the mode that the options name; linear in both texts."""
    if options.mode == "exact" or got == want:
        return got == want
    if options.mode == "tokens":
        ours, theirs = want.split(), got.split()
    elif got.strip().count("\n") != want.strip().count("\n"):
        return False
    else:
        ours, theirs = _lines(want), _lines(got)
    if len(ours) != len(theirs):
        return False
    if options.unordered:
        return Counter(ours) == Counter(theirs)
    return all(_same(a, b, options) for a, b in zip(theirs, ours, strict=True))


def _lines(text: str) -> list[str]:
    """The lines, each stripped, without the empty ones at both ends."""
    return [line.strip() for line in text.strip().split("\n")]


def _same(got: str, want: str, options: CompareOptions) -> bool:
    if got == want:
        return True
    if options.near(0.0) is None:
        return False
    ours, theirs = want.split(), got.split()
    if len(ours) != len(theirs):
        return False
    return all(a == b or _close(a, b, options) for a, b in zip(theirs, ours, strict=True))


def _close(got: str, want: str, options: CompareOptions) -> bool:
    """Two decimal numbers within the tolerances; two integers only when they are the same.

    However large an expected integer is, only what rounds to it is close to it: a guess of its leading digits is not.
    """
    if max(len(got), len(want)) > _LONGEST or not (_DECIMAL.fullmatch(got) and _DECIMAL.fullmatch(want)):
        return False
    is_whole = _INTEGER.fullmatch(want) is not None
    if is_whole and _INTEGER.fullmatch(got):
        return int(got) == int(want)
    a, b = float(got), float(want)
    near = math.isfinite(a) and math.isfinite(b) and abs(a - b) <= (options.near(b) or 0.0)
    return near and (not is_whole or abs(Fraction(got) - int(want)) < Fraction(1, 2))
