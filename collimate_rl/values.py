"""Plain values as data, on the host: reading a candidate's trees and comparing them without building them.

A host that built the values would pay for what a candidate chose (ten thousand colliding integers in a set, a list that
doubles sixty times). So comparison works on checked trees: pairwise where order counts, by canonical keys (text, whose
hashes nobody outside can aim at) where it doesn't. Its cost is linear in the expected value, but for sorting.
"""

from __future__ import annotations

import datetime
import math
import struct
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final, NamedTuple

from collimate_rl.guest.builder import Builder
from collimate_rl.guest.checker import Checker
from collimate_rl.guest.codec import BadTree, Tree, dumps, loads
from collimate_rl.guest.plain import MAX_DECIMAL

Number = int | float | complex | Decimal | Fraction

_SEQUENCES: Final = {"l": 1, "t": 1, "q": 2, "g": 3, "v": 2}
_NUMBERED: Final = tuple("leyqm")
_NUMERIC: Final = tuple("biufc")
_UNREADABLE: Final = (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError)
_PLAIN_EXPONENT: Final = 1200
"""Decimals with a larger exponent than this, either way, are no fractions that anybody should build."""


class Value:
    """A checked tree with its containers by number."""

    __slots__ = ("containers", "size", "tree")

    def __init__(self, tree: Tree) -> None:
        checker = Checker()
        checker.check(tree)
        self.tree = tree
        self.size = checker.nodes
        self.containers: list[Tree] = []
        self._number(tree)

    def _number(self, node: Tree) -> None:
        if type(node) is list and node:
            if node[0] in _NUMBERED:
                self.containers.append(node)
            for child in node[1:]:
                if type(child) is list:
                    self._number(child)

    def resolve(self, node: Tree) -> Tree:
        """The node, or the container that it refers to; a numpy scalar that is no number as its builtin."""
        if type(node) is not list:
            return node
        if node[0] == "r":
            return self.containers[node[1]]
        return node[3] if node[0] == "a" and not node[2] and node[1][1] not in _NUMERIC else node


class Rules(NamedTuple):
    """How values are compared.

    `json` forgives what JSON can't tell apart, and lets nan equal nan; `tolerance` lets non-integers differ, relative
    above 1, or absolute beside a `relative` one, of which the larger counts; `unordered` ignores the order of the
    outermost list.
    """

    json: bool = False
    tolerance: float | None = None
    unordered: bool = False
    relative: float | None = None

    def near(self, size: float) -> float | None:
        """How far a number may be from an expected one of this size; None where it has to be equal."""
        if self.relative is not None:
            return max(self.tolerance or 0.0, self.relative * size)
        return None if self.tolerance is None else self.tolerance * max(1.0, size)


class Expected:
    """A value to compare with, prepared once for many candidates. What equals `also` is as good."""

    def __init__(self, tree: Tree, rules: Rules, also: Expected | None = None) -> None:
        self.also = also
        self.value = Value(tree)
        self.rules = rules
        self.text = dumps(tree)
        # Equal text means equal values, unless something in it equals nothing, not even itself.
        self.is_reflexive = not any(mark in self.text for mark in ('"nan"', "NaN", '["g",', '["x",', '["v",'))

    def matches(self, text: str) -> bool:
        """Whether the tree in `text` equals this value; BadTree when it is none of ours, or can't be read."""
        if text == self.text and self.is_reflexive:
            return True
        try:
            if self.equals(Value(loads(text))):
                return True
        except BadTree:
            raise
        except _UNREADABLE as error:
            # Whoever wrote the text chose it: what it does to its reader is no fault of the machine's or the spec's.
            raise BadTree(f"{type(error).__name__}: {error!s:.200}") from None
        return self.also is not None and self.also.matches(text)

    def equals(self, got: Value) -> bool:
        """Whether `got` equals this value under the rules."""
        comparison = _Comparison(got, self.value, self.rules, 4 * self.value.size + len(self.text) + 1000)
        if not self.rules.unordered:
            return comparison.equal(got.tree, self.value.tree)
        return comparison.equal_unordered()


class _Budget(Exception):
    """The candidate's side is larger than anything equal could be."""


