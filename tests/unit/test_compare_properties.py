"""Comparison of values against plain definitions of each way: Python, JSON, a tolerance, any order.

Two values drawn apart are hardly ever equal. So one of a pair is mostly the other one, slightly changed.
"""

from __future__ import annotations

import collections
import copy
import itertools
import json
import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from collimate_rl.guest.codec import dumps, encode
from collimate_rl.specs.options import CompareOptions, Credit
from collimate_rl.values import Expected, Rules

NAN = float("nan")


def same(got: Any, want: Any, rules: Rules = Rules()) -> bool:  # noqa: B008 - immutable
    return Expected(encode(want), rules).matches(dumps(encode(got)))


numbers = st.one_of(
    st.booleans(),
    st.integers(-4, 4),
    st.integers(),
    st.floats(),
    st.floats(-4, 4).map(lambda x: round(x, 1)),
    st.sampled_from([0.0, -0.0, NAN, math.inf, -math.inf, 2.0**53, 2**53, 2**53 + 1, 1e300, 10**300]),
)
texts = st.sampled_from(["", "a", "1", "None", "\ud800", "\u00e9"])
keys = st.one_of(numbers.filter(lambda x: x == x), texts, st.none(), st.tuples(st.integers(0, 2), texts))
values = st.recursive(
    st.one_of(numbers, texts, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.sets(keys, max_size=3),
        st.frozensets(keys, max_size=3),
    ),
    max_leaves=6,
)


def changed(value: Any, draw: random.Random, odds: float) -> Any:
    """The value again, built anew; with these odds at each place in another type or a little different."""
    change = draw.random() < odds
    if isinstance(value, list | tuple):
        items = [changed(item, draw, odds) for item in value]
        if change and len(items) > 1:
            draw.shuffle(items)
        kind = type(value) if not change else draw.choice([list, tuple, collections.deque])
        return kind(items)
    if isinstance(value, dict):
        pairs = [(changed(key, draw, odds) if hash(key) is not None else key, value[key]) for key in value]
        pairs = [(key, changed(item, draw, odds)) for key, item in pairs if _hashable(key)]
        draw.shuffle(pairs)
        return draw.choice([dict, collections.OrderedDict])(pairs)
    if isinstance(value, set | frozenset):
        items = [changed(item, draw, odds) for item in value]
        return (draw.choice([set, frozenset]) if change else type(value))(i for i in items if _hashable(i))
    if isinstance(value, float) and math.isnan(value):
        return float("nan")
    if not change:
        return copy.deepcopy(value)
    if isinstance(value, bool | int):
        others = [value + 1, bool(value), Fraction(value), Decimal(value), str(value), complex(0, 1)]
        return draw.choice([*others, float(value), complex(value)] if abs(value) < 2**60 else others)
    if isinstance(value, float):
        finite = [int(value), Fraction(value), Decimal(value)] if math.isfinite(value) else []
        return draw.choice([value + 1e-9, value * 1.01, -value, complex(value), *finite])
    return draw.choice([f"{value}x", None, value, "a"])


def _hashable(value: Any) -> bool:
    try:
        return hash(value) is not None
    except TypeError:
        return False


@st.composite
def pairs(draw: st.DrawFn, source: st.SearchStrategy[Any] = values) -> tuple[Any, Any]:
    value = draw(source)
    odds = draw(st.sampled_from([0.0, 0.1, 0.4]))
    return changed(value, draw(st.randoms(use_true_random=False)), odds), value


@settings(max_examples=80, deadline=None)
@given(pairs())
def test_exact_is_pythons_either_way_round(pair: tuple[Any, Any]) -> None:
    got, want = pair
    assert same(got, want) is (got == want)
    assert same(want, got) is (want == got)


def test_pairs_are_of_both_kinds() -> None:
    told: collections.Counter[bool] = collections.Counter()

    @settings(max_examples=50, deadline=None, database=None, derandomize=True)
    @given(pairs())
    def count(pair: tuple[Any, Any]) -> None:
        told[pair[0] == pair[1] and type(pair[0]) is not type(pair[1])] += 1
        told[bool(pair[0] == pair[1])] += 1

    count()
    assert min(told[True], told[False]) > 40


