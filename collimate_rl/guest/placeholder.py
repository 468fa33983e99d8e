"""What a recorder returns while a test is planned: a value that nobody has computed yet.

It has length 1, yields one item, counts as 1. It is true and compares as hoped, so that a test runs on to its next
call; where that has led nowhere, it is false and compares as feared (`hope`). As an argument it means "the result of
op k", as long as it is untouched: indexing it, or anything that might have changed it, gives a placeholder that stands
for no op's result.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import types
from typing import Any, Iterator, List, Optional

from collimate_rl.guest.plain import Array


def _plain_attributes() -> "frozenset[str]":
    """Attributes that some plain value has; reading any other needs the candidate's own object."""
    kinds: List[type] = [str, bytes, bytearray, list, tuple, dict, set, frozenset, int, float, complex, range]
    kinds += [collections.deque, collections.Counter, collections.OrderedDict, collections.defaultdict]
    kinds += [decimal.Decimal, fractions.Fraction, BaseException, types.GeneratorType]
    kinds += [datetime.date, datetime.datetime, datetime.time, datetime.timedelta, Array]
    numpys = (
        "T all any argmax argmin astype dtype flatten item max mean min ndim ravel reshape round shape size std sum"
    )
    names = set((numpys + " tolist transpose items _asdict _fields").split())
    return frozenset(names.union(*(dir(kind) for kind in kinds)))


_PLAIN_ATTRIBUTES = _plain_attributes()


UNKNOWN_TEXT = "_collimate_result"
READS = "reads .%s of a result"
_hopeful = [True]


def hope(hopeful: bool) -> None:
    """Whether placeholders of this process are true and equal to anything, or false and equal to nothing."""
    _hopeful[0] = hopeful


class Placeholder:
    """`index` is the op whose result it is, None when it was derived; `notes` collects what it was asked that only a
    live object could answer."""

    __slots__ = ("_index", "_left", "_notes")

    def __init__(self, notes: List[str], index: Optional[int] = None) -> None:
        _set(self, "_notes", notes)
        _set(self, "_index", index)
        _set(self, "_left", 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _PLAIN_ATTRIBUTES:
            _get(self, "_notes").append(READS % name)
        return _touched(self)

    def __setattr__(self, name: str, value: Any) -> None:
        _get(self, "_notes").append("sets .%s of a result" % name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _get(self, "_index") is not None:
            _get(self, "_notes").append("calls a result")
        return _touched(self)

    def __await__(self) -> Iterator[Any]:
        _get(self, "_notes").append("awaits a result")
        return iter(())

    def __iter__(self) -> Iterator[Any]:
        return iter([_touched(self)])

    def __next__(self) -> Any:
        left = _get(self, "_left")
        _set(self, "_left", 0)
        if not left:
            raise StopIteration
        return _touched(self)

    def __bool__(self) -> bool:
        return _hopeful[0]

    def __eq__(self, other: object) -> bool:
        return _hopeful[0]

    def __ne__(self, other: object) -> bool:
        return not _hopeful[0]

    def __lt__(self, other: object) -> bool:
        return _hopeful[0]

    __le__ = __gt__ = __ge__ = __lt__

    def __contains__(self, item: object) -> bool:
        return _hopeful[0]

    def __hash__(self) -> int:
        return 1

    def __len__(self) -> int:
        return 1

    def __int__(self) -> int:
        return 1

    __index__ = __int__

    def __float__(self) -> float:
        return 1.0

    def __complex__(self) -> complex:
        return 1j

    def __str__(self) -> str:
        return UNKNOWN_TEXT

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return UNKNOWN_TEXT

    def __bytes__(self) -> bytes:
        return UNKNOWN_TEXT.encode()

    def __copy__(self) -> "Placeholder":
        return self

    def __deepcopy__(self, memo: Any) -> "Placeholder":
        return self

    def __enter__(self) -> Any:
        _get(self, "_notes").append("enters a result as a context")
        return self

    def __exit__(self, *failure: Any) -> None:
        return None

    def __setitem__(self, key: Any, value: Any) -> None:
        _touched(self)

    def __delitem__(self, key: Any) -> None:
        _touched(self)


_get = object.__getattribute__
_set = object.__setattr__


def index_of(placeholder: Placeholder) -> Optional[int]:
    """The op whose untouched result it stands for, or None."""
    index: Optional[int] = _get(placeholder, "_index")
    return index


def _touched(placeholder: Placeholder) -> Placeholder:
    """A derived placeholder. The one that it comes from may have changed, so it stands for no op's result any more."""
    _set(placeholder, "_index", None)
    return Placeholder(_get(placeholder, "_notes"))


def _derive(self: Placeholder, *args: Any) -> Placeholder:
    return Placeholder(_get(self, "_notes"))


def _in_place(self: Placeholder, *args: Any) -> Placeholder:
    return _touched(self)


_BINARY = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift".split()
for _operator in _BINARY:
    setattr(Placeholder, "__%s__" % _operator, _derive)
    setattr(Placeholder, "__r%s__" % _operator, _derive)
    setattr(Placeholder, "__i%s__" % _operator, _in_place)
for _operator in "neg pos abs invert round trunc floor ceil getitem reversed".split():
    setattr(Placeholder, "__%s__" % _operator, _derive)
