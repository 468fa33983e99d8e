"""Every plain type survives its trip, and whatever becomes of a frame on the way is refused by one exception.

The damaged frames here begin as real ones: most of a damaged frame is still what a decoder expects.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
import time
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collimate_rl.grading.frames import Report, read_report
from collimate_rl.guest.codec import BadTree, Record, Row, decode, dumps, encode, loads
from collimate_rl.values import Expected, Rules, Value


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Item:
    name: Any
    tags: Any


# The fold of an hour that comes twice does not travel: no comparison of Python's looks at it.
# In whole seconds: Python reads an offset of less than one second, written as it writes it, as none.
offsets = st.integers(-82_800, 82_800).map(lambda seconds: datetime.timezone(datetime.timedelta(seconds=seconds)))
scalars = st.one_of(
    st.sampled_from([None, True, False, ..., NotImplemented, int, len, str.upper]),
    st.integers(),
    st.integers(-(1 << 2000), 1 << 2000),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=8),
    st.binary(max_size=8),
    st.decimals(),
    st.fractions(),
    st.dates(),
    st.times().map(lambda time: time.replace(fold=0)),
    st.datetimes(timezones=st.one_of(st.none(), offsets)).map(lambda time: time.replace(fold=0)),
    st.timedeltas(),
    st.builds(range, st.integers(), st.integers(), st.integers().filter(bool)),
)
hashables = st.recursive(
    scalars.filter(lambda x: not (isinstance(x, Decimal) and x.is_snan())),
    lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3), st.builds(Pair, inner, inner)),
    max_leaves=4,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, tables = st.lists(inner, max_size=3), st.dictionaries(hashables, inner, max_size=3)
    return st.one_of(
        lists,
        lists.map(tuple),
        tables,
        tables.map(collections.OrderedDict),
        tables.map(lambda table: collections.defaultdict(list, table)),
        st.builds(collections.deque, lists, st.one_of(st.none(), st.integers(3, 9))),
        st.lists(hashables, max_size=4).map(collections.Counter),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
        st.binary(max_size=5).map(bytearray),
        st.builds(Pair, inner, inner),
        st.builds(Item, inner, inner),
        st.builds(ValueError, inner, inner),
        tables.map(lambda table: table.keys()),
        st.dictionaries(hashables, hashables, max_size=3).map(lambda table: table.items()),
        tables.map(lambda table: table.values()),
    )


values = st.recursive(scalars, containers, max_leaves=6)


def shape(x: Any) -> str:
    """What arrives of a value, as text: types, order, NaN and the signs of zeros included."""
    if isinstance(x, Pair | Row):
        return f"row {x._fields} {[shape(item) for item in x]}"
    if isinstance(x, Item | Record):
        return f"record {shape(x.name)} {shape(x.tags)}"
    kind = type(x).__name__
    if isinstance(x, dict):
        return f"{kind} {getattr(x, 'default_factory', None)} {[(shape(key), shape(x[key])) for key in x]}"
    if isinstance(x, set | frozenset | type({}.keys()) | type({}.items())):
        return f"{kind} {sorted(shape(item) for item in x)}"
    if isinstance(x, list | tuple | collections.deque | type({}.values())):
        return f"{kind} {getattr(x, 'maxlen', None)} {[shape(item) for item in x]}"
    if isinstance(x, complex):
        return f"{kind} {x.real!r} {x.imag!r}"
    if isinstance(x, BaseException):
        return f"{kind} {shape(x.args)}"
    return f"{kind} {x.as_tuple() if isinstance(x, Decimal) else repr(x)}"


@settings(max_examples=60, deadline=None)
@given(values)
def test_every_plain_type_survives(value: Any) -> None:
    back = decode(loads(dumps(encode(value))))
    assert shape(back) == shape(value)


PIECES = [*'[]{}",:-0519eE.\\ ', "null", "true", "NaN", "1e9", '["r",0]', '["l",', '"m",', "99999999999999999999", "\0"]
ALL_RULES = (Rules(), Rules(json=True), Rules(tolerance=0.1), Rules(unordered=True), Rules(json=True, relative=0.1))
WANTED = [Expected(encode(want), rules) for want in ([1, [2.5, "a"]], {"a": {1, 2}}, 4) for rules in ALL_RULES]


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The text of a real frame after a few accidents: pieces cut out, doubled, put in, or moved."""
    text = dumps(encode(draw(values)))
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 12))
        piece = draw(
            st.one_of(st.sampled_from(["", *PIECES]), st.just(text[at : at + length] * 2), st.text(max_size=2))
        )
        text = text[:at] + piece + text[at + length :]
    return text


