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
import struct
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
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])(?=\r\n|\Z)")
_HEADER = re.compile(rb"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00\r\n]*)")
_HEADERS = re.compile(rb"(?:%b)*" % _HEADER.pattern)


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
    """Reads the requests of one connection, one after the other.

    The socket blocks, and stays so: the kernel ends a wait that takes too long (SO_RCVTIMEO), which spares the two
    system calls that every read would cost otherwise.
    """

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
        self._waits_s = 0.0
        """How long the socket waits for bytes, once that was set."""

    def next(self) -> Request:
        """The next request. ConnectionEnded between requests or within one; BadRequestLine for what is none."""
        head = self._read_head()
        first = _REQUEST_LINE.match(head)
        if first is None:
            raise BadRequestLine(bad_request("the request line is no HTTP/1.1"))
        headers = _headers(head, first.end())
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
            self._buffer = self._receive(self._patience.idle_s)
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
            self._buffer += self._receive_until(deadline)

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
            chunk = self._receive_until(deadline)
            chunks.append(chunk[:missing])
            self._buffer = chunk[missing:]
            missing -= len(chunk)
        return b"".join(chunks)

    def _invite(self) -> None:
        try:
            send_within(self._connection, b"HTTP/1.1 100 Continue\r\n\r\n", self._patience.head_s)
        except OSError as exc:
            raise ConnectionEnded(str(exc)) from exc

    def _discard(self, length: int, deadline: float) -> None:
        missing = length - len(self._buffer)
        self._buffer = b""
        while missing > 0:
            missing -= len(self._receive_until(deadline))

    def _receive_until(self, deadline: float) -> bytes:
        left = deadline - self._clock()
        if left <= 0:
            raise ConnectionEnded("no whole request in time")
        return self._receive(left)

    def _receive(self, within_s: float) -> bytes:
        if within_s != self._waits_s:
            _bound_receives(self._connection, within_s)
            self._waits_s = within_s
        try:
            data = self._connection.recv(1 << 16)
        except OSError as exc:
            raise ConnectionEnded(str(exc)) from exc
        if not data:
            raise ConnectionEnded("end of stream")
        return data


def _headers(head: bytes, begin: int) -> dict[bytes, bytes]:
    if _HEADERS.fullmatch(head, begin) is None:
        raise BadRequestLine(bad_request("a header line is none: a name, a colon, a value on one line"))
    headers: dict[bytes, bytes] = {}
    for name, value in _HEADER.findall(head, begin):
        name, value = name.lower(), value.strip(b" \t")
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


def send_within(connection: socket.socket, data: bytes, seconds: float) -> None:
    """Send all of it through a blocking socket, in so many seconds for the whole. OSError otherwise."""
    try:
        sent = connection.send(data, socket.MSG_DONTWAIT)
    except BlockingIOError:
        sent = 0
    if sent < len(data):
        connection.settimeout(seconds)
        connection.sendall(memoryview(data)[sent:])
        connection.settimeout(None)


def _bound_receives(connection: socket.socket, seconds: float) -> None:
    whole = int(seconds)
    # Of no time at all the kernel would make all the time there is.
    rest = max(int((seconds - whole) * 1e6), 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", whole, rest))


def error_answer(error: CollimateError) -> tuple[int, dict[str, Any]]:
    """The wire's error shape."""
    return error.status or 500, {"error": error.message, "error_code": error.error_code or "internal_error"}


def _hung_up(connection: socket.socket) -> bool:
    """Whether the peer closed the connection, or, over TCP, where that looks alike, at least its own sending half."""
    poll = select.poll()
    half = getattr(select, "POLLRDHUP", 0) if connection.family != socket.AF_UNIX else 0
    poll.register(connection, select.POLLHUP | select.POLLERR | half)
    return bool(poll.poll(0))
