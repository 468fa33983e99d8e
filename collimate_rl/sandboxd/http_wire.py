"""HTTP/1.1 as far as the daemon API needs it: requests read from a socket, answers as one block of bytes.

Hand-made because the standard library's header parser costs more than a whole exec is allowed to. What two parsers
could read in two ways (folded headers, two lengths, blanks in names) is refused. Every read has a deadline for the
whole of what is read, not for each piece, or a sender of one byte now and then would hold its thread for ever.
"""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.wire import bad_request, too_large

_MAX_HEAD = 16 * 1024
_MAX_DISCARDED = 64 << 20
_MAX_LENGTH_DIGITS = 18
"""More digits are more bytes than there are; int() refuses thousands of them with an error of its own."""
_encode = json.JSONEncoder(ensure_ascii=False).encode
_NO_HEADERS: Mapping[str, str] = {}
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*)")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request. `path` is without its query, which is as it was sent; header names are in lower case.

    `keep_alive` says whether the connection may serve another, `hung_up` whether the peer has left it since.
    """

    method: str
    path: str
    body: bytes
    keep_alive: bool
    query: str = field(default="", compare=False)
    headers: Mapping[bytes, bytes] = field(default_factory=dict, compare=False)
    hung_up: Callable[[], bool] = field(default=bool, compare=False)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds: for the first byte of the next request, and from there for its whole head, and then its whole body."""

    idle_s: float
    head_s: float
    body_s: float


class ConnectionEnded(Exception):
    """The peer is gone, or did not send a whole request in time: there is nobody to answer."""


class BadRequestLine(Exception):
    """What came is no request, and the connection can't go on; `error` is what to say before closing."""

    def __init__(self, error: CollimateError) -> None:
        super().__init__(str(error))
        self.error = error


class RequestReader:
    """Reads the requests of one connection, one after the other. It sets the socket's timeout as it needs it."""

    def __init__(
        self,
        connection: socket.socket,
        max_body: int,
        patience: Patience,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._max_body = max_body
        self._patience = patience
        self._clock = clock
        self._buffer = b""

    def next(self) -> Request:
        """The next request. ConnectionEnded between requests or within one; BadRequestLine for what is none."""
        lines = self._read_head().split(b"\r\n")
        first = _REQUEST_LINE.fullmatch(lines[0])
        if first is None:
            raise BadRequestLine(bad_request("the request line is no HTTP/1.1"))
        headers = _headers(lines[1:])
        connection = headers.get(b"connection", b"").lower()
        # The answer to HEAD would have no body, and all of ours have one: only the end tells where it ends.
        keep_alive = b"close" not in connection and first[1] != b"HEAD"
        path, _, query = first[2].decode("latin-1").partition("?")
        return Request(
            method=first[1].decode("latin-1"),
            path=path,
            body=self._read_body(headers),
            keep_alive=keep_alive and (first[3] == b"1" or b"keep-alive" in connection),
            query=query,
            headers=headers,
            hung_up=partial(_hung_up, self._connection),
        )

    def _read_head(self) -> bytes:
        if not self._buffer:
            self._buffer = self._receive(self._clock() + self._patience.idle_s)
        deadline = None
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end > _MAX_HEAD or (end < 0 and len(self._buffer) > _MAX_HEAD):
                raise BadRequestLine(CollimateError("the request's headers are too long", 431, "bad_request"))
            if end >= 0:
                head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
                return head
            if deadline is None:
                deadline = self._clock() + self._patience.head_s
            self._buffer += self._receive(deadline)

    def _read_body(self, headers: Mapping[bytes, bytes]) -> bytes:
        if b"transfer-encoding" in headers:
            raise BadRequestLine(
                CollimateError("send a Content-Length: chunked bodies are not read", 411, "bad_request")
            )
        text = headers.get(b"content-length", b"0")
        if not text.isdigit():
            raise BadRequestLine(bad_request("the Content-Length is no number"))
        if len(text) > _MAX_LENGTH_DIGITS:
            raise BadRequestLine(too_large(f"a body of more than {self._max_body} bytes is not read"))
        length = int(text)
        deadline = self._clock() + self._patience.body_s
        waits = length > len(self._buffer) and b"100-continue" in headers.get(b"expect", b"").lower()
        if length > self._max_body:
            if length <= _MAX_DISCARDED and not waits:
                # Read to its end, or a caller that is still sending never sees the answer.
                self._discard(length, deadline)
            raise BadRequestLine(too_large(f"the body has {length} bytes and {self._max_body} are read at most"))
        if waits:
            self._invite()
        if length <= len(self._buffer):
            body, self._buffer = self._buffer[:length], self._buffer[length:]
            return body
        chunks = [self._buffer]
        missing = length - len(self._buffer)
        self._buffer = b""
        while missing > 0:
            chunk = self._receive(deadline)
            chunks.append(chunk[:missing])
            self._buffer = chunk[missing:]
            missing -= len(chunk)
        return b"".join(chunks)

    def _invite(self) -> None:
        self._connection.settimeout(self._patience.head_s)
        try:
            self._connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        except OSError as exc:
            raise ConnectionEnded(str(exc)) from exc

    def _discard(self, length: int, deadline: float) -> None:
        missing = length - len(self._buffer)
        self._buffer = b""
        while missing > 0:
            missing -= len(self._receive(deadline))

    def _receive(self, deadline: float) -> bytes:
        left = deadline - self._clock()
        if left <= 0:
            raise ConnectionEnded("no whole request in time")
        self._connection.settimeout(left)
        try:
            data = self._connection.recv(1 << 16)
        except OSError as exc:
            raise ConnectionEnded(str(exc)) from exc
        if not data:
            raise ConnectionEnded("end of stream")
        return data


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise BadRequestLine(bad_request("a header line is none: a name, a colon, a value on one line"))
        name, value = found[1].lower(), found[2].rstrip(b" \t")
        if name == b"content-length" and headers.get(name, value) != value:
            raise BadRequestLine(bad_request("there are two Content-Lengths"))
        headers[name] = value
    return headers


def render(status: int, answer: Any, *, keep_alive: bool, headers: Mapping[str, str] = _NO_HEADERS) -> bytes:
    """The whole response. A lone surrogate goes as the JSON escape that it came as."""
    body = _encode(answer).encode("utf-8", "backslashreplace")
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\n"
        f"Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"{more}"
        f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
    )
    return head.encode() + body


def error_answer(error: CollimateError) -> tuple[int, dict[str, Any]]:
    """The wire's error shape."""
    return error.status or 500, {"error": error.message, "error_code": error.error_code or "internal_error"}


def _hung_up(connection: socket.socket) -> bool:
    """Whether the peer closed the connection, or, over TCP, where that looks alike, at least its own sending half."""
    poll = select.poll()
    half = getattr(select, "POLLRDHUP", 0) if connection.family != socket.AF_UNIX else 0
    poll.register(connection, select.POLLHUP | select.POLLERR | half)
    return bool(poll.poll(0))