def as_json(value: Any) -> Any:
    """What JSON can tell of a value, for Python's ==. NaN becomes a mark, since under these rules it equals itself."""
    if isinstance(value, list | tuple | collections.deque):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {_json_key(key): as_json(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return frozenset(map(_frozen, value))
    return "a mark for nan" if value != value else value


def _json_key(key: Any) -> Any:
    if isinstance(key, str):
        return key
    if key is None or type(key) in (bool, int, float):
        return next(iter(json.loads(json.dumps({key: 0}))))
    return _frozen(key)


def _frozen(value: Any) -> Any:
    if isinstance(value, tuple):
        return ("list", *map(_frozen, value))
    return "a mark for nan" if value != value else value


@settings(max_examples=80, deadline=None)
@given(pairs())
def test_json_is_what_json_can_tell(pair: tuple[Any, Any]) -> None:
    got, want = pair
    for value in pair:
        if any(len(as_json(part)) != len(part) for part in _dicts(value)):
            return  # two keys that are one in JSON: no such value comes from there
    rules = Rules(json=True)
    assert same(got, want, rules) is (as_json(got) == as_json(want))
    assert same(want, got, rules) is (as_json(got) == as_json(want))


def _dicts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *[found for item in value.values() for found in _dicts(item)]]
    if isinstance(value, list | tuple | collections.deque):
        return [found for item in value for found in _dicts(item)]
    return []


reals = st.one_of(st.integers(-9, 9), st.floats(-1e6, 1e6), st.integers(-(10**12), 10**12), st.just(NAN))
tolerances = st.sampled_from([0.0, 1e-9, 1e-6, 0.01, 0.25])


def near(got: float, want: float, tolerance: float | None, relative: float | None) -> bool:
    """The definition in the options' documents, for numbers that differ clearly or not at all from the margin."""
    if got == want:
        return True
    if got != got or want != want or (isinstance(got, int) and isinstance(want, int)):
        return False
    margin = CompareOptions(mode="exact", tolerance=tolerance, relative=relative).near(float(want))
    apart = abs(float(got) - float(want))
    if isinstance(want, int) and not abs(Fraction(got) - want) < Fraction(1, 2):
        return False
    return apart <= (margin or 0.0)


@settings(max_examples=80, deadline=None)
@given(reals, st.one_of(st.none(), reals, st.floats(-0.5, 0.5)), tolerances, st.one_of(st.none(), tolerances))
def test_a_tolerance_is_what_its_document_says(a: Any, b: Any, tolerance: float, relative: float | None) -> None:
    got = a if b is None else b if abs(b) > 1 or isinstance(b, int) else a + b
    rules = Rules(tolerance=tolerance, relative=relative)
    holds = near(got, a, tolerance, relative)
    assert same(got, a, rules) is holds
    assert same([("x", got)], [("x", a)], rules) is holds
    if a == a:
        assert same(a, a, rules)
    if same(got, a):
        assert holds, "a tolerance only ever forgives"


@settings(max_examples=50, deadline=None)
@given(pairs(st.lists(values, max_size=4)))
def test_any_order_is_some_order(pair: tuple[Any, Any]) -> None:
    got, want = pair
    if not isinstance(got, list | tuple):
        return
    some = any(type(got)(turn) == want for turn in itertools.permutations(got))
    assert same(got, want, Rules(unordered=True)) is some
    assert same(want, got, Rules(unordered=True)) is some


@settings(max_examples=50, deadline=None)
@given(values)
def test_every_way_takes_a_value_for_itself_unless_nan_is_in_it(value: Any) -> None:
    again = changed(value, random.Random(0), 0.0)
    for rules in (Rules(), Rules(tolerance=0.1), Rules(unordered=True)):
        assert same(again, value, rules) is (again == value)
    assert same(again, value, Rules(json=True))
    assert same(again, value, Rules(json=True, unordered=True))


flags = st.lists(st.booleans(), max_size=12)


@settings(max_examples=50, deadline=None)
@given(flags, st.lists(st.floats(0, 100), min_size=12, max_size=12))
def test_credit_is_a_share(passed: list[bool], weights: list[float]) -> None:
    weights = weights[: len(passed)]
    weighted = Credit(mode="weighted", weights=weights) if sum(weights) > 0 else Credit()
    total = len(passed)
    plain = {
        "fraction": passed.count(True) / total if total else 0.0,
        "all": float(total > 0 and passed.count(False) == 0),
        "first_failure": len(list(itertools.takewhile(bool, passed))) / total if total else 0.0,
    }
    assert {mode: Credit(mode=mode).reward(passed) for mode in plain} == plain
    for credit in (*(Credit(mode=mode) for mode in plain), weighted):
        reward = credit.reward(passed)
        assert 0.0 <= reward <= 1.0
        assert (reward == 1.0) is (total > 0 and all(passed)) or credit is weighted
        better = [True, *passed[1:]]
        assert credit.reward(better) >= reward - 1e-12, "passing more is never worth less"
    if total and sum(weights) > 0:
        won = sum(weight for weight, good in zip(weights, passed, strict=True) if good)
        assert math.isclose(weighted.reward(passed), won / sum(weights), abs_tol=1e-12) or all(passed)
