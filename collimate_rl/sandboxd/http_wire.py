"""HTTP/1.1 as far as the daemon API needs it: requests read from a socket, answers as one block of bytes.

Hand-made because the standard library's header parser costs more than a whole exec is allowed to.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.wire import bad_request, too_large

_MAX_HEAD = 16 * 1024
_MAX_DISCARDED = 64 << 20
_REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request. `path` is without its query; `keep_alive` says whether the connection may serve another."""

    method: str
    path: str
    body: bytes
    keep_alive: bool


class ConnectionEnded(Exception):
    """The peer is gone, or sent nothing in time: there is nobody to answer."""


class BadRequestLine(Exception):
    """What came is no request, and the connection can't go on; `error` is what to say before closing."""

    def __init__(self, error: CollimateError) -> None:
        super().__init__(str(error))
        self.error = error


class RequestReader:
    """Reads the requests of one connection, one after the other."""

    def __init__(self, connection: socket.socket, max_body: int) -> None:
        self._connection = connection
        self._max_body = max_body
        self._buffer = b""

    def next(self) -> Request:
        """The next request. ConnectionEnded between requests or within one; BadRequestLine for what is none."""
        head = self._read_head()
        lines = head.split(b"\r\n")
        parts = lines[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            raise BadRequestLine(bad_request("the request line is no HTTP/1.1"))
        headers = _headers(lines[1:])
        version1_1 = parts[2] != b"HTTP/1.0"
        connection = headers.get(b"connection", b"").lower()
        keep_alive = b"close" not in connection and (version1_1 or b"keep-alive" in connection)
        return Request(
            method=parts[0].decode("latin-1"),
            path=parts[1].partition(b"?")[0].decode("latin-1"),
            body=self._read_body(headers),
            keep_alive=keep_alive,
        )

    def _read_head(self) -> bytes:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end >= 0:
                head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
                return head
            if len(self._buffer) > _MAX_HEAD:
                raise BadRequestLine(CollimateError("the request's headers are too long", 431, "bad_request"))
            self._buffer += self._receive()

    def _read_body(self, headers: Mapping[bytes, bytes]) -> bytes:
        if b"transfer-encoding" in headers:
            raise BadRequestLine(
                CollimateError("send a Content-Length: chunked bodies are not read", 411, "bad_request")
            )
        text = headers.get(b"content-length", b"0")
        if not text.isdigit():
            raise BadRequestLine(bad_request("the Content-Length is no number"))
        length = int(text)
        if length > self._max_body:
            if length <= _MAX_DISCARDED:
                # Read to its end, or a caller that is still sending never sees the answer.
                self._discard(length)
            raise BadRequestLine(too_large(f"the body has {length} bytes and {self._max_body} are read at most"))
        if length > len(self._buffer) and b"100-continue" in headers.get(b"expect", b"").lower():
            self._connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if length <= len(self._buffer):
            body, self._buffer = self._buffer[:length], self._buffer[length:]
            return body
        chunks = [self._buffer]
        missing = length - len(self._buffer)
        self._buffer = b""
        while missing > 0:
            chunk = self._receive()
            chunks.append(chunk[:missing])
            self._buffer = chunk[missing:]
            missing -= len(chunk)
        return b"".join(chunks)

    def _discard(self, length: int) -> None:
        missing = length - len(self._buffer)
        self._buffer = b""
        while missing > 0:
            missing -= len(self._receive())

    def _receive(self) -> bytes:
        try:
            data = self._connection.recv(1 << 16)
        except OSError as exc:
            raise ConnectionEnded(str(exc)) from exc
        if not data:
            raise ConnectionEnded("end of stream")
        return data


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers = {}
    for line in lines:
        name, separator, value = line.partition(b":")
        if not separator:
            raise BadRequestLine(bad_request("a header line has no colon"))
        headers[name.strip().lower()] = value.strip()
    return headers


def render(status: int, answer: Any, *, keep_alive: bool) -> bytes:
    """The whole response."""
    body = json.dumps(answer, ensure_ascii=False).encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\n"
        f"Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
    )
    return head.encode() + body


def error_answer(error: CollimateError) -> tuple[int, dict[str, Any]]:
    """The wire's error shape."""
    return error.status or 500, {"error": error.message, "error_code": error.error_code or "internal_error"}
