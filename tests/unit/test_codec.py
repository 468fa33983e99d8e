"""Plain values go out and come back as they were, with their types and their shared parts."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import itertools
import math
import sys
import types
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collimate_rl.guest.codec import Array, Decoder, Encoder, Record, Row, Unencodable, decode, dumps, encode, loads


def there_and_back(value: Any) -> Any:
    return decode(loads(dumps(encode(value))))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(1 << 300), max_value=1 << 300),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(alphabet=st.characters(codec=None, exclude_categories=())),
    st.binary(),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(datetime.timezone.utc)),
    st.times(),
    st.timedeltas(),
    st.just(...),
)
hashables = st.recursive(scalars, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner)), max_leaves=5)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(hashables, inner),
        st.dictionaries(hashables, inner).map(collections.OrderedDict),
        st.sets(hashables),
        st.lists(inner).map(collections.deque),
        st.binary().map(bytearray),
    ),
    max_leaves=25,
)


@settings(max_examples=50, deadline=None)
@given(values)
def test_round_trip(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_nan_and_signed_zero() -> None:
    assert math.isnan(there_and_back(float("nan")))
    assert math.copysign(1, there_and_back(-0.0)) == -1


def test_surrogates_are_not_joined() -> None:
    assert there_and_back("\ud83d\ude00") == "\ud83d\ude00"
    assert len(there_and_back("\ud83d\ude00")) == 2


@pytest.mark.parametrize(
    "value",
    [
        collections.Counter("aab"),
        collections.defaultdict(list, {1: [2]}),
        collections.defaultdict(int),
        collections.OrderedDict([(2, 1), (1, 2)]),
        collections.deque([1, 2], maxlen=3),
        range(3),
        range(10, 1 << 70, -3),
        NotImplemented,
        int,
        ValueError,
        len,
        str.upper,
        {1: 2}.keys(),
        {1: 2}.items(),
    ],
)
def test_kinds_that_keep_their_type(value: Any) -> None:
    back = there_and_back(value)
    assert (back, type(back)) == (value, type(value))


def test_a_defaultdict_keeps_a_plain_factory_only() -> None:
    assert there_and_back(collections.defaultdict(list))["x"] == []
    assert there_and_back(collections.defaultdict(lambda: 1, {2: 3})) == {2: 3}
    assert there_and_back(collections.defaultdict(lambda: 1)).default_factory is None


def test_an_ordered_dict_keeps_its_own_order() -> None:
    value = collections.OrderedDict([(1, 1), (2, 2)])
    value.move_to_end(1)
    assert list(there_and_back(value)) == [2, 1]


class Point(NamedTuple):
    x: int
    y: list[int]


@dataclasses.dataclass
class Item:
    name: str
    tags: list[str]
    count: dataclasses.InitVar[int] = 0


class Colour(enum.IntEnum):
    RED = 3


def test_namedtuples_and_dataclasses_become_plain_records() -> None:
    point = there_and_back(Point(1, [2]))
    assert type(point) is Row
    assert (point.x, point.y, point) == (1, [2], (1, [2]))
    assert repr(point) == "Point(x=1, y=[2])"
    with pytest.raises(AttributeError):
        _ = point.z
    item = there_and_back(Item("a", ["b"]))
    assert type(item) is Record
    assert (item.name, item.tags) == ("a", ["b"])
    assert item == there_and_back(Item("a", ["b"])) != there_and_back(Item("a", []))
    assert repr(item) == "Item(name='a', tags=['b'])"


class Yes(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __add__(self, other: Any) -> Any:
        return "never called"

    __hash__ = int.__hash__
    __index__ = __int__ = lambda self: 99  # type: ignore[assignment]


class Liar(list):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter("lies")

    def __len__(self) -> int:
        return 1000


class LyingDict(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        return [("lie", 1)]


class LyingStr(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "lie"


class LyingFloat(float):
    def hex(self) -> str:
        return "lie"

    def __float__(self) -> float:
        return 1.0


class Disguised:
    __class__ = int  # type: ignore[assignment]


class Meta(type):
    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return hash(int)


class Alike(metaclass=Meta):
    pass


def test_subclasses_travel_as_what_they_hold() -> None:
    for value, held in (
        (Yes(4), 4),
        (Colour.RED, 3),
        (Liar([1]), [1]),
        (LyingDict(a=1), {"a": 1}),
        (LyingStr("a"), "a"),
    ):
        back = there_and_back(value)
        assert (back, type(back)) == (held, type(held))
    assert there_and_back(LyingFloat(2.5)) == 2.5


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 1, Disguised(), Alike(), Meta, print, [object()], {1: open}],
    ids=["object", "lambda", "disguised", "alike", "class", "function", "inside_a_list", "inside_a_dict"],
)
def test_what_is_no_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(Unencodable) as caught:
        encode(value)
    assert not caught.value.limit


def test_shared_containers_stay_shared() -> None:
    inner: list[int] = [1]
    first, second, third = there_and_back([inner, inner, [1]])
    assert first is second
    assert first is not third


def test_arguments_are_known_by_number() -> None:
    mine: list[Any] = [[1], {"a": 2}]
    encoder = Encoder()
    tree = encoder.encode(mine)
    decoder = Decoder()
    theirs = decoder.decode(tree)
    answer = Encoder()
    answer.adopt(decoder.objects, decoder.sizes)
    theirs[0].append(5)
    body, result = answer.body(1), answer.encode(theirs[1])
    back = Decoder(objects=encoder.objects, sizes=encoder.sizes)
    assert back.body(body) == [1, 5]
    assert back.decode(result) is mine[1]


def test_iterators_are_drained_and_replayed() -> None:
    assert list(there_and_back(x * x for x in range(3))) == [0, 1, 4]
    assert list(there_and_back(map(str, [1, 2]))) == ["1", "2"]
    assert list(there_and_back(iter({1: 2}))) == [1]

    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("no")

    replay = there_and_back(broken())
    assert next(replay) == 1
    with pytest.raises(KeyError, match="no"):
        next(replay)
    endless = there_and_back(itertools.count())
    assert [next(endless) for _ in range(20_000)][-1] == 19_999
    with pytest.raises(RuntimeError, match="went on beyond"):
        next(endless)


def test_a_peeking_encoder_leaves_iterators_alone() -> None:
    source = iter([1, 2])
    assert Encoder(peek=True).encode([source]) == ["l", ["N"]]
    assert list(source) == [1, 2]


def test_exceptions_become_the_nearest_builtin() -> None:
    class Mine(KeyError):
        pass

    back = there_and_back(Mine("a", 1))
    assert type(back) is KeyError
    assert back.args == ("a", 1)
    assert encode(Mine())[1][0] == "*Mine"
    assert type(there_and_back(FileNotFoundError(2, "no"))) is FileNotFoundError
    assert there_and_back(ValueError(object())).args == ()
    assert type(there_and_back(UnicodeDecodeError("utf-8", b"", 0, 1, "x"))) is UnicodeDecodeError


def test_an_exceptions_lost_arguments_take_no_numbers() -> None:
    shared = [1]
    value = [ValueError([2], object()), shared, shared]
    _, first, second = there_and_back(value)
    assert first is second
    assert first == [1]


def test_arrays_without_numpy() -> None:
    array = Array("<i8", (2, 3), [1, 2, 3, 4, 5, 6])
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert Array("<f8", (), [1.5]).tolist() == 1.5
    assert Array("<f8", (2, 0), []).tolist() == [[], []]
    back = decode(["a", "<i8", [2, 1], 1, 2])
    assert (back.dtype, back.shape, back.tolist()) == ("<i8", (2, 1), [[1], [2]])


def test_other_kinds() -> None:
    assert there_and_back(memoryview(b"ab")) == b"ab"
    assert there_and_back([Decimal("1.50"), Fraction(1, 3)]) == [Decimal("1.50"), Fraction(1, 3)]
    assert str(there_and_back(Decimal("1.50"))) == "1.50"
    assert list(there_and_back({1: "a"}.values())) == ["a"]


class FakeDtype:
    kind, str = "i", "<i8"


class FakeArray:
    """As much of numpy's array as the encoder reads."""

    dtype = property(lambda self: FakeDtype)
    shape = property(lambda self: (2, 2))
    size = property(lambda self: 4)

    def ravel(self) -> FakeArray:
        return self

    def tolist(self) -> list[int]:
        return [1, 2, 3, 4]


class LyingArray(FakeArray):
    dtype = property(lambda self: "lie")

    def tolist(self) -> list[int]:
        return [99]


def test_arrays_are_read_through_numpys_own_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", types.SimpleNamespace(ndarray=FakeArray, generic=FakeDtype))
    for array in (FakeArray(), LyingArray()):
        assert encode(array) == ["a", "<i8", [2, 2], 1, 2, 3, 4]
    monkeypatch.setattr(FakeDtype, "kind", "O")
    with pytest.raises(Unencodable):
        encode(FakeArray())
