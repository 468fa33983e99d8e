"""Comparison on trees agrees with Python's own ==, within its modes, in bounded time."""

from __future__ import annotations

import collections
import datetime
import itertools
import time
import tracemalloc
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collimate_rl.guest.codec import BadTree, dumps, encode
from collimate_rl.values import Expected, Rules, Value

JSON = Rules(json=True)
NAIVE = datetime.datetime(2020, 1, 1)  # noqa: DTZ001 - what candidates return


def same(got: Any, want: Any, rules: Rules = Rules()) -> bool:  # noqa: B008 - immutable
    return Expected(encode(want), rules).matches(dumps(encode(got)))


numbers = st.one_of(
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, 1e300, float("inf"), 2.0**60, 1 << 60, 1 << 80, 2.0**80]),
    st.sampled_from([Decimal("1"), Decimal("0.5"), Decimal("1e400"), Decimal("Infinity"), Decimal("-0")]),
    st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 3)]),
    st.sampled_from([1 + 0j, 1j, complex("inf")]),
)
atoms = st.one_of(
    numbers,
    st.none(),
    st.sampled_from(
        ["", "1", "a", b"", b"a", bytearray(b"a"), range(0), range(2), range(0, 2, 5), range(0, 1, 7), ...]
    ),
    st.sampled_from([datetime.date(2020, 1, 1), NAIVE, datetime.timedelta(1), datetime.time(1)]),
    st.sampled_from(
        [
            datetime.datetime(2020, 1, 1, 5, tzinfo=datetime.timezone.utc),
            datetime.datetime(2020, 1, 1, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        ]
    ),
)
keys = st.recursive(
    atoms.filter(lambda x: type(x) is not bytearray),
    lambda inner: st.one_of(st.tuples(inner), st.frozensets(inner, max_size=2)),
    max_leaves=3,
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=2).map(collections.deque),
        st.sets(keys, max_size=3),
        st.frozensets(keys, max_size=3),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
    ),
    max_leaves=8,
)


@settings(max_examples=250, deadline=None)
@given(values, values)
def test_exact_comparison_is_pythons(a: Any, b: Any) -> None:
    assert same(a, b) is (a == b)


@settings(max_examples=60, deadline=None)
@given(values)
def test_a_value_equals_itself(value: Any) -> None:
    assert same(value, value)


