"""WebSocket tunnels to the exposed ports of sandboxes, through the `websockets` package (the extra `[tunnel]`).

`tcp`: each binary message is a piece of the stream, either way. `cdp`: the messages of the DevTools socket of a browser
that listens on the port.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from collimate_rl.localgateway.refusals import Refusal, bad_request, conflict, forbidden, number_field
from collimate_rl.localgateway.sandboxes import GatewaySandbox
from collimate_rl.localgateway.usage import rfc3339

if TYPE_CHECKING:
    from websockets.sync.server import Server, ServerConnection

    from collimate_rl.localgateway.keys import Key

log = logging.getLogger(__name__)
MAX_TTL_S: Final = 3600
_PIECE = 64 * 1024
_CONNECT_S = 10.0
_CLOSE_S = 5.0
_MAX_TOKENS = 65536


@dataclass(frozen=True, kw_only=True)
class _Ticket:
    sandbox: GatewaySandbox
    port: int
    protocol: str
    expires: float


class Tunnels:
    """Mints URLs, and serves them on a port of its own. `alive(sandbox)` says whether a ticket's sandbox still is."""

    def __init__(self, alive: Callable[[GatewaySandbox], bool], clock: Callable[[], float] = time.time) -> None:
        self._alive = alive
        self._clock = clock
        self._lock = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._origin = ""

    @property
    def serves(self) -> bool:
        """Whether tunnels can be had."""
        return self._server is not None

    def start(self, host: str) -> None:
        """Serve on any free port of `host`; nothing happens without the package."""
        if importlib.util.find_spec("websockets") is None:
            log.info("no tunnels: install the extra, pip install 'collimate-rl[tunnel]'")
            return
        from websockets.sync.server import serve

        quiet = logging.getLogger(f"{__name__}.wire")
        quiet.setLevel(logging.CRITICAL)
        server = serve(self._carry, host, 0, process_request=self._admit, compression=None, max_size=None, logger=quiet)
        self._server = server
        port = server.socket.getsockname()[1]
        self._origin = f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"
        self._thread = threading.Thread(target=server.serve_forever, name="tunnels", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all tunnels and listen no more."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()

    def mint(self, key: Key, sandbox: GatewaySandbox, body: dict[str, Any]) -> dict[str, Any]:
        """`{url, expires_at}`. 403 below pro, 409 `port_not_exposed`; the TTL is clamped."""
        port = number_field(body, "port", 1, 65535)
        ttl_s = min(number_field(body, "ttl_seconds", 1, 1 << 31, 600), MAX_TTL_S)
        protocol = body.get("protocol") or "tcp"
        if protocol not in ("tcp", "cdp"):
            raise bad_request("protocol must be tcp or cdp")
        if not key.tier.pro:
            raise forbidden("tunnels are a Pro feature")
        if str(port) not in sandbox.endpoints:
            exposed = ", ".join(sandbox.endpoints) or "none"
            raise conflict("port_not_exposed", f"{sandbox.id} does not expose port {port}; exposed: {exposed}")
        if not self.serves:
            raise Refusal(
                501, "tunnels_unavailable", "this gateway runs without the extra: pip install 'collimate-rl[tunnel]'"
            )
        token = secrets.token_urlsafe(24)
        now = self._clock()
        with self._lock:
            for old in [one for one, ticket in self._tickets.items() if ticket.expires < now]:
                del self._tickets[old]
            if len(self._tickets) >= _MAX_TOKENS:
                raise Refusal(429, "rate_limited", "too many tunnels are open to be used: wait", retry_after_s=60)
            self._tickets[token] = _Ticket(sandbox=sandbox, port=port, protocol=protocol, expires=now + ttl_s)
        return {"url": f"{self._origin}/connect?port={port}&t={token}", "expires_at": rfc3339(now + ttl_s)}

    def _ticket(self, target: str) -> _Ticket | None:
        url = urlsplit(target)
        query = parse_qs(url.query)
        with self._lock:
            ticket = self._tickets.get((query.get("t") or [""])[0])
        if url.path != "/connect" or ticket is None or (query.get("port") or [""])[0] != str(ticket.port):
            return None
        return ticket if ticket.expires >= self._clock() and self._alive(ticket.sandbox) else None

    def _admit(self, connection: ServerConnection, request: Any) -> Any:
        if self._ticket(request.path) is None:
            return connection.respond(403, "this tunnel is unknown, over, or its sandbox is gone\n")
        return None

    def _carry(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        ticket = self._ticket(connection.request.path)
        if ticket is None:
            return
        if ticket.protocol == "cdp":
            _carry_messages(connection, ticket.sandbox.endpoints[str(ticket.port)])
        else:
            _carry_stream(connection, ticket.sandbox.endpoints[str(ticket.port)])


def _carry_stream(connection: ServerConnection, place: str) -> None:
    """Bytes both ways, until either side ends."""
    from websockets.exceptions import ConnectionClosed

    host, _, port = place.rpartition(":")
    try:
        peer = socket.create_connection((host, int(port)), timeout=_CONNECT_S)
    except OSError as exc:
        connection.close(1011, f"the port does not answer: {exc}"[:120])
        return

    def inward() -> None:
        try:
            for message in connection:
                peer.sendall(message if isinstance(message, bytes) else message.encode())
        except (OSError, ConnectionClosed):
            # Either side has ended; the other direction notices by the shutdown.
            pass
        finally:
            _shut(peer)

    with peer:
        peer.settimeout(None)
        reader = threading.Thread(target=inward, name="tunnel-inward", daemon=True)
        reader.start()
        try:
            while piece := peer.recv(_PIECE):
                connection.send(piece)
        except (OSError, ConnectionClosed):
            # As above.
            pass
        connection.close()
        reader.join(_CLOSE_S)


def _carry_messages(connection: ServerConnection, place: str) -> None:
    """Messages both ways, to the browser that listens at `place`."""
    from websockets.exceptions import ConnectionClosed, WebSocketException
    from websockets.sync.client import connect

    try:
        browser = connect(_devtools(place), compression=None, max_size=None, open_timeout=_CONNECT_S)
    except (OSError, ValueError, KeyError, http.client.HTTPException, WebSocketException) as exc:
        connection.close(1011, f"no DevTools answer on the port: {exc!r}"[:120])
        return

    def inward() -> None:
        try:
            for message in connection:
                browser.send(message)
        except ConnectionClosed:
            # The other direction notices.
            pass
        finally:
            browser.close()

    with browser:
        reader = threading.Thread(target=inward, name="tunnel-inward", daemon=True)
        reader.start()
        try:
            for message in browser:
                connection.send(message)
        except ConnectionClosed:
            # As above.
            pass
        connection.close()
        reader.join(_CLOSE_S)


def _devtools(place: str) -> str:
    """The browser's own WebSocket, at the address by which this machine reaches it."""
    with closing(http.client.HTTPConnection(place, timeout=_CONNECT_S)) as asking:
        asking.request("GET", "/json/version", headers={"Host": "localhost"})
        told = json.loads(asking.getresponse().read())
    found: str = told["webSocketDebuggerUrl"]
    return urlsplit(found)._replace(scheme="ws", netloc=place).geturl()


def _shut(peer: socket.socket) -> None:
    try:
        peer.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It is gone already.
        pass
