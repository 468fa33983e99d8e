"""Plain values as JSON-able trees: the only thing that leaves a sandbox with a candidate in it.

The trust boundary is the decoder. A candidate may own the encoder in its process: that only lets it send a plain value
that it could have returned anyway; the encoder serves honest accuracy.

Nodes: null, true, false, integers below 2**53 and strings stand for themselves; all else is a list with a tag first.

    ["i", hex] int        ["f", hex] float      ["c", hex, hex] complex    ["s", hex] str with surrogates
    ["b", hex] bytes      ["D", text] Decimal   ["F", int, int] Fraction   ["R", int, int, int] range
    ["d", type, text] date, time, datetime      ["d", "timedelta", days, seconds, microseconds]
    ["t", *items] tuple   ["z", *items] frozenset                          ["u", name, n, *fields, *items] namedtuple
    ["l", *items] list    ["e", *items] set     ["y", hex] bytearray       ["q", maxlen, *items] deque
    ["m", kind, *(key, value)] dict: kind "" | "c" Counter | "o" OrderedDict | "d" or "d<type>" defaultdict
    ["r", k] the k-th mutable container (l e y q m, numbered as they open), never one that is still open
    ["k", name, n, *fields, *items] dataclass   ["x", [names], args] exception, "*" before names that aren't builtin
    ["g", end, exception, *items] iterator, drained: end 0 whole, 1 cut at the cap, 2 ended by the exception
    ["v", "keys" | "values" | "items", *items] dict view
    ["a", dtype, [shape], *items] numpy array; a scalar's shape is []
    ["n", name] builtin function or type        ["E"] Ellipsis             ["N"] NotImplemented
    ["h", …], ["p", …] opaque: only through the `opaque` hooks of both sides
"""

from __future__ import annotations

import json
from typing import Any

from collimate_rl.guest.decoder import Decoder
from collimate_rl.guest.encoder import Encoder
from collimate_rl.guest.plain import MAX_BYTES, Array, BadTree, Record, Row, Tree, Unencodable, dumps

__all__ = [
    "Array",
    "BadTree",
    "Decoder",
    "Encoder",
    "Record",
    "Row",
    "Tree",
    "Unencodable",
    "decode",
    "dumps",
    "encode",
    "loads",
]


def encode(x: Any, max_bytes: int = MAX_BYTES) -> Tree:
    """The tree of one value; Unencodable when it is no plain data or too large."""
    return Encoder(max_bytes=max_bytes).encode(x)


def decode(tree: Tree) -> Any:
    """The value of one tree, without numpy; BadTree when it is none of ours."""
    return Decoder().decode(tree)


def _refuse(_: str) -> Any:
    raise BadTree("a number that no encoder of ours writes")


def _parse_int(digits: str) -> int:
    return int(digits) if len(digits) < 18 else _refuse(digits)


_parse = json.JSONDecoder(parse_int=_parse_int, parse_float=_refuse, parse_constant=_refuse).decode


def loads(line: str) -> Tree:
    """JSON text as a tree that is still to be decoded; BadTree on anything that an encoder of ours never writes."""
    try:
        return _parse(line)
    except BadTree:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadTree("%s: %.200s" % (type(error).__name__, error)) from None
