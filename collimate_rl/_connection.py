"""One HTTP/1.1 connection, over TCP, TLS or an AF_UNIX socket.

Three things differ from `http.client`, each for a reason:

- every read and write ends at one absolute deadline;
- a request leaves in one write, and it is noted whether any of it left, because "nothing was sent" is what
  makes a create or an exec safe to send again;
- an answer as nearly every server sends it (its head in one piece, a Content-Length) is taken apart right here, which
  costs a quarter of what the standard classes take for it. They read every other answer, from its first byte on.
"""

from __future__ import annotations

import http.client
import io
import os
import re
import select
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from collimate_rl._sockets import CONNECT_TIMEOUT_S, Clock, DeadlineSocket, DeadlineTlsSocket, open_tcp, open_unix
from collimate_rl._transport import Answer

_MAX_LINE = 65_536
_MAX_HEADERS = 100
_PIECE = 16_384
_MOST_AT_ONCE = 1 << 20
_PATH = re.compile(r"/[\x21-\x7e]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_WITHOUT_BODY = ("204", "304")
_UNIX_PATH_BYTES = 107
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server listens: `unix_path`, or `host` and `port`; `prefix` goes before every path."""

    scheme: str = "http"
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
        """`http[s]://host[:port][/prefix]`, or `unix:/path/to.sock`; anything else is a `ValueError`."""
        if base_url.startswith("unix:"):
            path = base_url.removeprefix("unix:")
            return cls.unix("/" + path.lstrip("/") if path.startswith("//") else path)
        parts = urlsplit(base_url)
        if parts.scheme not in _PORTS:
            raise ValueError(f"an address is http://host:port, https://host:port or unix:/path, not {base_url!r}")
        if not parts.hostname or parts.query or parts.fragment or parts.username or not base_url.isascii():
            raise ValueError(f"not the address of a server: {base_url!r}")
        if any(ord(char) <= 0x20 or char == "\x7f" for char in base_url):
            raise ValueError(f"an address holds no blanks or control characters: {base_url!r}")
        port = parts.port or _PORTS[parts.scheme]
        return cls(scheme=parts.scheme, host=parts.hostname, port=port, prefix=parts.path.rstrip("/"))

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def host_header(self) -> str:
        if self.unix_path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def target(self, path: str) -> str:
        """`path` behind the prefix, as a request line has it. A `ValueError` for what no request line can hold."""
        if _PATH.fullmatch(path) is None:
            raise ValueError(f"not a path as a request has it: {path[:200]!r}")
        return self.prefix + path

    def url(self, path: str) -> str:
        return f"{self.scheme}://{self.host_header}{self.target(path)}"

    def __str__(self) -> str:
        if self.unix_path is not None:
            return f"unix:{self.unix_path}"
        return f"{self.scheme}://{self.host_header}{self.prefix}"


class Response(http.client.HTTPResponse):
    """`begin` as in the standard class, with the header lines split by hand into `fields`, names in lower case."""

    fields: dict[str, str]

    def begin(self) -> None:
        version, status = self._status_line()
        while 100 <= status < 200:
            self._header_lines()
            version, status = self._status_line()
        self.code = self.status = status
        self.reason = ""
        self.version = 10 if version == "HTTP/1.0" else 11
        self.fields = headers = self._header_lines()
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


class _Rest(io.RawIOBase):
    """What was read of an answer already, and then the socket; closing it leaves the socket open."""

    def __init__(self, begun: bytes, sock: DeadlineSocket | DeadlineTlsSocket) -> None:
        self._begun = begun
        self._sock = sock

    def makefile(self, _mode: str) -> io.BufferedReader:
        """As `http.client` asks a socket for it."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._begun:
            return self._sock.recv_into(buffer)
        taken = self._begun[: len(buffer)]
        buffer[: len(taken)] = taken
        self._begun = self._begun[len(taken) :]
        return len(taken)


def usual_head(begun: bytes) -> tuple[int, dict[str, str], int, int] | None:
    """Status, headers (names in lower case), where the body begins and its length, of an answer that begins so.

    None for all but the usual: HTTP/1.1, the whole head is there, a Content-Length and no transfer coding. What is
    taken here is taken as `Response` does.
    """
    end = begun.find(b"\r\n\r\n")
    first, *lines = begun[: max(end, 0)].decode("latin-1").split("\r\n")
    version, code, after = first[:9], first[9:12], first[12:13]
    if version != "HTTP/1.1 " or not (code.isascii() and code.isdigit() and code[0] != "1") or after not in ("", " "):
        return None
    if len(lines) > _MAX_HEADERS or "\n" in first or code in _WITHOUT_BODY:
        return None
    headers: dict[str, str] = {}
    for line in lines:
        if "\n" in line:
            return None
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in headers:
        return None
    return int(code), headers, end + 4, int(length)


class Connection:
    """A connection to one server; `may_have_sent` says whether any of the last request left."""

    def __init__(self, endpoint: Endpoint, clock: Clock = time.monotonic, tls: ssl.SSLContext | None = None) -> None:
        self.sock: DeadlineSocket | DeadlineTlsSocket | None = None
        self._endpoint = endpoint
        self._clock = clock
        self._tls = tls
        self._start = f"Host: {endpoint.host_header}\r\nAccept: application/json\r\n"
        self._method = ""
        self.may_have_sent = False
        self.idle_since = 0.0

    def connect_within(self, wait_s: float) -> None:
        """Raises `OSError`, in at most `wait_s` seconds, and `CONNECT_TIMEOUT_S`, per address."""
        if self._endpoint.unix_path is not None:
            self.sock = open_unix(self._endpoint.unix_path)
            return
        wait_s = min(wait_s, CONNECT_TIMEOUT_S)
        if wait_s <= 0:
            raise TimeoutError("the deadline has passed")
        self.sock = open_tcp(self._endpoint.host, self._endpoint.port, tls=self._tls, wait_s=wait_s)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def write(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], deadline: float) -> None:
        """Send one request whole. Raises `OSError`; `may_have_sent` then says whether a byte of it can have left.

        A path or a header that HTTP does not take is a `ValueError`, before anything is sent.
        """
        self.may_have_sent = False
        self._method = method
        lines = [f"{method} {self._endpoint.target(path)} HTTP/1.1\r\n", self._start]
        for name, value in headers.items():
            if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
                raise ValueError(f"not a header as a request has it: {name[:80]!r}")
            lines.append(f"{name}: {value}\r\n")
        if body is not None:
            lines.append(f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n")
        lines.append("\r\n")
        sock = self.sock
        assert sock is not None
        sock.wait_at_most_until(deadline, self._clock)
        rest = memoryview("".join(lines).encode("latin-1") + (body or b""))
        # A TLS write that fails does not say how many of its records left before.
        self.may_have_sent = self._tls is not None
        while rest:
            written = sock.send(rest)
            self.may_have_sent = True
            rest = rest[written:]

    def read(self, limit: int, deadline: float) -> tuple[Answer, bool]:
        """The answer, and whether the connection may carry another request.

        Raises `OSError` and `http.client.HTTPException`; a body above `limit` bytes is an `HTTPException`.
        """
        sock = self.sock
        assert sock is not None
        sock.wait_at_most_until(deadline, self._clock)
        begun = sock.recv(_PIECE)
        head = usual_head(begun) if self._method != "HEAD" else None
        if head is None:
            return self._read_any(sock, begun, limit)
        status, headers, start, length = head
        if length > limit:
            raise http.client.HTTPException(f"an answer of {length} bytes, where {limit} are the limit")
        parts = [begun[start : start + length]]
        missing = length - len(parts[0])
        while missing:
            part = sock.recv(min(missing, _MOST_AT_ONCE))
            if not part:
                raise http.client.IncompleteRead(b"".join(parts), missing)
            parts.append(part)
            missing -= len(part)
        # What came behind the answer is none that anybody asked for.
        is_reusable = len(begun) <= start + length and "close" not in headers.get("connection", "").lower()
        return Answer(status=status, headers=headers, body=b"".join(parts)), is_reusable

    def _read_any(self, sock: DeadlineSocket | DeadlineTlsSocket, begun: bytes, limit: int) -> tuple[Answer, bool]:
        source: Any = _Rest(begun, sock)
        with Response(source, method=self._method) as response:
            response.begin()
            if response.length is not None and response.length > limit:
                raise http.client.HTTPException(f"an answer of {response.length} bytes, where {limit} are the limit")
            # read(n) hides a short body of known length, and read() has no bound for the other kinds.
            body = response.read() if response.length is not None else response.read(limit + 1)
            if len(body) > limit:
                raise http.client.HTTPException(f"an answer of more than {limit} bytes")
            answer = Answer(status=response.status, headers=response.fields, body=body)
            return answer, not response.will_close and response.isclosed()

    def is_stale(self) -> bool:
        """True when the peer closed the idle connection, or sent what nobody asked for."""
        if self.sock is None or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            return True
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
