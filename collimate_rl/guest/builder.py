"""Checked trees to values: exact builtins, `Row`, `Record`, and numpy arrays or `Array`."""

from __future__ import annotations

import collections
import importlib
from typing import Any, Dict, Iterable, Iterator, List, Optional

from collimate_rl.guest.plain import (
    FACTORIES,
    MAX_ITERATED,
    PURE,
    Array,
    Opaque,
    Record,
    Row,
    Tree,
    nearest_builtin,
)


class Builder:
    """Builds what a checker let pass, or what our own side wrote; `objects` are the containers by their numbers."""

    def __init__(self, opaque: Optional[Opaque] = None, numpy: bool = False, objects: Iterable[Any] = ()) -> None:
        self._opaque = opaque
        self._numpy = numpy
        self.objects: List[Any] = list(objects)

    def build(self, node: Tree) -> Any:
        return _MAKERS[node[0]](self, node) if type(node) is list else node

    def body(self, node: Tree, made: Any = None) -> Any:
        """The value of a container's node that takes no number of its own (`Encoder.body`)."""
        tag, kind = node[0], node[1] if len(node) > 1 else None
        if made is None:
            made = self._empty(tag, kind)
        if tag == "m":
            for i in range(2, len(node), 2):
                key = self.build(node[i])
                made[key] = self.build(node[i + 1])
            once(made, len(node) // 2 - 1)
        elif tag == "e":
            for i in range(1, len(node)):
                made.add(self.build(node[i]))
            once(made, len(node) - 1)
        elif tag == "y":
            made.extend(bytes.fromhex(node[1]))
        else:
            for i in range(1 if tag == "l" else 2, len(node)):
                made.append(self.build(node[i]))
        return made

    def _empty(self, tag: str, kind: Any) -> Any:
        if tag == "q":
            return collections.deque(maxlen=kind)
        if tag != "m":
            return {"l": list, "e": set, "y": bytearray}[tag]()
        if kind[:1] == "d":
            return collections.defaultdict(FACTORIES[kind[1:]] if kind[1:] else None)
        return {"": dict, "c": collections.Counter, "o": collections.OrderedDict}[kind]()

    def _container(self, node: Tree) -> Any:
        made = self._empty(node[0], node[1] if len(node) > 1 else None)
        self.objects.append(made)
        return self.body(node, made)

    def _all(self, node: Tree, start: int) -> List[Any]:
        out = []
        for i in range(start, len(node)):
            out.append(self.build(node[i]))
        return out

    def _date(self, node: Tree) -> Any:
        kind = getattr(importlib.import_module("datetime"), node[1])
        return kind(*node[2:]) if node[1] == "timedelta" else kind.fromisoformat(node[2])

    def _row(self, node: Tree) -> Any:
        row = Row(self._all(node, 3 + node[2]))
        row._name, row._fields = node[1], tuple(node[3 : 3 + node[2]])
        return row

    def _view(self, node: Tree) -> Any:
        items = self._all(node, 2)
        if node[1] == "values":
            return dict(enumerate(items)).values()
        made = once(dict.fromkeys(items) if node[1] == "keys" else dict(items), len(items))
        return made.keys() if node[1] == "keys" else made.items()

    def _exception(self, node: Tree) -> Any:
        args = self.build(node[2])
        made: Any = nearest_builtin(node[1]) or Exception
        try:
            return made(*args)
        except Exception:
            return Exception(*args)

    def _array(self, node: Tree) -> Any:
        items, shape = self._all(node, 3), node[2]
        if self._numpy:
            try:
                made = importlib.import_module("numpy").array(items, node[1]).reshape(shape)
                return made if shape else made[()]
            except ImportError:
                pass
        return Array(node[1], tuple(shape), items)


_MAKERS: Dict[str, Any] = {
    "i": lambda b, node: int(node[1], 16),
    "f": lambda b, node: float.fromhex(node[1]),
    "c": lambda b, node: complex(float.fromhex(node[1]), float.fromhex(node[2])),
    "s": lambda b, node: bytes.fromhex(node[1]).decode("utf-8", "surrogatepass"),
    "b": lambda b, node: bytes.fromhex(node[1]),
    "t": lambda b, node: tuple(b._all(node, 1)),
    "z": lambda b, node: once(frozenset(b._all(node, 1)), len(node) - 1),
    "R": lambda b, node: range(*b._all(node, 1)),
    "D": lambda b, node: importlib.import_module("decimal").Decimal(node[1]),
    "F": lambda b, node: importlib.import_module("fractions").Fraction(*b._all(node, 1)),
    "n": lambda b, node: PURE[node[1]],
    "E": lambda b, node: Ellipsis,
    "N": lambda b, node: NotImplemented,
    "r": lambda b, node: b.objects[node[1]],
    "k": lambda b, node: Record(node[1], tuple(node[3 : 3 + node[2]]), b._all(node, 3 + node[2])),
    "g": lambda b, node: replay(b.build(node[2]), b._all(node, 3), node[1]),
    "h": lambda b, node: b._opaque(node),
    "d": Builder._date,
    "u": Builder._row,
    "v": Builder._view,
    "x": Builder._exception,
    "a": Builder._array,
}
_MAKERS["p"] = _MAKERS["h"]
for _tag in "leyqm":
    _MAKERS[_tag] = Builder._container


def once(made: Any, count: int) -> Any:
    """The set or dict, unless an element came twice."""
    if len(made) != count:
        raise ValueError("an element twice")
    return made


def replay(error: Optional[BaseException], items: List[Any], end: int) -> Iterator[Any]:
    yield from items
    if error is not None:
        raise error
    if end == 1:
        raise RuntimeError("the iterator went on beyond %d items" % MAX_ITERATED)
