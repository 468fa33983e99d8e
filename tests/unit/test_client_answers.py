"""An answer that is taken apart by the short way comes out as the standard reader has it, and the rest goes there."""

from __future__ import annotations

import io
import itertools
import json
import random
from typing import Any

import pytest

from collimate_rl._connection import Response, usual_head
from collimate_rl._transport import _encode, _encode_body

LINES = [
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 200",
    b"HTTP/1.1 503 Service  Unavailable",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1  200 OK",
    b"HTTP/1.1 2000 OK",
    b"HTTP/1.1 100 Continue",
    b"HTTP/1.1 204 No Content",
    b"HTTP/2 200 OK",
    b"HTTP/1.1 2\xb2\xb2 OK",
    b"200 OK",
    b"",
]
HEADERS = [
    b"Content-Length: 3",
    b"content-length:3",
    b"Content-Length: +3",
    b"Content-Length: 0",
    b"Content-Length: \xb2",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive, Close",
    b"X-Thing: \xe4\xff",
    b"no colon",
    b" folded",
    b"X: a\nContent-Length: 5",
    b"",
]
ENDS = [b"\r\n\r\nabc", b"\n\nabc", b"\r\n\nabc", b"\r\n", b"\r\n\r\nabcdef"]


class Source:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._data))


def test_what_goes_the_short_way_comes_out_the_same() -> None:
    chosen = random.Random("heads")
    heads = itertools.product(LINES, [chosen.sample(HEADERS, n % 4) for n in range(60)], ENDS)
    taken = 0
    for line, headers, end in heads:
        data = b"\r\n".join([line, *headers]) + end
        head = usual_head(data)
        if head is None:
            continue
        taken += 1
        status, fields, start, length = head
        source: Any = Source(data)
        slow = Response(source)
        slow.begin()
        assert (slow.status, slow.fields, slow.length) == (status, fields, length), data
        assert slow.will_close == ("close" in fields.get("connection", "").lower()), data
        assert slow.fp is not None
        assert slow.fp.read() == data[start:], data
    assert taken > 30


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 101 + b"Content-Length: 3\r\n\r\nabc",
    ],
    ids=["nothing", "part of a head", "no length", "two lengths", "bare line ends", "no body", "too many headers"],
)
def test_what_is_unusual_goes_the_long_way(data: bytes) -> None:
    assert usual_head(data) is None


@pytest.mark.parametrize(
    "code", ["print(1)\n", 'x = "\ud800\u2028\\"\n' * 1000, None, 3], ids=["short", "long", "none", "no text"]
)
def test_a_body_is_the_same_however_long_its_code(code: Any) -> None:
    for body in ({"code": code}, {"template_id": "py", "code": code, "timeout_seconds": 3}, {"seed": "ab"}):
        sent = _encode_body(body)
        assert json.loads(sent) == json.loads(_encode(body)) == body
        assert _encode_body(body) == sent
