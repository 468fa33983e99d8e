"""The trust boundary: whether a tree is one that an encoder of ours makes, within every cap. Builds nothing.

Linear in the tree. Shared references count with all that they reach, so that what passes is small when expanded too.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Set

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
    BadTree,
    Tree,
    identifiers,
)

_FIRST_CHILD = {"t": 1, "l": 1, "e": 1, "z": 1, "R": 1, "F": 1, "q": 2, "m": 2, "g": 2, "v": 2, "x": 2, "a": 3}
_LEAVES = "ifcsbDdyrnENhp"
_MARKED = "uk"
_NUMBERED = "leyqm"
_HEX = frozenset("0123456789abcdef")
_ITEMS: Dict[str, Any] = {"b": (bool, ""), "i": (int, "i"), "u": (int, "i"), "f": (None, "f"), "c": (None, "c")}
_ITEMS.update(U=(str, "s"), S=(None, "b"))  # per kind of dtype what its items are: the plain type, the tag
MAX_FRACTION_DIGITS = 1 << 13  # hex: a fraction in lowest terms is quadratic work


class Checker:
    """Checks trees that share one numbering of containers. `sizes` are those known from the start; `opaque` allows
    nodes tagged "h" and "p", which are then the caller's to check."""

    def __init__(self, sizes: Iterable[int] = (), opaque: bool = False) -> None:
        self.sizes: List[int] = list(sizes)
        self.opaque = opaque
        self._open: Set[int] = set()
        self._nodes = 0

    @property
    def nodes(self) -> int:
        """Nodes passed so far, with references expanded."""
        return self._nodes

    def check(self, tree: Tree) -> None:
        """Raises BadTree unless the tree is one of ours."""
        self._guarded(tree, True)

    def body(self, tree: Tree) -> None:
        """As `check`, for a container's node that takes no number."""
        if type(tree) is not list or not tree or type(tree[0]) is not str or tree[0] not in tuple(_NUMBERED):
            raise BadTree("no container")
        self._guarded(tree, False)

    def _guarded(self, tree: Tree, numbered: bool) -> None:
        try:
            self._check(tree, 0, numbered)
        except BadTree:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise BadTree("%s: %.200s" % (type(error).__name__, error)) from None

    def _check(self, node: Tree, depth: int, numbered: bool = True) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise BadTree("the value is too large")
        t = type(node)
        if node is None or t is bool or t is str:
            return
        if t is int:
            small(node)
            return
        if t is not list or not node or type(node[0]) is not str or depth > MAX_DEPTH:
            raise BadTree("no node of ours, or deeper than may be")
        tag = node[0]
        before, k = self._nodes, len(self.sizes)
        if len(tag) != 1:
            raise BadTree("an unknown tag")
        if numbered and tag in _NUMBERED:
            self.sizes.append(0)
            self._open.add(k)
        for i in range(self._first_child(tag, node), len(node)):
            self._check(node[i], depth + 1)
        if numbered and tag in _NUMBERED:
            self._open.discard(k)
            self.sizes[k] = self._nodes - before + 1

    def _first_child(self, tag: str, node: List[Any]) -> int:
        """Checks a node's own fields; where its children begin."""
        check = _FIELDS.get(tag)
        if check is not None:
            check(self, node)
        if tag in _FIRST_CHILD:
            return _FIRST_CHILD[tag]
        if tag in _LEAVES:
            return len(node)
        if tag in _MARKED:
            return 3 + int(node[2])
        raise BadTree("an unknown tag")

    def _reference(self, node: List[Any]) -> None:
        k = small(node[1])
        if len(node) != 2 or not 0 <= k < len(self.sizes) or k in self._open:
            raise BadTree("a reference to no finished container")
        self._nodes += self.sizes[k]
        if self._nodes > MAX_NODES:
            raise BadTree("the expanded value is too large")

    def _opaque(self, node: List[Any]) -> None:
        if not self.opaque:
            raise BadTree("an opaque value")


def _keyed(checker: Checker, node: List[Any]) -> None:
    _need(len(node) - 1 <= MAX_KEYED)


def _dict(checker: Checker, node: List[Any]) -> None:
    kind = text(node[1], 8)
    _need(len(node) % 2 == 0 and len(node) <= 2 + 2 * MAX_KEYED)
    _need(kind in ("", "c", "o", "d") or (kind[0] == "d" and kind[1:] in FACTORIES))