@settings(max_examples=100, deadline=None)
@given(keys, keys)
def test_elements_of_sets_compare_as_values_do(a: Any, b: Any) -> None:
    assert same({a}, {b}) is (a == b)
    assert same({a: 1}, {b: 1}) is (a == b)


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        ((1, 2), [1, 2], False),
        (True, 1, True),
        (1.0, 1, True),
        (-0.0, 0.0, True),
        (float("nan"), float("nan"), False),
        ([float("nan")], [float("nan")], False),
        (iter([1]), [1], False),
        (iter([1]), iter([1]), False),
        ({1: 2}.keys(), {1}, True),
        ({1: 2}.items(), {(1, 2)}, True),
        ({1: 2}.values(), {1: 2}.values(), False),
        (ValueError(1), ValueError(1), False),
        ("1", 1, False),
        ("a", b"a", False),
        (None, False, False),
        (collections.Counter("aab"), {"a": 2, "b": 1}, True),
        (collections.OrderedDict([(1, 2), (3, 4)]), collections.OrderedDict([(3, 4), (1, 2)]), False),
        (collections.OrderedDict([(1, 2), (3, 4)]), {3: 4, 1: 2}, True),
        (Decimal("sNaN"), Decimal("1"), False),
        (int, int, True),
        (int, float, False),
        ([[1], [1]], [[1]] * 2, True),
        ({"a": [1, {"b": (2,)}]}, {"a": [1, {"b": (2,)}]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
    ],
)
def test_exact_cases(got: Any, want: Any, equal: bool) -> None:
    assert same(got, want) is equal


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        ((1, (2, 3)), [1, [2, 3]], True),
        (map(str, [1, 2]), ["1", "2"], True),
        (range(3), [0, 1, 2], True),
        (range(1 << 70), [0, 1, 2], False),
        (collections.deque([1]), [1], True),
        ({1: "b"}, {"1": "b"}, True),
        ({1: "a", "1": "b"}, {"1": "b"}, False),
        ({None: 1, True: 2, 1.5: 3}, {"null": 1, "true": 2, "1.5": 3}, True),
        ({"a": (1,)}, {"a": [1]}, True),
        ({1, 2}, [1, 2], False),
        (float("nan"), float("nan"), True),
        ("1", 1, False),
        ({1: 2}.keys(), [1], True),
        (itertools.count(), [0], False),
        ([True], [1], True),
    ],
)
def test_json_cases(got: Any, want: Any, equal: bool) -> None:
    assert same(got, want, JSON) is equal


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (0.1 + 0.2, 0.3, True),
        ([1.0000001], [1.0], True),
        (1e9 + 1, 1e9, True),
        (1.1, 1.0, False),
        (1_000_000_000, 1_000_000_001, False),
        (1.0000001, 1, True),
        (float("inf"), 1.0, False),
        (float("inf"), float("inf"), True),
        (1e308, -1e308, False),
        (1 + 1e-9j, 1 + 0j, True),
        (Decimal("1.0000001"), 1.0, True),
        (10**400, 1.0, False),
        ("1.0", "1", False),
        (999999000.5, 999999937, False),
        (complex(999999000.5), 999999937, False),
        (Decimal("999999000.5"), 999999937, False),
        (999999937.25, 999999937, True),
        (999999937.5, 999999937, False),
        (999999937, 999999937.5, True),
        (1e18, 10**18 + 7, False),
        (5.0, complex("inf"), False),
        (Decimal("1E-9999999"), 0, True),
        (Decimal("1E+9999999"), 0, False),
    ],
)
def test_tolerance(got: Any, want: Any, equal: bool) -> None:
    assert same(got, want, Rules(tolerance=1e-6)) is equal


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        ([3, 1, 2], [1, 2, 3], True),
        ([1, 1, 2], [1, 2, 2], False),
        ([[2], {"a": 1}], [{"a": 1}, [2]], True),
        ([[1, 2]], [[2, 1]], False),
        ([1, 2], (2, 1), False),
        ([1], [1, 1], False),
        (5, 5, True),
        ("ab", "ba", False),
    ],
)
def test_unordered(got: Any, want: Any, equal: bool) -> None:
    assert same(got, want, Rules(unordered=True)) is equal


def test_a_keys_own_text_is_no_way_to_another_table() -> None:
    assert same([{"b": "y", "a": "x"}], [{"a": "x", "b": "y"}], Rules(json=True, unordered=True))
    assert not same([{"a=s1:x,sb": "y"}], [{"a": "x", "b": "y"}], Rules(json=True, unordered=True))
    assert not same([{"a=s1:x,3:sb": "y"}], [{"a": "x", "sb": "y"}], Rules(json=True, unordered=True))


def test_numpy_scalars_and_arrays_without_numpy() -> None:
    def matches(tree: Any, want: Any, rules: Rules = JSON) -> bool:
        return Expected(encode(want), rules).matches(dumps(tree))

    assert matches(["a", "<i8", [], 3], 3, Rules())
    assert matches(["a", "|b1", [], True], True, Rules())
    assert matches(["a", "<U1", [], "a"], "a", Rules())
    assert matches(["a", "<f4", [], encode(0.10000000149011612)], 0.1, Rules())
    assert not matches(["a", "<f8", [], encode(0.10000000149011612)], 0.1, Rules())
    assert matches(["a", "<i8", [2, 2], 1, 2, 3, 4], [[1, 2], [3, 4]])
    assert not matches(["a", "<i8", [4], 1, 2, 3, 4], [[1, 2], [3, 4]])
    assert not matches(["a", "<i8", [2], 1, 2], [1, 2], Rules())
    assert matches(["a", "<i8", [0], *[]], [])
    assert Expected(["a", "<i8", [2], 1, 2], Rules()).matches(dumps(["a", "<f8", [2], encode(1.0), encode(2.0)]))


