"""What a candidate's frame does to the test's own world: its value, and the arguments that it changed.

All of it is plain data by the time that it gets here, and none of it is trusted: whatever no runner of ours sends is a
`BadTree`.
"""

from __future__ import annotations

import collections
from typing import Any, Callable, List, Tuple

from collimate_rl.guest.builder import Builder
from collimate_rl.guest.checker import Checker
from collimate_rl.guest.encoder import Encoder
from collimate_rl.guest.plain import BadTree, Record, Row, Tree, Unencodable, dumps

_MUTABLE = (list, dict, set, bytearray, collections.deque)


class Reader(Builder):
    """Reads what a candidate sent: checked first, then built, records as the test's own classes where it has them."""

    def __init__(self, encoder: Encoder, class_named: Callable[[str], Any]) -> None:
        Builder.__init__(self, None, True, encoder.objects)
        self.checker = Checker(encoder.sizes)
        self.class_named = class_named

    def read(self, tree: Tree) -> Any:
        self.checker.check(tree)
        return self._made(self.build, tree)

    def read_body(self, tree: Tree) -> Any:
        self.checker.body(tree)
        return self._made(self.body, tree)

    def _made(self, make: Any, tree: Tree) -> Any:
        try:
            return make(tree)
        except Exception as error:
            raise BadTree("%s: %.200s" % (type(error).__name__, error)) from None

    def build(self, node: Tree) -> Any:
        made = Builder.build(self, node)
        if type(made) is Record:
            name, fields = made.__dict__["$"]
            known = self.class_named(name)
            if known is not None and tuple(getattr(known, "__dataclass_fields__", ())) == fields:
                own = object.__new__(known)
                for field in fields:
                    object.__setattr__(own, field, made.__dict__[field])
                return own
        elif type(made) is Row:
            known = self.class_named(made._name)
            if getattr(known, "_fields", None) == made._fields:
                return tuple.__new__(known, made)
        return made


def no_class(_: str) -> Any:
    return None


def refuse_records(trees: List[Tree]) -> None:
    """A record would reach the candidate as one of ours, not as an object of the class that it knows."""
    rest = trees
    while rest:
        node = rest.pop()
        if type(node) is list and node:
            if node[0] in ("k", "u") and len(node) > 2 and type(node[2]) is int:
                raise Unencodable("an object of the class %s" % node[1])
            rest.extend(node)


def changes_of(encoder: Encoder, reader: Reader, bodies: Any) -> List[Tuple[Any, Any]]:
    """The arguments that the candidate changed, each with its new content. `bodies` holds one for every container."""
    if bodies is None:
        return []
    if type(bodies) is not list or len(bodies) != len(encoder.objects):
        raise BadTree("not one body for each argument")
    found = [(mine, reader.read_body(body)) for mine, body in zip(encoder.objects, bodies)]
    for mine, content in found:
        if not any(isinstance(mine, kind) and isinstance(content, kind) for kind in _MUTABLE):
            raise BadTree("an argument of another kind")
    # What is as it was stays untouched: it may hold more than the plain copy that travelled.
    texts = [dumps(encoder.body(k)) for k in range(len(bodies))]
    return [pair for pair, body, text in zip(found, bodies, texts) if dumps(body) != text]


def replace_content(mine: Any, content: Any) -> None:
    """Gives an argument, one of the test's own containers, the content that the candidate left in its copy."""
    if isinstance(mine, (list, bytearray)):
        mine[:] = content
    else:
        mine.clear()
        (mine.extend if isinstance(mine, collections.deque) else mine.update)(content)


def holds_nan(tree: Tree) -> bool:
    rest = [tree]
    while rest:
        node = rest.pop()
        if type(node) is dict:
            rest.extend(node.values())
        elif type(node) is list:
            if node and node[0] in ("f", "c", "D") and "nan" in "".join(str(part) for part in node[1:]).lower():
                return True
            rest.extend(part for part in node if type(part) is list)
    return False
