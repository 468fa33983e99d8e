"""The transport over `requests`: proxies, NO_PROXY, REQUESTS_CA_BUNDLE and client certificates as its users know them.

Imported only where `requests` is installed (the extra `gateway`). What `requests` does on its own and an exec must
not have is left out: redirects, cookies, `.netrc` (which replaces the Authorization header), repeats. Its exceptions
do not say whether anything was sent, so the connections note that themselves, per request.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

from collimate_rl._connection import Endpoint
from collimate_rl._http import IDLE_LIMIT_S, MAX_ANSWER_BYTES, MAX_IDLE
from collimate_rl._sockets import CONNECT_TIMEOUT_S, ClientCert, Clock, DeadlineSocket, DeadlineTlsSocket
from collimate_rl._transport import Answer
from collimate_rl.errors import AmbiguousError, MalformedAnswer, UnreachableError

if version("urllib3").startswith("1."):
    raise ImportError(f"urllib3 2 is needed, and {version('urllib3')} is installed")

_PIECE: Final = 1 << 16
_FAILURES: Final = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)


class _Exchange:
    """What became of one request: `began` to be sent, `broke` while it was, on a connection `reused`."""

    def __init__(self, deadline: float, clock: Clock, idle_limit_s: float) -> None:
        self.deadline = deadline
        self.clock = clock
        self.idle_limit_s = idle_limit_s
        self.began = self.broke = self.reused = False

    @property
    def left_s(self) -> float:
        return self.deadline - self.clock()


class _Current(threading.local):
    exchange: _Exchange


_current = _Current()


class _Watched(HTTPConnection):
    """Notes in the thread's exchange what it does, and holds its socket to the exchange's deadline."""

    _uses = 0
    _is_connecting = False
    _idle_since = 0.0

    def connect(self) -> None:
        self._uses = 0
        self._is_connecting = True
        try:
            super().connect()
        finally:
            self._is_connecting = False
        self._hold_to_deadline()

    def _new_conn(self) -> socket.socket:
        plain = super()._new_conn()
        watched = DeadlineSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        watched.settimeout(self.timeout)
        watched.wait_at_most_until(_current.exchange.deadline, _current.exchange.clock)
        return watched

    def _hold_to_deadline(self) -> None:
        if isinstance(self.sock, DeadlineSocket | DeadlineTlsSocket):
            self.sock.wait_at_most_until(_current.exchange.deadline, _current.exchange.clock)

    def request(self, *args: Any, **kwargs: Any) -> None:
        _current.exchange.reused = self.sock is not None and self._uses > 0
        self._uses += 1
        self._hold_to_deadline()
        super().request(*args, **kwargs)

    def send(self, data: Any) -> None:
        if self._is_connecting:  # the proxy's CONNECT: nothing of the request
            super().send(data)
            return
        if self.sock is None:
            self.connect()
            self._uses = 1
        exchange = _current.exchange
        exchange.began = True
        try:
            if isinstance(self.sock, DeadlineSocket | DeadlineTlsSocket):
                self.sock.arm()
            super().send(data)
        except OSError:
            exchange.broke = True
            raise

    def getresponse(self) -> Any:
        response = super().getresponse()
        self._idle_since = _current.exchange.clock()
        return response

    @property
    def is_connected(self) -> bool:
        exchange = _current.exchange
        return super().is_connected and exchange.clock() - self._idle_since <= exchange.idle_limit_s


class _WatchedTls(_Watched, HTTPSConnection):
    def connect(self) -> None:
        if self.ssl_context is None:
            self.ssl_context = create_urllib3_context()
            self.ssl_context.sslsocket_class = DeadlineTlsSocket
        super().connect()


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Watched


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _WatchedTls


_POOLS: Final = {"http": _Pool, "https": _TlsPool}


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = dict(_POOLS)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = dict(_POOLS)
        return manager

    def close(self) -> None:
        # Forgetting a pool closes its connections only once nothing refers to it, and an exception's traceback may.
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            for key in manager.pools.keys():  # noqa: SIM118  # it cannot be iterated itself
                pool = manager.pools.get(key)
                if pool is not None:
                    pool.close()
        super().close()


class RequestsTransport:
    """A `Transport` to one origin. `ca_file` wins over `$REQUESTS_CA_BUNDLE`, that over `$SSL_CERT_FILE`.

    `client_cert` is a PEM file, or (certificate, key). Raises `ValueError` for an address or a file that cannot be.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        ca_file: str | None = None,
        client_cert: ClientCert | None = None,
        clock: Clock = time.monotonic,
        idle_limit_s: float = IDLE_LIMIT_S,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        if endpoint.unix_path is not None:
            raise ValueError(f"requests reaches no unix socket: {endpoint}")
        files = [ca_file, *([client_cert] if isinstance(client_cert, str) else client_cert or ())]
        for name in files:
            if name is not None and not os.access(name, os.R_OK):
                raise ValueError(f"not a readable PEM file: {name!r}")
        self.endpoint = endpoint
        self._ca_file = ca_file
        self._client_cert = client_cert
        self._clock = clock
        self._idle_limit_s = idle_limit_s
        self._max_answer_bytes = max_answer_bytes
        self._session = requests.Session()  # for its reading of the environment alone
        # By process: a forked child must not use its parent's connections, nor a lock that was held at the fork. What
        # it inherited stays open in it, for closing it would take such a lock.
        self._by_pid: dict[int, _Adapter] = {}
        self._guard = threading.Lock()

    @property
    def address(self) -> str:
        return str(self.endpoint)

    def close(self) -> None:
        """Close the idle connections; the transport stays usable."""
        adapter = self._by_pid.get(os.getpid())
        if adapter is not None:
            adapter.close()

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Answer:
        """Send once; see `Transport`."""
        prepared = self._prepared(method, path, body, headers or {})
        deadline = self._clock() + timeout_s
        while True:
            exchange = _Exchange(deadline, self._clock, self._idle_limit_s)
            _current.exchange = exchange
            try:
                return self._exchanged(prepared, exchange)
            except _FAILURES as exc:
                if exchange.broke and exchange.reused:
                    # The peer closed an idle connection between the look at it and the write: the request never left
                    # whole, so nobody can have acted on it. Take another.
                    continue
                raise self._failure(exc, exchange, f"{method} {path}") from exc

    def _prepared(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> requests.PreparedRequest:
        url = self.endpoint.url(path)
        given = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
        if body is not None:
            given["Content-Type"] = "application/json"
        prepared = requests.PreparedRequest()
        prepared.prepare(method=method, url=self.address, headers=given, data=body)
        prepared.url = url  # as it is: prepare() would fold `..` and quote anew
        return prepared

    def _exchanged(self, prepared: requests.PreparedRequest, exchange: _Exchange) -> Answer:
        settings = self._session.merge_environment_settings(
            prepared.url, {}, True, self._ca_file or _ca_bundle(), self._client_cert
        )
        left = exchange.left_s
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        response = self._adapter().send(
            prepared,
            stream=True,
            timeout=(min(left, CONNECT_TIMEOUT_S), left),
            verify=settings["verify"] or True,
            cert=settings["cert"],
            proxies=settings["proxies"],
        )
        try:
            headers = {name.lower(): value.strip() for name, value in response.headers.items()}
            return Answer(status=response.status_code, headers=headers, body=self._body(response, headers))
        finally:
            response.close()

    def _body(self, response: requests.Response, headers: Mapping[str, str]) -> bytes:
        limit = self._max_answer_bytes
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise http.client.HTTPException(f"not a Content-Length: {length[:40]!r}")
        if int(length) > limit:
            raise http.client.HTTPException(f"an answer of {length} bytes, where {limit} are the limit")
        pieces = []
        total = 0
        while piece := _piece(response):
            pieces.append(piece)
            total += len(piece)
            if total > limit:
                raise http.client.HTTPException(f"an answer of more than {limit} bytes")
        return b"".join(pieces)

    def _failure(self, exc: Exception, exchange: _Exchange, what: str) -> UnreachableError | AmbiguousError:
        where = f"{self.endpoint}: {what}"
        if not exchange.began:
            return UnreachableError(
                f"{where}: nothing was sent: {exc}; are the address, the proxy (HTTPS_PROXY) and the authority "
                "(REQUESTS_CA_BUNDLE, ca_file) the right ones?"
            )
        if exchange.left_s <= 0:
            return AmbiguousError(f"{where} was sent, and not answered in whole before its deadline")
        malformed = _first(exc, lambda cause: isinstance(cause, http.client.HTTPException))
        if malformed is not None and not isinstance(
            malformed, http.client.IncompleteRead | http.client.RemoteDisconnected
        ):
            return MalformedAnswer(
                f"{where}: the answer is not HTTP as this client takes it "
                f"({type(malformed).__name__}: {str(malformed)[:200]}); is this the right address?"
            )
        return AmbiguousError(f"{where} was sent, and the connection broke before the answer was whole: {exc}")

    def _adapter(self) -> _Adapter:
        pid = os.getpid()
        adapter = self._by_pid.get(pid)
        if adapter is None:
            with self._guard:
                adapter = self._by_pid.setdefault(pid, _Adapter(pool_maxsize=MAX_IDLE))
        return adapter


def _piece(response: requests.Response) -> bytes:
    try:
        piece: bytes = response.raw.read(_PIECE, decode_content=False)
    except ValueError as exc:  # a chunk of negative length, for one
        raise http.client.HTTPException(f"no body as HTTP has them: {exc}") from exc
    return piece


def _ca_bundle() -> str | None:
    """`$SSL_CERT_FILE`, where none of the variables that `requests` reads itself is set."""
    if os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
        return None
    return os.environ.get("SSL_CERT_FILE") or None


def _first(exc: BaseException, wanted: Callable[[BaseException], bool]) -> BaseException | None:
    """The first that is wanted of an exception, what it carries as arguments, and what it came from."""
    seen: set[int] = set()
    waiting: list[object] = [exc]
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        if wanted(one):
            return one
        seen.add(id(one))
        waiting += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
    return None