@st.composite
def grafted(draw: st.DrawFn) -> Any:
    """A real tree with one node replaced by another one, or by what is no node at all."""
    tree = json.loads(dumps(encode(draw(values))))
    nodes = [node for node in walk(tree) if node]
    if not nodes:
        return draw(st.sampled_from([[], ["l", {}], {"l": 1}]))
    node = draw(st.sampled_from(nodes))
    other = draw(
        st.one_of(
            st.sampled_from(
                [None, True, -1, 1 << 60, 0.5, "", "0", "ff", "l", "zz", [], {}, ["r", 0], ["t"], ["h", 0]]
            ),
            st.sampled_from(nodes),
        )
    )
    node[draw(st.integers(0, len(node) - 1))] = json.loads(json.dumps(other))
    return tree


def walk(tree: Any) -> Iterator[list[Any]]:
    if type(tree) is list:
        yield tree
        for child in tree:
            yield from walk(child)


def judged(text: str) -> bool:
    """Whether a frame can be read; whatever it is, comparison says yes or no, or that it can't be read either."""
    try:
        tree = loads(text)
        Value(tree)
    except BadTree:
        for want in WANTED:
            with pytest.raises(BadTree):
                want.matches(text)
        return False
    for want in WANTED:
        try:
            assert want.matches(text) in (True, False)
        except BadTree:
            pass  # what a check lets pass may still be no value, as an element that comes twice
    try:
        decode(tree)
    except BadTree:
        return False
    return True


@settings(max_examples=80, deadline=None)
@given(damaged())
def test_a_damaged_frame_is_a_value_or_a_bad_tree(text: str) -> None:
    judged(text)


@settings(max_examples=80, deadline=None)
@given(grafted())
def test_a_grafted_tree_is_a_value_or_a_bad_tree(tree: Any) -> None:
    text = json.dumps(tree)
    if judged(text):
        # What passes is within the caps, whole: it can be sent on.
        assert Value(loads(text)).size <= 1_000_000


def test_the_damage_is_real() -> None:
    told = collections.Counter()
    rounds = 0

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(damaged())
    def count(text: str) -> None:
        nonlocal rounds
        rounds += 1
        told[judged(text)] += 1

    count()
    assert min(told[True], told[False]) > rounds / 20


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.sampled_from("letzqm"))
def test_what_refers_to_others_costs_what_it_says_and_no_more(picks: list[int], tag: str) -> None:
    """Containers that refer to each other at will: small text, which may stand for very much."""
    tree: list[Any] = ["l"]
    for n, pick in enumerate(picks):
        head = {"q": ["q", None], "m": ["m", "", 1]}.get(tag, ["l"])
        tree.append([*head, *[["r", 1 + pick % n] if n else 1] * (1 if tag == "m" else 1 + pick)])
    text = dumps(tree)
    tracemalloc.start()
    begun = time.process_time()
    try:
        judged(text)
        assert time.process_time() - begun < 20
        assert tracemalloc.get_traced_memory()[1] < 256 << 20
    finally:
        tracemalloc.stop()


MARK = "5a" * 16
HEADER = {"load": ["v", 1.0], "cases": [["v", 1.0, ""], ["x", 2.0, ""]], "tail": "6f6b", "seen": 2, "py": "3.11.2"}
REPORT = f"\n{MARK} begin\n{json.dumps(HEADER)}\nnull\n" + '{"v":4}\n{"x":["x",["KeyError"],["t"]]}\n' + f"{MARK} end\n"


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_damaged_report_is_a_report_or_none(data: st.DataObject) -> None:
    text = REPORT
    for _ in range(data.draw(st.integers(1, 3))):
        at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 9))
        piece = data.draw(st.one_of(st.sampled_from(["", "\n", MARK, *PIECES]), st.text(max_size=2)))
        text = text[:at] + piece + text[at + length :]
    read = read_report(text, MARK, 2)
    assert read is None or (type(read) is Report and len(read.cases) <= 2)


def test_a_whole_report_is_read() -> None:
    read = read_report("noise" + REPORT + "noise", MARK, 2)
    assert read is not None
    assert ([case.kind for case in read.cases], read.tail) == (["v", "x"], b"ok")
    assert read_report(REPORT, MARK[::-1], 2) is read_report(REPORT, MARK, 1) is None
