"""One HTTP/1.1 connection to a daemon, over TCP or an AF_UNIX socket, on `http.client`.

Three things differ from the standard classes, each for a reason:

- every read and write ends at one absolute deadline, because a socket timeout alone lets a peer that drips
  a byte per second hold its caller for ever;
- a request leaves in one write, and the bytes that left are counted, because "nothing was sent" is what
  makes a create or an exec safe to send again;
- response headers are read without `email.parser`, which costs more than the rest of a local request.
"""

from __future__ import annotations

import http.client
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

Clock = Callable[[], float]

CONNECT_TIMEOUT_S: Final = 10.0
_MAX_LINE = 65_536
_MAX_HEADERS = 100
_UNIX_PATH_BYTES = 107
_LONGEST_WAIT_S = 1e6  # what a socket timeout can hold on every platform


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a daemon listens: `unix_path`, or `host` and `port`; `prefix` goes before every path."""

    host: str = "localhost"
    port: int = 80
    unix_path: str | None = None
    prefix: str = ""

    @classmethod
    def unix(cls, path: str | os.PathLike[str]) -> Endpoint:
        """A socket file. A path that no AF_UNIX address can hold is a `ValueError`."""
        text = os.fspath(path)
        if not text or "\0" in text:
            raise ValueError(f"not a socket path: {text!r}")
        if len(os.fsencode(text)) > _UNIX_PATH_BYTES:
            raise ValueError(f"a socket path has at most {_UNIX_PATH_BYTES} bytes, so use a shorter folder: {text!r}")
        return cls(unix_path=text)

    @classmethod
    def parse(cls, base_url: str) -> Endpoint:
        """`http://host[:port][/prefix]`, or `unix:/path/to.sock`; anything else is a `ValueError`."""
        if base_url.startswith("unix:"):
            path = base_url.removeprefix("unix:")
            return cls.unix("/" + path.lstrip("/") if path.startswith("//") else path)
        parts = urlsplit(base_url)
        if parts.scheme != "http":
            raise ValueError(f"a daemon's address is http://host:port or unix:/path, not {base_url!r}")
        if not parts.hostname or parts.query or parts.fragment or parts.username or not base_url.isascii():
            raise ValueError(f"not the address of a daemon: {base_url!r}")
        if any(ord(char) <= 0x20 or char == "\x7f" for char in base_url):
            raise ValueError(f"an address holds no blanks or control characters: {base_url!r}")
        return cls(host=parts.hostname, port=parts.port or 80, prefix=parts.path.rstrip("/"))

    @property
    def host_header(self) -> str:
        if self.unix_path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix:{self.unix_path}" if self.unix_path is not None else f"http://{self.host_header}{self.prefix}"


class _DeadlineSocket(socket.socket):
    """A socket whose reads end at `deadline`, however the peer spreads its bytes."""

    __slots__ = ("clock", "deadline")
    clock: Clock
    deadline: float

    def wait_at_most_until(self, deadline: float) -> None:
        self.deadline = deadline

    def arm(self) -> None:
        left = self.deadline - self.clock()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self.settimeout(min(left, _LONGEST_WAIT_S))

    def recv_into(self, *args: object) -> int:  # as http.client's reader calls it
        self.arm()
        return super().recv_into(*args)  # type: ignore[arg-type]


class Response(http.client.HTTPResponse):
    """`begin` as in the standard class, with the header lines split by hand."""

    def begin(self) -> None:
        version, status = self._status_line()
        while 100 <= status < 200:
            self._header_lines()
            version, status = self._status_line()
        self.code = self.status = status
        self.reason = ""
        self.version = 10 if version == "HTTP/1.0" else 11
        headers = self._header_lines()
        self.headers = self.msg = http.client.HTTPMessage()
        self.chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self.chunk_left = None
        connection = headers.get("connection", "").lower()
        self.will_close = "close" in connection or (self.version == 10 and "keep-alive" not in connection)
        self.length = None if self.chunked else self._content_length(headers.get("content-length"), status)
        if self.length is None and not self.chunked:
            self.will_close = True

    def _line(self) -> bytes:
        line = self.fp.readline(_MAX_LINE + 1)
        if len(line) > _MAX_LINE:
            raise http.client.LineTooLong("header line")
        return line

    def _status_line(self) -> tuple[str, int]:
        line = self._line()
        if not line:
            raise http.client.RemoteDisconnected("the peer closed the connection without an answer")
        version, _, rest = line.decode("latin-1").rstrip("\r\n").partition(" ")
        code = rest.lstrip(" ")[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit() and len(code) == 3):
            raise http.client.BadStatusLine(line.decode("latin-1"))
        return version, int(code)

    def _header_lines(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for _ in range(_MAX_HEADERS + 1):
            line = self._line()
            if line in (b"\r\n", b"\n"):
                return headers
            if not line:
                raise http.client.IncompleteRead(b"")
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        raise http.client.HTTPException(f"more than {_MAX_HEADERS} header lines")

    @staticmethod
    def _content_length(text: str | None, status: int) -> int | None:
        if status in (204, 304):
            return 0
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()):
            raise http.client.HTTPException(f"not a Content-Length: {text[:40]!r}")
        return int(text)


class Connection(http.client.HTTPConnection):
    """A connection that collects a request and writes it whole; `sent` counts the bytes that left."""

    response_class = Response
    sock: _DeadlineSocket | None

    def __init__(self, endpoint: Endpoint, clock: Clock = time.monotonic) -> None:
        super().__init__(endpoint.host, endpoint.port)
        self._endpoint = endpoint
        self._clock = clock
        self._parts: list[bytes] = []
        self.sent = 0
        self.idle_since = 0.0

    def connect(self) -> None:
        """Raises `OSError`, in at most `CONNECT_TIMEOUT_S` seconds per address."""
        path = self._endpoint.unix_path
        if path is not None:
            self.sock = self._opened(socket.AF_UNIX, path)
            return
        error: OSError | None = None
        for family, _, _, _, address in socket.getaddrinfo(
            self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM
        ):
            try:
                self.sock = self._opened(family, address)
            except OSError as exc:
                error = exc  # the next address of the same name may do
            else:
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return
        raise error or OSError(f"no address for {self._endpoint.host}")

    def _opened(self, family: int, address: object) -> _DeadlineSocket:
        sock = _DeadlineSocket(family, socket.SOCK_STREAM)
        sock.clock = self._clock
        try:
            if family == socket.AF_UNIX:
                # In non-blocking mode a full backlog is EAGAIN at once; in blocking mode the kernel waits for room,
                # and SO_SNDTIMEO bounds that wait.
                wait = struct.pack("@ll", int(CONNECT_TIMEOUT_S), 0)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
            else:
                sock.settimeout(CONNECT_TIMEOUT_S)
            sock.connect(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        except BaseException:
            sock.close()
            raise
        return sock

    def send(self, data: bytes) -> None:  # type: ignore[override]  # only bytes are sent here
        self._parts.append(data)

    def write(self, method: str, path: str, body: bytes | None, deadline: float) -> None:
        """Send one request whole. Raises `OSError`; `sent` then says whether a byte of it left."""
        self.sent = 0
        self._parts.clear()
        self.putrequest(method, self._endpoint.prefix + path, skip_host=True, skip_accept_encoding=True)
        self.putheader("Host", self._endpoint.host_header)
        self.putheader("Accept", "application/json")
        if body is not None:
            self.putheader("Content-Type", "application/json")
            self.putheader("Content-Length", str(len(body)))
        self.endheaders(body)
        sock = self.sock
        assert sock is not None
        sock.wait_at_most_until(deadline)
        rest = memoryview(b"".join(self._parts))
        self._parts.clear()
        while rest:
            sock.arm()
            written = sock.send(rest)
            self.sent += written
            rest = rest[written:]

    def read(self, limit: int, deadline: float) -> tuple[int, bytes, bool]:
        """The answer's status, its body and whether the connection may carry another request.

        Raises `OSError` and `http.client.HTTPException`; a body above `limit` bytes is an `HTTPException`.
        """
        sock = self.sock
        assert sock is not None
        sock.wait_at_most_until(deadline)
        with self.getresponse() as response:
            if response.length is not None and response.length > limit:
                raise http.client.HTTPException(f"an answer of {response.length} bytes, where {limit} are the limit")
            # read(n) hides a short body of known length, and read() has no bound for the other kinds.
            body = response.read() if response.length is not None else response.read(limit + 1)
            if len(body) > limit:
                raise http.client.HTTPException(f"an answer of more than {limit} bytes")
            return response.status, body, not response.will_close and response.isclosed()

    def is_stale(self) -> bool:
        """True when the peer closed the idle connection, or sent what nobody asked for."""
        if self.sock is None:
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