def test_a_bad_tree_is_no_value() -> None:
    for text in ('["zz"]', "1.5", '["l",["r",0]]', '["h",0,"int"]', '1,"x":1'):
        with pytest.raises(BadTree):
            Expected(1, Rules()).matches(text)


def spent(work: Any) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def test_ten_thousand_colliding_integers_are_cheap_to_compare() -> None:
    hostile = [encode(i * (2**61 - 1)) for i in range(10_000)]
    want = Expected(encode(set(range(10_000))), Rules())
    text = dumps(["e", *hostile])
    table = dumps(["m", "", *itertools.chain.from_iterable((key, 1) for key in hostile)])
    wanted_table = Expected(encode(dict.fromkeys(range(10_000), 1)), Rules())
    assert spent(lambda: want.matches(text) or wanted_table.matches(table)) < 5


def test_a_large_answer_to_a_small_question_is_refused_early() -> None:
    doubled = Value(["l", ["l"], *[["l", ["r", k], ["r", k]] for k in range(1, 15)]])
    for rules in (Rules(), Rules(unordered=True), JSON, Rules(json=True, unordered=True)):
        assert spent(lambda rules=rules: Expected(encode([1, [2], 3]), rules).equals(doubled)) < 2
    deep = dumps(encode([{"a": frozenset([(n, "x" * 50) for n in range(3000)])}]))
    assert not Expected(encode([{"a": frozenset([1])}]), Rules()).matches(deep)


def test_small_trees_that_stand_for_much_are_never_unfolded() -> None:
    digits = "f" * 260_000
    trees: list[Any] = [
        ["R", ["i", digits + "00000"], ["i", digits + "fffff"], 1],
        ["a", "<i8", [999_999, 0]],
        ["l", ["l", ["i", digits]], *[["r", 1]] * 999],
        ["l", ["l", ["b", digits]], *[["r", 1]] * 999],
        ["t", *[["D", "1E+9999999"]] * 1000],
    ]
    wanted = [Expected(encode(want), rules) for want in ([[n] for n in range(1000)], {1}, [1], {"1": 2})
              for rules in (Rules(), JSON, Rules(unordered=True), Rules(json=True, unordered=True))]  # fmt: skip
    tracemalloc.start()
    try:
        begun = time.process_time()
        assert not [tree[0] for tree in trees for want in wanted if want.matches(dumps(tree))]
        assert time.process_time() - begun < 20
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("rules", [Rules(), JSON, Rules(tolerance=0.1), Rules(unordered=True)])
@pytest.mark.parametrize(
    "tree",
    [
        ["D", "1E+9999999"],
        ["D", "1E-9999999"],
        ["D", "0E+9999999"],
        ["D", "sNaN"],
        ["D", "Infinity"],
        ["i", "f" * 200_000],
        ["d", "datetime", "9999-12-31T23:59:59-23:59"],
        ["d", "date", "never"],
    ],
)
def test_no_value_breaks_the_comparison(tree: Any, rules: Rules) -> None:
    hostile = [tree, ["l", tree], ["e", tree], ["z", tree], ["m", "", tree, 1], ["m", "", 1, tree]]
    for want in (4, 4.0, 4j, Decimal(4), Fraction(1, 3), [4], {4}, {4: 1}, {"4": 1}, NAIVE, [{4}]):
        for node in hostile:
            try:
                assert not Expected(encode(want), rules).matches(dumps(node))
            except BadTree:
                assert "never" in dumps(node)


@settings(max_examples=150, deadline=None)
@given(numbers, numbers)
def test_numbers_have_one_key(a: Any, b: Any) -> None:
    assert same({a}, {b}) is (a == b)
    assert same({(a, 1)}, {(b, 1)}) is (a == b)


def test_equal_text_is_not_enough_for_what_equals_nothing() -> None:
    tree = ["l", ["f", "nan"]]
    assert not Expected(tree, Rules()).matches(dumps(tree))
    assert Expected(["l", "nan"], Rules()).matches(dumps(["l", "nan"]))
