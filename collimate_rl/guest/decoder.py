"""Trees to values: the trust boundary. A closed set of tags, exact builtins, sizes capped, any fault a `BadTree`."""

from __future__ import annotations

import collections
import importlib
from typing import Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from collimate_rl.guest.plain import (
    DATES,
    FACTORIES,
    MAX_DECIMAL,
    MAX_DEPTH,
    MAX_INT_BITS,
    MAX_ITERATED,
    MAX_KEYED,
    MAX_NODES,
    PURE,
    Array,
    BadTree,
    Opaque,
    Record,
    Row,
    Tree,
    identifiers,
    nearest_builtin,
)


class Decoder:
    """Turns trees into values: exact builtins, `Row`, `Record`, and numpy arrays or `Array`.

    `objects` and `sizes` name containers that a tree may refer to from the start, as an encoder numbered them.
    `opaque(node)` answers nodes tagged "h" and "p"; without it they are bad. `numpy` asks for real arrays where numpy
    can be imported.
    """

    def __init__(
        self,
        opaque: Optional[Opaque] = None,
        numpy: bool = False,
        objects: Iterable[Any] = (),
        sizes: Iterable[int] = (),
    ) -> None:
        self.opaque = opaque
        self.numpy = numpy
        self.objects: List[Any] = list(objects)
        self.sizes: List[int] = list(sizes)
        self._open: Set[int] = set()
        self._nodes = 0

    def decode(self, tree: Tree) -> Any:
        """The value of a tree; BadTree when it is none of ours."""
        return self._checked(self._value, tree)

    def body(self, tree: Tree) -> Any:
        """The value of a container's node that takes no number of its own (`Encoder.body`)."""
        return self._checked(self._content, tree)

    def _checked(self, read: Any, tree: Tree) -> Any:
        try:
            return read(tree, 0)
        except BadTree:
            raise
        except Exception as error:
            raise BadTree("%s: %.200s" % (type(error).__name__, error)) from None

    def _value(self, node: Tree, depth: int) -> Any:
        self._nodes += 1
        t = type(node)
        if node is None or t is bool or t is str:
            return node
        if t is int:
            return small(node)
        if t is not list or not node or type(node[0]) is not str or depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise BadTree("no node of ours, or more or deeper than may be")
        if node[0] not in _READERS:
            raise BadTree("an unknown tag")
        return _READERS[node[0]](self, node, depth)

    def _items(self, nodes: Iterable[Tree], depth: int) -> List[Any]:
        out = []
        for y in nodes:
            out.append(self._value(y, depth + 1))
        return out

    def _integers(self, nodes: List[Tree]) -> List[int]:
        values = self._items(nodes, 0)
        if any(type(v) is not int for v in values):
            raise BadTree("an integer was due")
        return values

    def _keyed(self, count: int, made: Any = None) -> Any:
        if count > MAX_KEYED or (made is not None and len(made) != count):
            raise BadTree("too many elements, or one twice")
        return made

    def _container(self, node: Tree, depth: int) -> Any:
        return self._content(node, depth, len(self.objects))

    def _content(self, node: Tree, depth: int, k: int = -1) -> Any:
        tag, before, made = node[0], self._nodes, _empty(node)
        if k >= 0:
            self.objects.append(made)
            self.sizes.append(0)
            self._open.add(k)
        if tag == "m":
            self._keyed(len(node) // 2 - 1)
            for i in range(2, len(node), 2):
                key = self._value(node[i], depth + 1)
                made[key] = self._value(node[i + 1], depth + 1)
            self._keyed(len(node) // 2 - 1, made)
        elif tag == "e":
            self._keyed(len(node) - 1)
            for i in range(1, len(node)):
                made.add(self._value(node[i], depth + 1))
            self._keyed(len(node) - 1, made)
        elif tag == "y":
            made.extend(bytes.fromhex(node[1]))
        else:
            for i in range(1 if tag == "l" else 2, len(node)):
                made.append(self._value(node[i], depth + 1))
        if k >= 0:
            self._open.discard(k)
            self.sizes[k] = self._nodes - before + 1
        return made

    def _reference(self, node: Tree, _: int) -> Any:
        k = small(node[1])
        if not 0 <= k < len(self.objects) or k in self._open:
            raise BadTree("a reference to no finished container")
        self._nodes += self.sizes[k]
        if self._nodes > MAX_NODES:
            raise BadTree("the expanded value is too large")
        return self.objects[k]

    def _frozenset(self, node: Tree, depth: int) -> Any:
        self._keyed(len(node) - 1)
        return self._keyed(len(node) - 1, frozenset(self._items(node[1:], depth)))

    def _decimal(self, node: Tree, _: int) -> Any:
        import decimal

        return decimal.Decimal(text(node[1], MAX_DECIMAL))

    def _fraction(self, node: Tree, _: int) -> Any:
        import fractions

        return fractions.Fraction(*self._integers(node[1:3]))

    def _date(self, node: Tree, _: int) -> Any:
        import datetime

        if node[1] == "timedelta":
            return datetime.timedelta(*self._integers(node[2:5]))
        if node[1] not in DATES:
            raise BadTree("an unknown date type")
        return getattr(datetime, node[1]).fromisoformat(text(node[2], 80))

    def _named(self, node: Tree, depth: int) -> Tuple[str, Tuple[str, ...], List[Any]]:
        name, count = text(node[1], 80), small(node[2])
        fields = tuple(node[3 : 3 + count])
        if count < 0 or len(node) != 3 + 2 * count or len(set(fields)) != count or not identifiers(fields):
            raise BadTree("bad field names")
        return name, fields, self._items(node[3 + count :], depth)

    def _row(self, node: Tree, depth: int) -> Row:
        name, fields, values = self._named(node, depth)
        row = Row(values)
        row._name, row._fields = name, fields
        return row

    def _record(self, node: Tree, depth: int) -> Record:
        return Record(*self._named(node, depth))

    def _iterator(self, node: Tree, depth: int) -> Iterator[Any]:
        end = small(node[1])
        error = self._value(node[2], depth + 1)
        if end not in (0, 1, 2) or (end == 2) != isinstance(error, Exception) or len(node) - 3 > MAX_ITERATED:
            raise BadTree("a bad iterator")
        return _replay(self._items(node[3:], depth), end, error)

    def _view(self, node: Tree, depth: int) -> Any:
        self._keyed(len(node) - 2)
        items = self._items(node[2:], depth)
        if node[1] == "values":
            return dict(enumerate(items)).values()
        made = dict.fromkeys(items) if node[1] == "keys" else {"items": dict}[node[1]](items)
        self._keyed(len(items), made)
        return made.keys() if node[1] == "keys" else made.items()

    def _exception(self, node: Tree, depth: int) -> BaseException:
        names, args = node[1], self._value(node[2], depth + 1)
        if type(names) is not list or not 0 < len(names) <= 20 or type(args) is not tuple:
            raise BadTree("a bad exception")
        made: Any = nearest_builtin([text(name, 81) for name in names])
        try:
            return (made or Exception)(*args)
        except Exception:
            return Exception(*args)

    def _array(self, node: Tree, depth: int) -> Any:
        dtype, shape, items = text(node[1], 20), node[2], self._items(node[3:], depth)
        count = room = 1
        for width in shape:
            count *= small(width)
            room *= max(width, 1)
            if width < 0 or room > MAX_NODES:
                raise BadTree("a bad shape")
        plain = (bool, int, float, complex, str, bytes)
        if count != len(items) or dtype[1:2] not in tuple("biufcUS") or any(type(v) not in plain for v in items):
            raise BadTree("a bad array")
        if self.numpy:
            try:
                numpy = importlib.import_module("numpy")
            except ImportError:
                return Array(dtype, tuple(shape), items)
            made = numpy.array(items, dtype=dtype).reshape(shape)
            return made if shape else made[()]
        return Array(dtype, tuple(shape), items)

    def _opaque(self, node: Tree, _: int) -> Any:
        if self.opaque is None:
            raise BadTree("an opaque value")
        return self.opaque(node)


_READERS: Dict[str, Any] = {
    "i": lambda d, node, depth: int(text(node[1], MAX_INT_BITS // 4 + 2), 16),
    "f": lambda d, node, depth: _real(node[1]),
    "c": lambda d, node, depth: complex(_real(node[1]), _real(node[2])),
    "s": lambda d, node, depth: bytes.fromhex(node[1]).decode("utf-8", "surrogatepass"),
    "b": lambda d, node, depth: bytes.fromhex(node[1]),
    "t": lambda d, node, depth: tuple(d._items(node[1:], depth)),
    "R": lambda d, node, depth: range(*d._integers(node[1:4])),
    "n": lambda d, node, depth: PURE[node[1]],
    "E": lambda d, node, depth: Ellipsis,
    "N": lambda d, node, depth: NotImplemented,
    "r": Decoder._reference,
    "z": Decoder._frozenset,
    "D": Decoder._decimal,
    "F": Decoder._fraction,
    "d": Decoder._date,
    "u": Decoder._row,
    "k": Decoder._record,
    "g": Decoder._iterator,
    "v": Decoder._view,
    "x": Decoder._exception,
    "a": Decoder._array,
    "h": Decoder._opaque,
    "p": Decoder._opaque,
}
for _tag in "leyqm":
    _READERS[_tag] = Decoder._container


def _empty(node: Tree) -> Any:
    tag: str = node[0]
    kind: Any = node[1] if len(node) > 1 else None
    if tag == "m" and len(node) % 2 == 0:
        if kind[:1] == "d":
            return collections.defaultdict(FACTORIES[kind[1:]] if kind[1:] else None)
        return {"": dict, "c": collections.Counter, "o": collections.OrderedDict}[kind]()
    if tag == "q" and (kind is None or len(node) - 2 <= small(kind)):
        return collections.deque(maxlen=kind)
    return {"l": list, "e": set, "y": bytearray}[tag]()


def _replay(items: List[Any], end: int, error: Optional[BaseException]) -> Iterator[Any]:
    yield from items
    if error is not None:
        raise error
    if end == 1:
        raise RuntimeError("the iterator went on beyond %d items" % MAX_ITERATED)


def _real(s: Any) -> float:
    return float.fromhex(text(s, 40))


def small(n: Any) -> int:
    """The integer, refused beyond 53 bits."""
    if type(n) is not int or not -(1 << 53) < n < 1 << 53:
        raise BadTree("an integer out of range")
    return n


def text(s: Any, most: int) -> str:
    """The string, refused beyond `most` characters."""
    if type(s) is not str or len(s) > most:
        raise BadTree("a text out of range")
    return s
