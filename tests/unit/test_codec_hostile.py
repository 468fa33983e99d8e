"""Whatever comes from a candidate's sandbox is a value within the caps, or a BadTree; never anything else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collimate_rl.guest.codec import BadTree, Decoder, Encoder, Unencodable, decode, dumps, encode, loads
from collimate_rl.guest.plain import MAX_DEPTH, MAX_ITERATED, MAX_KEYED
from collimate_rl.values import Value


def doubled(times: int) -> Any:
    value: Any = []
    for _ in range(times):
        value = [value, value]
    return value


def doubled_tree(times: int) -> Any:
    """A list of containers, each of which refers twice to the one before."""
    return ["l", ["l"], *[["l", ["r", k], ["r", k]] for k in range(1, times)]]


@pytest.mark.parametrize(
    "tree",
    [
        [],
        {},
        1.5,
        [1],
        [[]],
        [None],
        ["zz"],
        ["?"],
        ["__class__"],
        1 << 53,
        -(1 << 53),
        ["i"],
        ["i", 5],
        ["i", ""],
        ["i", "0x10"],
        ["i", " 1"],
        ["i", "1_0"],
        ["i", "-"],
        ["i", "f" * (1 << 19)],
        ["f", "nonsense"],
        ["f", 1],
        ["f", "0x1p99999"],
        ["f", "1" * 100],
        ["c", "0x1p0"],
        ["s", "zz"],
        ["s", "ff"],
        ["b", 1],
        ["b", "abc"],
        ["D", "x"],
        ["D", "1" * 30_000],
        ["F", 1, 0],
        ["F", 1, ["i", "00"]],
        ["F", 1, True],
        ["F", 1],
        ["R", 1, 2, 0],
        ["R", 1, 2],
        ["R", "a", 2, 1],
        ["d", "datetime"],
        ["d", "system", "2020"],
        ["d", "date", "2020-99-99"],
        ["d", "timedelta", 1 << 40, 0, 0],
        ["l", ["r", 0]],
        ["r", 0],
        ["r", -1],
        ["r", "0"],
        ["l", ["r", 5]],
        ["e", ["l"]],
        ["e", 1, 1],
        ["e", 1, True],
        ["z", 1, 1],
        ["z", ["l"]],
        ["m", "", 1],
        ["m", "", 1, 2, 1, 3],
        ["m", "", ["l"], 1],
        ["m", "x"],
        ["m", "dlambda"],
        ["m"],
        ["m", None],
        ["q", 1, 2, 3],
        ["q", -1],
        ["q"],
        ["y", "0"],
        ["y"],
        ["u", "P", 1, "__class__", 1],
        ["u", "P", 2, "a", "a", 1, 2],
        ["u", "P", 2, "a", 1],
        ["u", "P", -1],
        ["u", "P", 1, "a b", 1],
        ["k", "P", 1, "__dict__", 1],
        ["k", "P", "1", "a", 1],
        ["x", [], ["t"]],
        ["x", ["ValueError"], ["l"]],
        ["x", [1], ["t"]],
        ["x", "ValueError", ["t"]],
        ["g", 2, None],
        ["g", 0, ["x", ["ValueError"], ["t"]]],
        ["g", 3, None],
        ["g"],
        ["v", "keys", ["l"]],
        ["v", "keys", 1, 1],
        ["v", "items", 1],
        ["v", "other"],
        ["a", "<i8", [2], 1],
        ["a", "<i8", [-1]],
        ["a", "<i8", [1 << 40, 0]],
        ["a", "<i8", [10**6, 10**6, 0]],
        ["a", "<O8", [1], 1],
        ["a", "<i8", [1], ["l"]],
        ["a", "<i8", 1, 1],
        ["a", "i8,f8", [1], 1],
        ["a", "<i8", [], "abc"],
        ["a", "<f8", [], "4.0"],
        ["a", "<f8", [], 4],
        ["a", "<f8", [], ["b", "34"]],
        ["a", "<c16", [], ["f", "0x1p+0"]],
        ["a", "|b1", [], 1],
        ["a", "<U1", [], 1],
        ["a", "|S1", [], "a"],
        ["i", "--4"],
        ["F", ["i", "f" * 9000], 3],
        ["n", "eval"],
        ["n", "__import__"],
        ["n", "type"],
        ["n", "operator.attrgetter"],
        ["n", ["int"]],
        ["h", 1, "int"],
        ["p", 0],
        ["l", {}],
        ["l", 1.0],
    ],
)
def test_trees_that_no_encoder_writes(tree: Any) -> None:
    with pytest.raises(BadTree):
        decode(tree)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=12,
)
tagged = st.tuples(st.sampled_from("ifcsbtzReulkqmrgvadDFxnENhp"), st.lists(json_values, max_size=4)).map(
    lambda pair: [pair[0], *pair[1]]
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(json_values, tagged, st.lists(tagged, max_size=3).map(lambda items: ["l", *items])))
def test_any_json_is_a_value_or_a_bad_tree(tree: Any) -> None:
    try:
        decode(tree)
    except BadTree:
        return


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_tree_or_a_bad_tree(text: str) -> None:
    try:
        loads(text)
    except BadTree:
        return


@pytest.mark.parametrize(
    "text",
    ["", "1.0", "NaN", "Infinity", "1e5", "9" * 5000, "[" * 100_000, '{"a":' * 100_000, "[1,]", '"\ud800', "1 2"],
)
def test_texts_that_are_no_trees(text: str) -> None:
    with pytest.raises(BadTree):
        decode(loads(text))


def test_depth() -> None:
    value: Any = []
    for _ in range(MAX_DEPTH):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(Unencodable) as caught:
        encode([value])
    assert caught.value.limit
    tree: Any = ["l"]
    for _ in range(MAX_DEPTH + 2):
        tree = ["l", tree]
    with pytest.raises(BadTree):
        decode(tree)


def test_shared_lists_count_with_all_that_they_reach() -> None:
    assert decode(encode(doubled(10))) == doubled(10)
    with pytest.raises(Unencodable):
        encode(doubled(60))
    with pytest.raises(BadTree):
        decode(doubled_tree(60))
    with pytest.raises(BadTree):
        Value(doubled_tree(60))


def test_cycles() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(Unencodable):
        encode(value)
    table: dict[str, Any] = {}
    table["a"] = [table]
    with pytest.raises(Unencodable):
        encode(table)
    with pytest.raises(BadTree):
        decode(["l", ["l", ["r", 0]]])
    with pytest.raises(BadTree):
        Decoder(objects=[[]], sizes=[1]).body(["l", ["l", ["r", 1]]])


def test_sizes() -> None:
    assert len(decode(encode(set(range(MAX_KEYED))))) == MAX_KEYED
    for value in (set(range(MAX_KEYED + 1)), dict.fromkeys(range(MAX_KEYED + 1)), 1 << (1 << 21), "a" * (2 << 20)):
        with pytest.raises(Unencodable) as caught:
            encode(value)
        assert caught.value.limit
    with pytest.raises(BadTree):
        decode(["e", *range(MAX_KEYED + 1)])
    with pytest.raises(BadTree):
        decode(["m", "", *range(2 * MAX_KEYED + 2)])
    with pytest.raises(BadTree):
        decode(["g", 0, None, *range(MAX_ITERATED + 1)])
    with pytest.raises(BadTree):
        decode(["l", *([None] * 1_000_001)])


def test_a_rejected_container_leaves_no_number_behind() -> None:
    encoder = Encoder()
    with pytest.raises(Unencodable):
        encoder.encode(object())
    decoder = Decoder()
    with pytest.raises(BadTree):
        decoder.decode(["?"])
    assert decoder.decode(encoder.encode([1])) == [1]


def test_checking_colliding_integers_takes_no_quadratic_time() -> None:
    items = [i * (2**61 - 1) for i in range(MAX_KEYED)]
    trees = [["e", *[encode(i) for i in items]] for _ in range(5)]
    begun = time.process_time()
    Value(["l", *trees])
    spent = time.process_time() - begun
    assert spent < 5, "50,000 integers were only to be looked at"


def test_text_never_holds_a_line_break_or_a_surrogate() -> None:
    text = dumps(encode(["\n\r\u2028\ud800", "\U0001f600"]))
    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text)
