"""One HTTP/1.1 connection, over TCP, TLS or an AF_UNIX socket, on `http.client`.

Three things differ from the standard classes, each for a reason:

- every read and write ends at one absolute deadline;
- a request leaves in one write, and it is noted whether any of it left, because "nothing was sent" is what
  makes a create or an exec safe to send again;
- response headers are read without `email.parser`, which costs more than the rest of a local request.
"""

from __future__ import annotations

import http.client
import os
import select
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from collimate_rl._sockets import CONNECT_TIMEOUT_S, Clock, DeadlineSocket, DeadlineTlsSocket, open_tcp, open_unix
from collimate_rl._transport import Answer

_MAX_LINE = 65_536
_MAX_HEADERS = 100
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
        if not path.startswith("/") or not path.isascii() or any(ord(char) <= 0x20 or char == "\x7f" for char in path):
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


class Connection(http.client.HTTPConnection):
    """A connection that collects a request and writes it whole; `may_have_sent` says whether any of it left."""

    response_class = Response
    sock: DeadlineSocket | DeadlineTlsSocket | None

    def __init__(self, endpoint: Endpoint, clock: Clock = time.monotonic, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(endpoint.host, endpoint.port)
        self._endpoint = endpoint
        self._clock = clock
        self._tls = tls
        self._parts: list[bytes] = []
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

    def send(self, data: bytes) -> None:  # type: ignore[override]  # only bytes are sent here
        self._parts.append(data)

    def write(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], deadline: float) -> None:
        """Send one request whole. Raises `OSError`; `may_have_sent` then says whether a byte of it can have left.

        A path or a header that HTTP does not take is a `ValueError`, before anything is sent.
        """
        self.may_have_sent = False
        self._parts.clear()
        self.putrequest(method, self._endpoint.target(path), skip_host=True, skip_accept_encoding=True)
        self.putheader("Host", self._endpoint.host_header)
        self.putheader("Accept", "application/json")
        for name, value in headers.items():
            self.putheader(name, value)
        if body is not None:
            self.putheader("Content-Type", "application/json")
            self.putheader("Content-Length", str(len(body)))
        self.endheaders(body)
        sock = self.sock
        assert sock is not None
        sock.wait_at_most_until(deadline, self._clock)
        rest = memoryview(b"".join(self._parts))
        self._parts.clear()
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
        with self.getresponse() as response:
            assert isinstance(response, Response)
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
