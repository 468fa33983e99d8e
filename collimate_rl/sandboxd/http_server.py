"""The listening sockets and a thread per connection. What is answered is a subclass' affair."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.admission import at_capacity
from collimate_rl.sandboxd.http_connections import ConnectionTable
from collimate_rl.sandboxd.http_wire import (
    BadRequestLine,
    ConnectionEnded,
    Patience,
    Request,
    RequestReader,
    render,
    send_within,
)
from collimate_rl.sandboxd.wire import MAX_BODY_BYTES

log = logging.getLogger(__name__)
HEAD_S = 10.0
"""From the first byte of a request to the end of its head, at most."""
BODY_S = 30.0
"""From the end of the head to the end of the body, at most."""
_LINGER_S = 1.0
_LINGER_BYTES = 1 << 20
_ACCEPT_PAUSE_MS = 50


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What goes back: `body` is JSON data, `headers` are beside those of every answer."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpServer(ABC):
    """Serves on any number of listening sockets until closed.

    `keepalive_s` bounds each wait on a peer: for its next request, and for its taking of an answer.
    """

    def __init__(self, listeners: list[socket.socket], *, keepalive_s: float, max_connections: int):
        self._listeners = listeners
        self._patience = Patience(idle_s=keepalive_s, head_s=min(HEAD_S, keepalive_s), body_s=min(BODY_S, keepalive_s))
        self._table = ConnectionTable(max_connections)
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._accept, name="http-accept", daemon=True)

    @abstractmethod
    def handle(self, request: Request) -> Reply:
        """The answer to one request, in the thread of its connection. Raises nothing."""

    @abstractmethod
    def refusal(self, error: CollimateError) -> Reply:
        """An error as this API words it."""

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLHUP)
        by_fd = {listener.fileno(): listener for listener in self._listeners}
        for listener in self._listeners:
            listener.setblocking(False)
            poll.register(listener, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._stop:
                    return
                try:
                    connection, _ = by_fd[fd].accept()
                except (BlockingIOError, ConnectionAbortedError):
                    # The peer is gone already.
                    continue
                except OSError as exc:
                    log.warning("a connection could not be accepted: %s", exc)
                    self._run_short()
                    continue
                self._begin(connection)

    def _run_short(self) -> None:
        """Descriptors or threads are short: have the longest idle peer give its own back, and let that happen."""
        self._table.make_room()
        pause = select.poll()
        pause.register(self._stop, select.POLLHUP)
        pause.poll(_ACCEPT_PAUSE_MS)

    def _begin(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        if not self._table.admit(connection, thread):
            self._turn_away(connection, "every connection that this daemon holds has a request in hand")
            return
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread.start()
        except (OSError, RuntimeError) as exc:
            # The peer is gone already, or no thread can be had.
            log.warning("a connection could not be served: %s", exc)
            self._table.remove(connection)
            self._turn_away(connection, "no thread can be had for one more connection")
            self._run_short()

    def _turn_away(self, connection: socket.socket, why: str) -> None:
        """An answer, as far as it can be given without waiting."""
        with connection:
            if self._table.closing:
                return
            reply = self.refusal(at_capacity(why))
            connection.setblocking(False)
            try:
                connection.send(_rendered(reply, keep=False))
            except OSError:
                # It is told by the end of its connection, then.
                return

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._serve_requests(connection)
        finally:
            self._table.remove(connection)

    def _serve_requests(self, connection: socket.socket) -> None:
        reader = RequestReader(connection, MAX_BODY_BYTES, self._patience)
        keep = True
        while keep:
            try:
                request = reader.next()
            except ConnectionEnded:
                return
            except BadRequestLine as exc:
                if self._send(connection, self.refusal(exc.error), keep=False):
                    _linger(connection)
                return
            if not self._table.begin_request(connection):
                return
            reply = self.handle(request)
            keep = request.keep_alive and not self._table.closing
            if not self._send(connection, reply, keep=keep) or not self._table.wait_again(connection):
                return

    def _send(self, connection: socket.socket, reply: Reply, *, keep: bool) -> bool:
        try:
            send_within(connection, _rendered(reply, keep=keep), self._patience.idle_s)
        except OSError:
            # The caller is gone or does not read, and its answer is lost; the exec has run all the same.
            return False
        return True

    def stop_accepting(self) -> None:
        """Close the listening sockets and the idle connections; those with a request in hand go on."""
        os.close(self._stopped)
        self._thread.join()
        os.close(self._stop)
        for listener in self._listeners:
            listener.close()
        self._table.close()

    def finish(self, timeout_s: float = 10.0) -> None:
        """Wait for the answers that are still due; what they wait for is ended by then."""
        self._table.join(timeout_s)


def _rendered(reply: Reply, *, keep: bool) -> bytes:
    return render(reply.status, reply.body, keep_alive=keep, headers=reply.headers)


def _linger(connection: socket.socket) -> None:
    """Take what the peer still sends, for a moment: a close with unread bytes would cost it the answer."""
    deadline = time.monotonic() + _LINGER_S
    left = _LINGER_BYTES
    try:
        connection.shutdown(socket.SHUT_WR)
        while left > 0 and (seconds := deadline - time.monotonic()) > 0:
            connection.settimeout(seconds)
            received = len(connection.recv(1 << 16))
            if received == 0:
                return
            left -= received
    except OSError:
        # It is gone, or stays silent.
        return
