"""What the codec's two sides agree on: limits, faults, the tables of what may travel, and our plain records."""

from __future__ import annotations

import builtins
import collections
import json
import operator
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

MAX_NODES = 1_000_000  # with every shared reference counted as often as it is reached
MAX_BYTES = 1 << 20  # of one value's text, as estimated while encoding
MAX_DEPTH = 150
MAX_INT_BITS = 1 << 20
MAX_KEYED = 10_000  # per set or dict: colliding integers make building them quadratic
MAX_ITERATED = 20_000
MAX_DECIMAL = 20_000  # characters

Tree = Any
Opaque = Callable[[Any], Any]


class Unencodable(Exception):
    """The value is no plain data (`limit` False), or is too large, deep or cyclic (`limit` True)."""

    def __init__(self, reason: str, limit: bool = False) -> None:
        Exception.__init__(self, reason)
        self.reason = reason
        self.limit = limit


class BadTree(ValueError):
    """The tree is none that an encoder of ours makes."""


class Row(tuple):  # type: ignore[type-arg]
    """A namedtuple as plain data: a tuple whose items have names."""

    _name: str
    _fields: Tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", ())
        if name not in fields:
            raise AttributeError(name)
        return self[fields.index(name)]

    def __repr__(self) -> str:
        return "%s(%s)" % (self._name, ", ".join("%s=%r" % pair for pair in zip(self._fields, self)))


class Record:
    """A dataclass as plain data: equal to a record of the same name, fields and values, and to nothing else."""

    def __init__(self, name: str, fields: Tuple[str, ...], values: List[Any]) -> None:
        self.__dict__.update(zip(fields, values))
        self.__dict__["$"] = (name, fields)

    def __eq__(self, other: object) -> bool:
        return type(other) is Record and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[field] for field in self.__dict__["$"][1]))

    def __repr__(self) -> str:
        name, fields = self.__dict__["$"]
        return "%s(%s)" % (name, ", ".join("%s=%r" % (field, self.__dict__[field]) for field in fields))


class Array:
    """A numpy array or scalar where numpy isn't: its dtype, its shape, its items in C order."""

    def __init__(self, dtype: str, shape: Tuple[int, ...], items: List[Any]) -> None:
        self.dtype, self.shape, self.items = dtype, shape, items

    def tolist(self) -> Any:
        """The items as nested lists; a scalar's one item."""
        items = iter(self.items)

        def build(shape: Tuple[int, ...]) -> Any:
            return [build(shape[1:]) for _ in range(shape[0])] if shape else next(items)

        return build(self.shape)

    def __repr__(self) -> str:
        return "array(%r, dtype=%s)" % (self.tolist(), self.dtype)


FACTORIES = {c.__name__: c for c in (int, list, set, dict, str, float, tuple, bool)}
EXCEPTIONS = {n: c for n, c in vars(builtins).items() if isinstance(c, type) and issubclass(c, BaseException)}
DATES = ("date", "time", "datetime")
CONTAINERS: Dict[int, str] = {id(c): tag for c, tag in ((list, "l"), (set, "e"), (bytearray, "y"), (dict, "m"))}
CONTAINERS[id(collections.deque)] = "q"
for _c in (collections.Counter, collections.OrderedDict, collections.defaultdict):
    CONTAINERS[id(_c)] = "m"


def _find_dumps() -> Callable[[Any], str]:
    """JSON text without blanks. `json` makes its encoder in C anew for each text: one that stays is used where there is
    one, since a fork pays for every page that making it touches."""
    plain = json.JSONEncoder(separators=(",", ":"))
    try:
        found: Any = json.encoder
        chunks = found.c_make_encoder(
            None, plain.default, found.encode_basestring_ascii, None, ":", ",", False, False, True
        )
        chunks(None, 0)
    except (AttributeError, TypeError):
        return plain.encode
    return lambda tree: "".join(chunks(tree, 0))


PURE: Dict[str, Any] = {}  # functions and types that may travel by name: none reaches beyond its arguments
for _name, _value in vars(builtins).items():
    if isinstance(_value, type) and _name not in ("super", "type", "__loader__"):
        PURE[_name] = _value
_FUNCTIONS = "abs all any ascii bin callable chr divmod hash hex len max min oct ord pow repr round sorted sum"
for _name in _FUNCTIONS.split():
    PURE[_name] = getattr(builtins, _name)
for _name, _value in vars(operator).items():
    if type(_value) is types.BuiltinFunctionType and _name[0] != "_":
        PURE["operator." + _name] = _value
for _kind in (str, list, dict, set, int, float, tuple, bytes):
    for _name, _value in vars(_kind).items():
        if type(_value) is types.MethodDescriptorType and _name[0] != "_":
            PURE[_kind.__name__ + "." + _name] = _value

dumps = _find_dumps()
mro_of = type.__dict__["__mro__"].__get__
space_of = type.__dict__["__dict__"].__get__
_type_name = type.__dict__["__name__"].__get__


def type_names(kind: type) -> List[str]:
    """The class names along the MRO, without object; those that aren't builtin classes begin with "*"."""
    names = []
    for c in mro_of(kind)[:20]:
        name = _type_name(c)
        if c is not object:
            mark = "" if vars(builtins).get(name) is c else "*"
            names.append(mark + name.encode("ascii", "replace").decode()[:80])
    return names


def identifiers(names: Any) -> bool:
    """Whether all are ASCII names that don't begin with two underscores."""
    return all(type(n) is str and n.isidentifier() and n.isascii() and n[:2] != "__" for n in names)


def nearest_builtin(names: List[str]) -> Optional[type]:
    """The first builtin exception class among the names of a raised one, in the order of its MRO."""
    return next((EXCEPTIONS[n] for n in names if n in EXCEPTIONS), None)
