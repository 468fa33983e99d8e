"""Values to trees, for honest accuracy: `type(x)` and its MRO decide, and the base types' own descriptors read.

No method and no `__class__` of the candidate's takes part, so that a subclass travels as the plain value that it holds.
"""

from __future__ import annotations

import collections
import itertools
import sys
import types
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from collimate_rl.guest.plain import (
    CONTAINERS,
    DATES,
    FACTORIES,
    MAX_BYTES,
    MAX_DECIMAL,
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_ITERATED,
    MAX_KEYED,
    MAX_NODES,
    PURE,
    Opaque,
    Tree,
    Unencodable,
    identifiers,
    mro_of,
    space_of,
    type_names,
)

_PURE_NAMES = {id(value): name for name, value in PURE.items()}
_VIEWS = {id(type({}.keys())): "keys", id(type({}.values())): "values", id(type({}.items())): "items"}
_SAMPLES: Tuple[Any, ...] = ([], (), {}, set(), range(1), range(1 << 70), "", b"", {}.items(), {}.values())
_ITERATORS: Set[int] = {id(c) for c in (types.GeneratorType, map, filter, zip, enumerate, reversed)}
_ITERATORS.update(id(type(iter(x))) for x in _SAMPLES)
_ITERATORS.update(id(type(x)) for x in (reversed([]), reversed(range(1))))
_ITERATORS.update(id(c) for c in vars(itertools).values() if isinstance(c, type))


def _loaded(module: str, name: str) -> Any:
    """A type of a module that is already imported: a value of it can't exist before that."""
    return getattr(sys.modules.get(module), name, None)


