"""Ports of a sandbox on this machine: a local listener, and a WebSocket tunnel per accepted connection.

Needs the `websockets` package (the extra `[tunnel]`). Each accepted connection mints a tunnel URL of its own, opens a
WebSocket to it and carries bytes both ways as binary messages until either side ends.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from collimate_rl.errors import CollimateError

CHUNK_BYTES: Final = 64 * 1024
MAX_CONNECTIONS: Final = 256
OPEN_TIMEOUT_S: Final = 20.0
_JOIN_S = 5.0
_PAUSE_S = 0.05

_log = logging.getLogger(__name__)

HALF_CLOSED_S: Final = 5.0
"""A WebSocket cannot be half closed: after the local side ended its stream, the tunnel waits for so much silence from
the other side, so that an answer to "all of it sent" still arrives."""

Mint = Callable[[], "str | Mapping[str, Any]"]
"""Gives the URL of a fresh tunnel, or an answer of `connect_url` that holds it."""


class PortForward:
    """A local listener whose connections end at a port inside a sandbox. Close it, or use it as a context manager.

    A tunnel that cannot be opened closes its connection, and is logged; the listener goes on. At most
    `MAX_CONNECTIONS` at a time: further ones wait in the listener's queue.
    """

    def __init__(self, mint: Mint, remote_port: int, *, local_port: int = 0, local_host: str = "127.0.0.1") -> None:
        self._connect = _websocket_connect()
        self._mint = mint
        self.remote_port = remote_port
        self._guard = threading.Condition()
        self._peers: set[_Tunnel] = set()
        self._closed = False
        family = socket.AF_INET6 if ":" in local_host else socket.AF_INET
        self._listener = socket.create_server((local_host, local_port), family=family)
        self.host: str = local_host
        """The address that is listened on."""
        self.port: int = self._listener.getsockname()[1]
        """The local port."""
        self._thread = threading.Thread(target=self._accept, name=f"forward-{self.port}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """`(host, port)`, as `socket.create_connection` takes it."""
        return self.host, self.port

    @property
    def url(self) -> str:
        """`http://host:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"PortForward({self.url} -> port {self.remote_port})"

    def __enter__(self) -> PortForward:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and end every connection; closing twice is no error."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            tunnels = list(self._peers)
            self._guard.notify_all()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone does not
        except OSError:
            pass  # it was never connected to anything, which some platforms refuse to shut down
        self._listener.close()
        for tunnel in tunnels:
            tunnel.end()
        self._thread.join(_JOIN_S)
        until = time.monotonic() + _JOIN_S
        for tunnel in tunnels:
            tunnel.join(max(0.0, until - time.monotonic()))

    def _accept(self) -> None:
        while self._has_room():
            try:
                peer, _ = self._listener.accept()
            except OSError as error:
                # Closed: then the loop ends. Otherwise the peer went at once, or there are no descriptors just now.
                _log.debug("port %d: no connection taken: %s", self.port, error)
                time.sleep(_PAUSE_S)
                continue
            tunnel = _Tunnel(self, peer)
            if not self._begun(tunnel):
                peer.close()
                return
            tunnel.start()

    def _has_room(self) -> bool:
        with self._guard:
            self._guard.wait_for(lambda: self._closed or len(self._peers) < MAX_CONNECTIONS)
            return not self._closed

    def _begun(self, tunnel: _Tunnel) -> bool:
        with self._guard:
            if not self._closed:
                self._peers.add(tunnel)
            return not self._closed

    def _ended(self, tunnel: _Tunnel) -> None:
        with self._guard:
            self._peers.discard(tunnel)
            self._guard.notify_all()


class _Tunnel:
    """One accepted connection: a thread per direction."""

    def __init__(self, forward: PortForward, peer: socket.socket) -> None:
        self._forward = forward
        self._peer = peer
        self._socket: Any = None
        self._ending = threading.Event()
        self._heard_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"tunnel-{forward.port}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def end(self) -> None:
        self._ending.set()
        try:
            self._peer.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer is gone already

    def _run(self) -> None:
        try:
            with self._peer:
                self._carry()
        finally:
            self._forward._ended(self)

    def _carry(self) -> None:
        forward = self._forward
        try:
            # Tunnels carry raw bytes: compressing them costs more than it saves, and their size is the peer's affair.
            minted = forward._mint()
            link = forward._connect(
                minted if isinstance(minted, str) else minted["url"],
                compression=None,
                max_size=None,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=_JOIN_S,
            )
        except Exception as error:  # noqa: BLE001 - websockets, ssl and the mint each have errors of their own
            if not self._ending.is_set():
                _log.warning("port %d: no tunnel could be opened: %s", forward.remote_port, error)
            return
        with link:
            outward = threading.Thread(target=self._outward, args=(link,), name="tunnel-out", daemon=True)
            outward.start()
            try:
                for message in link:
                    self._heard_at = time.monotonic()
                    self._peer.sendall(message if isinstance(message, bytes) else message.encode())
            except Exception as error:  # noqa: BLE001 - either side may end it at any moment
                _log.debug("port %d: a tunnel ended: %s", forward.remote_port, error)
            finally:
                self.end()
                outward.join(_JOIN_S)

    def _outward(self, link: Any) -> None:
        try:
            while data := self._peer.recv(CHUNK_BYTES):
                link.send(data)
            self._heard_at = max(self._heard_at, time.monotonic())
            while not self._ending.wait(0.2) and time.monotonic() - self._heard_at < HALF_CLOSED_S:
                pass
        except Exception as error:  # noqa: BLE001 - either side may end it at any moment
            _log.debug("port %d: a tunnel ended: %s", self._forward.remote_port, error)
        finally:
            link.close()


def open_port_forward(
    mint: Mint, remote_port: int, *, local_port: int = 0, local_host: str = "127.0.0.1"
) -> PortForward:
    """Listen on `local_host:local_port` (0: any free one); each connection goes through a tunnel that `mint` opens.

    Raises `CollimateError` without the `websockets` package, `OSError` where the port cannot be had.
    """
    return PortForward(mint, remote_port, local_port=local_port, local_host=local_host)


def _websocket_connect() -> Callable[..., Any]:
    try:
        from websockets.sync.client import connect
    except ModuleNotFoundError as error:
        raise CollimateError(
            "forwarding a port needs the websockets package. Install the extra: pip install 'collimate-rl[tunnel]'"
        ) from error
    return connect
