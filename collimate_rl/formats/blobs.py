"""LiveCodeBench's private tests: base64 of zlib of a pickle of JSON text.

A pickle is a program. Only one that builds plain data is run: its opcodes are read first, and anything that could
name, import or call something is refused, as is a memo index that would allocate more than the blob warrants.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import pickletools
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final, NoReturn

MAX_BLOB_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a blob may unpack to."""

MAX_OPCODES: Final = 2_000_000

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+=*\s*")

_PLAIN: Final = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK"),
        *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        *("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
    )
)


# What the unpickler raises for a pickle whose opcodes do not fit together.
_UNPICKLING_FAULTS: Final = (
    *(pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError, ValueError, AttributeError),
    *(RecursionError, MemoryError, OverflowError),
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"names {module}.{name}")


def looks_like_blob(text: str) -> bool:
    """True for text in base64's letters alone that begins as a zlib stream does (0x78)."""
    return text.lstrip()[:1] == "e" and _BASE64.fullmatch(text) is not None


def decode_blob(text: str) -> Any:
    """The plain data in a blob, its JSON parsed. `ValueError` says at which layer it is no blob."""
    try:
        packed = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError(f"the test blob is no base64: {exc}") from exc
    value = _unpickled(_inflated(packed))
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"the test blob holds text that is no JSON: {exc}") from exc


def _inflated(packed: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, MAX_BLOB_BYTES + 1)
    except zlib.error as exc:
        raise ValueError(f"the test blob is no zlib stream: {exc}") from exc
    if len(data) > MAX_BLOB_BYTES:
        raise ValueError(f"the test blob unpacks to more than {MAX_BLOB_BYTES} bytes")
    if not stream.eof:
        raise ValueError("the test blob is cut short: its zlib stream has no end")
    return data


def _unpickled(data: bytes) -> Any:
    for number, (name, argument) in enumerate(_opcodes(data)):
        if name not in _PLAIN:
            raise ValueError(f"the test blob's pickle holds more than plain data ({name})")
        if isinstance(argument, int) and name.endswith("PUT") and argument > number:
            raise ValueError("the test blob's pickle has a memo index out of order")
        if number > MAX_OPCODES:
            raise ValueError(f"the test blob's pickle has more than {MAX_OPCODES} parts")
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except _UNPICKLING_FAULTS as exc:
        raise ValueError(f"the test blob is no pickle that can be read: {exc}") from exc


def _opcodes(data: bytes) -> Iterator[tuple[str, Any]]:
    try:
        for opcode, argument, _ in pickletools.genops(data):
            yield opcode.name, argument
    except ValueError as exc:
        raise ValueError(f"the test blob is no pickle: {exc}") from exc