class Encoder:
    """Turns values into trees; containers keep their numbers across calls of `encode` on one encoder.

    `opaque(x)` is asked for the node of what is no plain data. `objects` are the numbered containers, `sizes` their
    node counts with references expanded. `peek` leaves iterators as they are, all alike: such trees are for comparing.
    """

    def __init__(self, opaque: Optional[Opaque] = None, max_bytes: int = MAX_BYTES, peek: bool = False) -> None:
        self._opaque, self._max_bytes, self._peek = opaque, max_bytes, peek
        self.objects: List[Any] = []
        self.sizes: List[int] = []
        self._numbers: Dict[int, int] = {}
        self._open: Set[int] = set()
        self._nodes = self._bytes = 0

    def adopt(self, objects: Iterable[Any], sizes: Iterable[int]) -> None:
        """Number containers that the other side already knows, in the order in which it numbered them."""
        for x, size in zip(objects, sizes):
            self._numbers.setdefault(id(x), len(self.objects))
            self.objects.append(x)
            self.sizes.append(size)

    def encode(self, x: Any) -> Tree:
        """The tree of x; Unencodable when it is no plain data or too large (this encoder is then of no more use)."""
        return self._node(x, 0)

    def body(self, k: int) -> Tree:
        """The node of container k with its present content, as if met for the first time."""
        x = self.objects[k]
        c = next(c for c in mro_of(type(x)) if id(c) in CONTAINERS)
        return self._content(x, c, k, 0)

    def _charge(self, nodes: int, size: int) -> None:
        self._nodes += nodes
        self._bytes += size
        if self._nodes > MAX_NODES or self._bytes > self._max_bytes:
            raise Unencodable("the value is too large", True)

    def _node(self, x: Any, depth: int) -> Tree:
        self._charge(1, 2)
        if x is None or x is True or x is False:
            return x
        t = type(x)
        if t is int and -(1 << 53) < x < 1 << 53:
            return x
        if depth > MAX_DEPTH:
            raise Unencodable("the value is nested too deep", True)
        for c in mro_of(t):
            if id(c) in CONTAINERS:
                k = self._numbers.get(id(x))
                if k is None:
                    k = self._numbers[id(x)] = len(self.objects)
                    self.objects.append(x)
                    self.sizes.append(0)
                    return self._content(x, c, k, depth)
                if k in self._open:
                    raise Unencodable("the value contains itself", True)
                self._charge(self.sizes[k], 6)
                return ["r", k]
            method = _METHODS.get(id(c))
            if method is not None:
                return method(self, x, depth)
        return self._other(x, t, depth)

    def _extend(self, out: List[Tree], items: Iterable[Any], depth: int) -> Tree:
        for y in items:
            out.append(self._node(y, depth + 1))
        return out

    def _keyed(self, count: int) -> None:
        if count > MAX_KEYED:
            raise Unencodable("a set or dict of more than %d elements" % MAX_KEYED, True)

    def _content(self, x: Any, c: type, k: int, depth: int) -> Tree:
        before = self._nodes
        self._open.add(k)
        out: List[Tree] = [CONTAINERS[id(c)]]
        items: Iterable[Any] = ()
        if c is list:
            items = list.__iter__(x)
        elif c is set:
            self._keyed(set.__len__(x))
            items = set.__iter__(x)
        elif c is bytearray:
            self._charge(0, 2 * bytearray.__len__(x))
            out.append(bytearray.hex(x))
        elif c is collections.deque:
            get: Any = collections.deque.__dict__
            out.append(get["maxlen"].__get__(x))
            items = get["__iter__"](x)
        else:
            self._keyed(dict.__len__(x))
            kind, pairs = "", dict.items(x)
            if c is collections.OrderedDict:
                kind, pairs = "o", collections.OrderedDict.items(x)
            elif c is collections.Counter:
                kind = "c"
            elif c is collections.defaultdict:
                factory = collections.defaultdict.__dict__["default_factory"].__get__(x)
                kind = "d" + next((n for n, f in FACTORIES.items() if f is factory), "")
            out.append(kind)
            items = itertools.chain.from_iterable(pairs)
        self._extend(out, items, depth)
        self._open.discard(k)
        self.sizes[k] = self._nodes - before + 1
        return out

    def _int(self, x: int, _: int = 0) -> Tree:
        x = int.__add__(x, 0)
        if -(1 << 53) < x < 1 << 53:
            return x
        bits = x.bit_length()
        if bits > MAX_INT_BITS:
            raise Unencodable("an integer of more than %d bits" % MAX_INT_BITS, True)
        self._charge(0, bits // 4)
        return ["i", format(x, "x")]

    def _float(self, x: float, _: int) -> Tree:
        self._charge(0, 20)
        return ["f", float.hex(x)]

    def _complex(self, x: complex, _: int) -> Tree:
        self._charge(0, 40)
        get = complex.__dict__
        return ["c", float.hex(get["real"].__get__(x)), float.hex(get["imag"].__get__(x))]

    def _str(self, x: str, _: int) -> Tree:
        x = str.__str__(x)
        self._charge(0, len(x) if x.isascii() else 6 * len(x))
        try:
            x.encode()
        except UnicodeEncodeError:
            return ["s", x.encode("utf-8", "surrogatepass").hex()]
        return x

    def _octets(self, x: bytes, _: int) -> Tree:
        self._charge(0, 2 * bytes.__len__(x))
        return ["b", bytes.hex(x)]

    def _tuple(self, x: Tuple[Any, ...], depth: int) -> Tree:
        spaces = (space_of(c) for c in mro_of(type(x)))
        fields = next((s["_fields"] for s in spaces if "_fields" in s), None)
        if type(fields) is tuple and len(fields) == tuple.__len__(x) and identifiers(fields):
            out: List[Tree] = ["u", type_names(type(x))[0].lstrip("*"), len(fields), *fields]
        else:
            out = ["t"]
        return self._extend(out, tuple.__iter__(x), depth)

    def _frozenset(self, x: Any, depth: int) -> Tree:
        self._keyed(frozenset.__len__(x))
        return self._extend(["z"], frozenset.__iter__(x), depth)

    def _exception(self, x: BaseException, depth: int) -> Tree:
        get: Any = BaseException.__dict__["args"]
        known = len(self.objects)
        try:
            args = self._node(get.__get__(x), depth + 1)
        except Unencodable:
            args = ["t"]
            for y in self.objects[known:]:  # the other side must not miss a number
                del self._numbers[id(y)]
            self._open.difference_update(range(known, len(self.objects)))
            del self.objects[known:], self.sizes[known:]
        return ["x", type_names(type(x)), args]

    def _other(self, x: Any, t: type, depth: int) -> Tree:
        tree = None
        if x is Ellipsis or x is NotImplemented:
            tree = ["E" if x is Ellipsis else "N"]
        elif id(x) in _PURE_NAMES:
            tree = ["n", _PURE_NAMES[id(x)]]
        elif t is range:
            tree = ["R", self._int(x.start), self._int(x.stop), self._int(x.step)]
        elif t is memoryview:
            tree = self._octets(x.tobytes(), depth)
        elif id(t) in _VIEWS:
            self._keyed(len(x))
            tree = self._extend(["v", _VIEWS[id(t)]], x, depth)
        elif id(t) in _ITERATORS:
            tree = ["N"] if self._peek else self._iterator(x, depth)
        elif t is _loaded("fractions", "Fraction"):
            tree = ["F", self._int(x.numerator), self._int(x.denominator)]
        elif t is _loaded("decimal", "Decimal"):
            text = str(x)
            self._charge(0, len(text))
            if len(text) > MAX_DECIMAL:
                raise Unencodable("a Decimal of more than %d characters" % MAX_DECIMAL, True)
            tree = ["D", text]
        elif t is _loaded("datetime", "timedelta"):
            tree = ["d", "timedelta", x.days, x.seconds, x.microseconds]
        elif any(t is _loaded("datetime", name) for name in DATES):
            self._charge(0, 40)
            tree = ["d", t.__name__, x.isoformat()]
        tree = tree or self._array(x, t, depth) or self._dataclass(x, t, depth)
        if tree is None and self._opaque is not None:
            tree = self._opaque(x)
        if tree is None:
            raise Unencodable("a value of type " + ((type_names(t) or ["object"])[0].lstrip("*")))
        return tree

    def _iterator(self, x: Any, depth: int) -> Tree:
        out: List[Tree] = ["g", 0, None]
        try:
            for y in x:
                if len(out) == MAX_ITERATED + 3:
                    out[1] = 1
                    break
                out.append(self._node(y, depth + 1))
        except Unencodable:
            raise
        except Exception as error:
            out[1:3] = 2, self._exception(error, depth)
        return out

    def _dataclass(self, x: Any, t: type, depth: int) -> Tree:
        marker = _loaded("dataclasses", "_FIELD")
        spaces = (space_of(c) for c in mro_of(t))
        known = next((s["__dataclass_fields__"] for s in spaces if "__dataclass_fields__" in s), None)
        if marker is None or type(known) is not dict:
            return None
        fields = [n for n, f in known.items() if getattr(f, "_field_type", None) is marker]
        try:
            values = [object.__getattribute__(x, n) for n in fields]
        except Exception:
            return None
        if not identifiers(fields):
            return None
        return self._extend(["k", type_names(t)[0].lstrip("*"), len(fields), *fields], values, depth)

    def _array(self, x: Any, t: type, depth: int) -> Tree:
        for c in mro_of(t):
            if c is _loaded("numpy", "ndarray") or c is _loaded("numpy", "generic"):
                get: Any = space_of(c)
                dtype, shape = get["dtype"].__get__(x), get["shape"].__get__(x)
                if dtype.kind not in "biufcUS":
                    return None
                self._charge(0, 2 * get["size"].__get__(x))
                items = get["tolist"](get["ravel"](x)) if shape else [get["item"](x)]
                if any(type(y) not in (bool, int, float, complex, str, bytes) for y in items):
                    return None  # a long double has no builtin to travel as
                return self._extend(["a", dtype.str, list(shape)], items, depth)
        return None


_METHODS: Dict[int, Any] = {
    id(int): Encoder._int,
    id(float): Encoder._float,
    id(complex): Encoder._complex,
    id(str): Encoder._str,
    id(bytes): Encoder._octets,
    id(tuple): Encoder._tuple,
    id(frozenset): Encoder._frozenset,
    id(BaseException): Encoder._exception,
}