class _Comparison:
    def __init__(self, got: Value, want: Value, rules: Rules, budget: int) -> None:
        self.got, self.want, self.rules, self.left = got, want, rules, budget
        self.odd = 0

    def equal_unordered(self) -> bool:
        got, want = self.got.resolve(self.got.tree), self.want.resolve(self.want.tree)
        if self._family(got) not in _ORDERED or self._family(got) != self._family(want) or _count(got) != _count(want):
            return self.equal(got, want)
        try:
            theirs = Counter(self._key(y, self.got) for y in _items(got))
            return theirs == Counter(self._key(y, self.want) for y in _items(want))
        except _Budget:
            return False

    def equal(self, a: Tree, b: Tree) -> bool:
        """Whether the candidate's node a equals the expected node b."""
        a, b = self.got.resolve(a), self.want.resolve(b)
        family = self._family(a)
        if family != self._family(b):
            return False
        if family == "number":
            return self._equal_numbers(a, b)
        if family in _ORDERED:
            return _count(a) == _count(b) and all(self.equal(x, y) for x, y in zip(_items(a), _items(b), strict=True))
        if family == "dict":
            return self._equal_dicts(a, b)
        if family == "array":
            return a[2] == b[2] and all(self.equal(x, y) for x, y in zip(a[3:], b[3:], strict=True))
        if family == "record":
            same = a[: 3 + a[2]] == b[: 3 + b[2]]
            return same and all(self.equal(x, y) for x, y in zip(a[3 + a[2] :], b[3 + b[2] :], strict=True))
        try:
            return self._key(a, self.got) == self._key(b, self.want)
        except _Budget:
            return False

    def _family(self, node: Tree) -> str:
        """What kinds of value can equal each other; "none" for what equals nothing."""
        if node is None:
            return "null"
        if type(node) is str:
            return "text"
        if type(node) in (bool, int):
            return "number"
        tag = node[0]
        if tag == "a" and not node[2]:
            return "number"
        if self.rules.json and (tag in "ltugqRa" or (tag == "v" and node[1] != "items")):
            return "none" if tag == "g" and node[1] else "list"
        return _FAMILIES.get(tag, "none") if tag != "v" or node[1] != "values" else "none"

    def _equal_numbers(self, a: Tree, b: Tree) -> bool:
        x, y = _number(a), _number(b)
        if x != x or y != y:
            return self.rules.json and x != x and y != y
        x, y = _narrowed(x, a, b), _narrowed(y, b, a)
        if Decimal in (type(x), type(y)) and any(type(n) is int and n.bit_length() > 4 * MAX_DECIMAL for n in (x, y)):
            return False  # telling for certain is quadratic work
        try:
            if x == y:
                return True
            if self.rules.near(0.0) is None or (isinstance(x, int) and isinstance(y, int)):
                return False
            if isinstance(x, complex) or isinstance(y, complex):
                apart, size = abs(complex(x) - complex(y)), abs(complex(y))
            else:
                apart, size = abs(float(x) - float(y)), abs(float(y))
            if not apart <= (self.rules.near(size) or 0.0) < float("inf"):
                return False
            # However large an integer is, only what rounds to it is close to it: a guess of its leading digits is not.
            return not isinstance(y, int) or abs(Fraction(complex(x).real) - y) < Fraction(1, 2)
        except (InvalidOperation, OverflowError, ValueError):
            return False  # a signalling NaN, or beyond what a float holds: no tolerance bridges that

    def _equal_dicts(self, a: Tree, b: Tree) -> bool:
        if len(a) != len(b):
            return False
        if a[1] == b[1] == "o" and not self.rules.json:
            return all(self.equal(x, y) for x, y in zip(a[2:], b[2:], strict=True))
        try:
            ours = {self._name(b[i], self.want): b[i + 1] for i in range(2, len(b), 2)}
            theirs = {self._name(a[i], self.got): a[i + 1] for i in range(2, len(a), 2)}
        except _Budget:
            return False
        if len(theirs) != len(ours) or ours.keys() != theirs.keys():
            return False
        return all(self.equal(theirs[key], value) for key, value in ours.items())

    def _name(self, node: Tree, side: Value) -> str:
        """A dict key's canonical text: under JSON's rules what json.dumps makes of it."""
        if self.rules.json:
            if type(node) is bool or node is None:
                return "s" + {True: "true", False: "false", None: "null"}[node]
            if type(node) is int or (type(node) is list and node[0] == "i"):
                return "s" + _decimal_text(_integer(node))
            if type(node) is list and node[0] == "f":
                return "s" + repr(float.fromhex(node[1]))
            if type(node) is str:
                return "s" + node
        return "k" + self._key(node, side)

    def _key(self, node: Tree, side: Value) -> str:
        """Text that is equal exactly where the values are; a fresh one for what equals nothing."""
        node = side.resolve(node)
        family = self._family(node)
        self._pay(1)
        if family in _ORDERED:
            return family + "(" + ",".join([self._key(y, side) for y in _items(node)]) + ")"
        if family == "set":
            children = node[2:] if node[0] == "v" else node[1:]
            return "set(" + ",".join(sorted(self._key(y, side) for y in children)) + ")"
        if family == "dict":
            names = [self._name(node[i], side) for i in range(2, len(node), 2)]
            # A name is the candidate's own text: its length says where it ends.
            pairs = [f"{len(name)}:{name}={self._key(node[3 + 2 * n], side)}" for n, name in enumerate(names)]
            return "dict(" + ",".join(sorted(pairs)) + ")"
        if family in ("array", "record"):
            start = 3 if family == "array" else 3 + node[2]
            head = dumps(node[2] if family == "array" else node[1:start])
            return family + head + "(" + ",".join([self._key(y, side) for y in node[start:]]) + ")"
        key = self._leaf_key(node, family)
        self._pay(len(key) // 16)
        return key

    def _pay(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            raise _Budget

    def _leaf_key(self, node: Tree, family: str) -> str:
        if family == "number":
            return self._number_key(_number(node))
        if family == "text":
            text = _text(node)
            return f"s{len(text)}:{text}"
        return self._fresh() if family == "none" else family + ":" + _plain_key(node)

    def _number_key(self, x: Number) -> str:
        if x != x:
            return "nan" if self.rules.json else self._fresh()
        if isinstance(x, complex):
            return self._number_key(x.real) if x.imag == 0 else f"c{x.real.hex()}{x.imag.hex()}"
        if not (x.is_finite() if isinstance(x, Decimal) else isinstance(x, int | Fraction) or math.isfinite(x)):
            return f"f{float(x).hex()}"
        if isinstance(x, Decimal):
            if x and abs(x.adjusted()) > _PLAIN_EXPONENT:
                sign, digits, exponent = x.as_tuple()
                text = "".join(map(str, digits))
                shorter = text.rstrip("0")
                return f"D{sign}{shorter}E{int(exponent) + len(text) - len(shorter)}"
            x = Fraction(x if x else 0)
        x = Fraction(x)
        twos = (x.numerator & -x.numerator).bit_length() - (x.denominator & -x.denominator).bit_length()
        return f"{x.numerator >> max(twos, 0):x}p{twos}/{x.denominator >> max(-twos, 0):x}"

    def _fresh(self) -> str:
        self.odd += 1
        return f"!{self.odd}"


_ORDERED: Final = ("list", "tuple", "deque")
_FAMILIES: Final = {
    "i": "number",
    "f": "number",
    "c": "number",
    "D": "number",
    "F": "number",
    "s": "text",
    "b": "bytes",
    "y": "bytes",
    "l": "list",
    "t": "tuple",
    "u": "tuple",
    "q": "deque",
    "e": "set",
    "z": "set",
    "v": "set",
    "m": "dict",
    "R": "range",
    "a": "array",
    "k": "record",
    "d": "date",
    "n": "named",
    "E": "ellipsis",
    "N": "not implemented",
}


def _count(node: Tree) -> int:
    """How many items a node of an ordered family has. Nothing is built for it."""
    tag = node[0]
    if tag in _SEQUENCES:
        return len(node) - _SEQUENCES[tag]
    if tag == "u":
        return int(node[2])
    if tag == "a":
        return int(node[2][0])
    start, stop, step = [_integer(y) for y in node[1:]]
    return max(0, -((start - stop) // step))


def _items(node: Tree) -> Iterator[Tree]:
    """The items of a node of an ordered family, one at a time: what a small tree stands for may be large."""
    tag = node[0]
    if tag in _SEQUENCES:
        yield from node[_SEQUENCES[tag] :]
    elif tag == "u":
        yield from node[3 + node[2] :]
    elif tag == "R":
        for n in range(*[_integer(y) for y in node[1:]]):
            yield ["i", format(n, "x")]
    elif len(node[2]) == 1:
        yield from node[3:]
    else:
        width = (len(node) - 3) // node[2][0] if node[2][0] else 0
        for i in range(node[2][0]):
            yield ["a", node[1], node[2][1:], *node[3 + i * width : 3 + (i + 1) * width]]


def _integer(node: Tree) -> int:
    return node if type(node) is int else int(node[1], 16)


def _text(node: Tree) -> str:
    return node if type(node) is str else bytes.fromhex(node[1]).decode("utf-8", "surrogatepass")


def _number(node: Tree) -> Number:
    if type(node) in (bool, int):
        return int(node)
    if node[0] == "a":
        return _number(node[3])
    if node[0] == "D" and "snan" in node[1].lower():
        return float("nan")
    made: Number = Builder().build(node)
    return made


def _narrowed(x: Number, own: Tree, other: Tree) -> Number:
    """A Python float beside a narrower numpy float is rounded to that first, as numpy does."""
    narrow = type(other) is list and other[0] == "a" and other[1][1:] in ("f4", "f2")
    if narrow and isinstance(x, float) and type(own) is list and own[0] == "f":
        try:
            code = {"f4": "f", "f2": "e"}[other[1][1:]]
            rounded: float = struct.unpack(code, struct.pack(code, x))[0]
            return rounded
        except OverflowError:
            return x
    return x


def _decimal_text(n: int) -> str:
    """Decimal digits as JSON writes an integer key; beyond what Python converts by default, hex will do as well."""
    return str(n) if n.bit_length() < 14_000 else format(n, "x")


def _plain_key(node: Tree) -> str:
    if type(node) is not list:
        return "null"
    if node[0] in ("b", "y"):
        return str(node[1])
    if node[0] == "R":
        start, stop, step = [_integer(y) for y in node[1:]]
        numbers = range(start, stop, step)
        if not numbers:
            return "empty"
        return f"{start:x},{numbers[-1]:x}" + (f",{step:x}" if numbers[0] != numbers[-1] else "")
    if node[0] == "d":
        try:
            return _date_key(Builder().build(node))
        except (ValueError, OverflowError) as error:
            raise BadTree(f"no date: {error}") from None
    return dumps(node)


def _date_key(made: Any) -> str:
    if isinstance(made, datetime.datetime) and made.utcoffset() is not None:
        return f"instant{(made - datetime.datetime.fromtimestamp(0, datetime.timezone.utc))!r}"
    return repr(made)