def _deque(checker: Checker, node: List[Any]) -> None:
    _need(node[1] is None or 0 <= len(node) - 2 <= small(node[1]))


def _iterator(checker: Checker, node: List[Any]) -> None:
    end, error = small(node[1]), node[2]
    _need(end in (0, 1, 2) and len(node) - 3 <= MAX_ITERATED)
    _need(error[0] == "x" if end == 2 else error is None)


def _view(checker: Checker, node: List[Any]) -> None:
    _need(node[1] in ("keys", "values", "items") and len(node) - 2 <= MAX_KEYED)
    _need(node[1] != "items" or all(item[0] == "t" and len(item) == 3 for item in node[2:]))


def _exception(checker: Checker, node: List[Any]) -> None:
    _need(len(node) == 3 and type(node[1]) is list and 0 < len(node[1]) <= 20 and node[2][0] == "t")
    for name in node[1]:
        text(name, 81)


def _named(checker: Checker, node: List[Any]) -> None:
    text(node[1], 80)
    count = small(node[2])
    fields = node[3 : 3 + count]
    _need(count >= 0 and len(node) == 3 + 2 * count and identifiers(fields) and len(set(fields)) == count)


def _array(checker: Checker, node: List[Any]) -> None:
    dtype, shape = text(node[1], 20), node[2]
    count = room = 1
    _need(type(shape) is list and len(shape) <= 32 and dtype[:1] in tuple("<>|=") and dtype[1:2] in tuple("biufcUS"))
    _need(dtype[2:].isdigit() and len(dtype) <= 8)
    for width in shape:
        _need(small(width) >= 0)
        count *= width
        room *= max(width, 1)
        _need(room <= MAX_NODES)
    plain, tag = _ITEMS[dtype[1]]
    _need(count == len(node) - 3)
    _need(all(type(y) is plain or (type(y) is list and y[0] == tag) for y in node[3:]))


def _integers(checker: Checker, node: List[Any]) -> None:
    _need(len(node) == (4 if node[0] == "R" else 3))
    for y in node[1:]:
        _need(type(y) is int or (type(y) is list and y[0] == "i"))
        _need(node[0] == "R" or type(y) is int or len(y[1]) <= MAX_FRACTION_DIGITS)
    _need(node[-1] != 0 and (type(node[-1]) is int or int(node[-1][1], 16) != 0))


def _big(checker: Checker, node: List[Any]) -> None:
    digits = text(node[1], MAX_INT_BITS // 4 + 2)
    digits = digits[digits[:1] == "-" :]
    _need(len(node) == 2 and digits != "" and _HEX.issuperset(digits))


def _floats(checker: Checker, node: List[Any]) -> None:
    _need(len(node) == (2 if node[0] == "f" else 3))
    for y in node[1:]:
        float.fromhex(text(y, 40))


def _octets(checker: Checker, node: List[Any]) -> None:
    _need(len(node) == 2)
    data = bytes.fromhex(node[1])
    if node[0] == "s":
        data.decode("utf-8", "surrogatepass")


def _decimal(checker: Checker, node: List[Any]) -> None:
    import decimal

    try:
        decimal.Decimal(text(node[1], MAX_DECIMAL))
    except decimal.InvalidOperation:
        raise BadTree("no decimal number") from None


def _date(checker: Checker, node: List[Any]) -> None:
    if node[1] == "timedelta":
        _need(len(node) == 5)
        for y in node[2:]:
            small(y)
    else:
        _need(node[1] in DATES and len(node) == 3)
        text(node[2], 80)


def _name(checker: Checker, node: List[Any]) -> None:
    _need(len(node) == 2 and text(node[1], 40) in PURE)


_FIELDS: Dict[str, Any] = {
    "i": _big,
    "f": _floats,
    "c": _floats,
    "s": _octets,
    "b": _octets,
    "y": _octets,
    "D": _decimal,
    "F": _integers,
    "R": _integers,
    "d": _date,
    "u": _named,
    "k": _named,
    "e": _keyed,
    "z": _keyed,
    "q": _deque,
    "m": _dict,
    "r": Checker._reference,
    "x": _exception,
    "g": _iterator,
    "v": _view,
    "a": _array,
    "n": _name,
    "h": Checker._opaque,
    "p": Checker._opaque,
}


def _need(holds: bool) -> None:
    if not holds:
        raise BadTree("a node with fields that no encoder of ours writes")


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
