"""The comparison of output, against plain definitions of lines, tokens, tolerance and any order."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from collimate_rl.grading.texts import same_text
from collimate_rl.specs.options import CompareOptions

words = st.one_of(
    st.sampled_from(
        ["1", "-1", "1.0", "01", "1e0", "0.3333", "0.333333333", "1000000", "1000001", "nan", "inf", "YES"]
    ),
    st.floats(-1e6, 1e6).map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.text("a1. -+e\u00e9", min_size=1, max_size=4),
)
blanks = st.sampled_from([" ", "  ", "\n", "\r\n", " \n", "\n\n", "\t"])
outputs = st.lists(st.tuples(words, blanks), max_size=6).map(lambda parts: "".join(map("".join, parts)))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """An expected output, and another one that mostly is the same but for blanks, order, or a word."""
    parts = draw(st.lists(st.tuples(words, blanks), max_size=6))
    want = "".join(map("".join, parts))
    how = draw(st.sampled_from(["same", "blanks", "order", "word", "other"]))
    if how == "other":
        return draw(outputs), want
    if how == "blanks":
        parts = [(word, draw(blanks)) for word, _ in parts]
    if how == "order":
        parts = draw(st.permutations(parts))
    if how == "word" and parts:
        place = draw(st.integers(0, len(parts) - 1))
        parts[place] = (draw(words), parts[place][1])
    return draw(st.sampled_from(["", "\n", " "])) + "".join(map("".join, parts)), want


def compared(got: str, want: str, mode: str, **options: Any) -> bool:
    return same_text(got, want, CompareOptions(mode=mode, text=True, **options))


def stripped(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


@settings(max_examples=100, deadline=None)
@given(pairs())
def test_lines_and_tokens_in_their_order_and_in_any(pair: tuple[str, str]) -> None:
    got, want = pair
    for a, b in (pair, pair[::-1]):
        assert compared(a, b, "exact") is (got == want)
        assert compared(a, b, "lines") is (stripped(got) == stripped(want))
        assert compared(a, b, "tokens") is (got.split() == want.split())
        assert compared(a, b, "lines", unordered=True) is (sorted(stripped(got)) == sorted(stripped(want)))
        assert compared(a, b, "tokens", unordered=True) is (sorted(got.split()) == sorted(want.split()))


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


def close(got: str, want: str, options: CompareOptions) -> bool:
    """Whether a token is right, written down from the documents: exact fractions but for the tolerance's margin."""
    if got == want:
        return True
    if not (NUMBER.fullmatch(got) and NUMBER.fullmatch(want)):
        return False
    a, b = Fraction(got), Fraction(want)
    if WHOLE.fullmatch(want) and (WHOLE.fullmatch(got) or abs(a - b) >= Fraction(1, 2)):
        return a == b
    if math.isinf(float(got)) or math.isinf(float(want)):
        return False
    return abs(float(got) - float(want)) <= (options.near(float(want)) or 0.0)


tolerant = st.sampled_from(
    [{"tolerance": 1e-6}, {"tolerance": 0.01}, {"relative": 0.01}, {"tolerance": 1e-3, "relative": 1e-9}]
)


@settings(max_examples=100, deadline=None)
@given(pairs(), tolerant)
def test_tolerance_is_token_by_token(pair: tuple[str, str], given_options: dict[str, float]) -> None:
    got, want = pair
    options = CompareOptions(mode="tokens", text=True, **given_options)
    ours, theirs = got.split(), want.split()
    expected = len(ours) == len(theirs) and all(close(a, b, options) for a, b in zip(ours, theirs, strict=True))
    assert compared(got, want, "tokens", **given_options) is expected
    lines = [line.split() for line in stripped(got)], [line.split() for line in stripped(want)]
    by_lines = [len(line) for line in lines[0]] == [len(line) for line in lines[1]] and expected
    assert compared(got, want, "lines", **given_options) is by_lines


@settings(max_examples=60, deadline=None)
@given(st.one_of(outputs, st.text(max_size=20)))
def test_every_way_takes_an_output_for_itself(text: str) -> None:
    for mode in ("lines", "tokens", "exact"):
        assert compared(text, text, mode)
    for mode in ("lines", "tokens"):
        assert compared(f"{text} \n", text, mode) or "\r" in text
        assert compared(text, text, mode, unordered=True)
        assert compared(text, text, mode, tolerance=0.0)
