"""The listening sockets, a thread per connection, and the routes of the daemon API."""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.http_wire import (
    BadRequestLine,
    ConnectionEnded,
    Request,
    RequestReader,
    error_answer,
    render,
)
from collimate_rl.sandboxd.service import Service
from collimate_rl.sandboxd.wire import MAX_BODY_BYTES, parse_object

log = logging.getLogger(__name__)


class HttpFront:
    """Serves one Service on any number of listening sockets until closed."""

    def __init__(self, service: Service, listeners: list[socket.socket], *, keepalive_s: float, max_connections: int):
        self._service = service
        self._listeners = listeners
        self._keepalive_s = keepalive_s
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._idle: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._closing = False
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._accept, name="http-accept", daemon=True)

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
                except OSError as exc:
                    # The peer is gone already, or descriptors are short: whoever waits is taken next time.
                    log.debug("accept: %s", exc)
                    continue
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        seconds = struct.pack("ll", int(self._keepalive_s), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        with self._lock:
            if self._closing or len(self._threads) >= self._max_connections:
                connection.close()
                return
            self._threads.add(thread)
            self._idle.add(connection)
        thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._serve_requests(connection)
        finally:
            with self._lock:
                self._idle.discard(connection)
                self._threads.discard(threading.current_thread())

    def _serve_requests(self, connection: socket.socket) -> None:
        reader = RequestReader(connection, MAX_BODY_BYTES)
        keep = True
        while keep:
            try:
                request = reader.next()
                with self._lock:
                    self._idle.discard(connection)
                status, answer = self._answer(request)
                keep = request.keep_alive
            except ConnectionEnded:
                return
            except BadRequestLine as exc:
                (status, answer), keep = error_answer(exc.error), False
            try:
                connection.sendall(render(status, answer, keep_alive=keep and not self._closing))
            except OSError:
                # The caller is gone, and its answer with it; the exec has run all the same.
                return
            with self._lock:
                if self._closing:
                    return
                self._idle.add(connection)

    def _answer(self, request: Request) -> tuple[int, Any]:
        try:
            return self._route(request)
        except CollimateError as exc:
            return error_answer(exc)
        except Exception:
            # Whatever it is, this request's caller must hear of it and the others go on.
            log.exception("%s %s failed", request.method, request.path)
            return 500, {"error": "the daemon failed; its log says why", "error_code": "internal_error"}

    def _route(self, request: Request) -> tuple[int, Any]:
        service = self._service
        parts = request.path.strip("/").split("/")
        if parts[0] == "v1":
            parts = parts[1:]
        elif parts not in (["health"], ["exec"]):
            parts = []
        routes: dict[str, Callable[[], tuple[int, Any]]]
        match parts:
            case ["exec"]:
                routes = {"POST": lambda: service.exec_once(parse_object(request.body))}
            case ["health"]:
                routes = {"GET": service.health}
            case ["sessions"]:
                routes = {
                    "GET": service.list_sessions,
                    "POST": lambda: service.create_session(parse_object(request.body)),
                }
            case ["sessions", session_id]:
                routes = {
                    "GET": lambda: service.get_session(session_id),
                    "DELETE": lambda: service.delete_session(session_id),
                }
            case ["sessions", session_id, "exec"]:
                routes = {"POST": lambda: service.session_exec(session_id, parse_object(request.body))}
            case _:
                raise CollimateError(f"there is nothing at {request.path}", 404, "not_found")
        handler = routes.get(request.method)
        if handler is None:
            raise CollimateError(f"{request.path} takes {' or '.join(routes)}", 405, "method_not_allowed")
        return handler()

    def stop_accepting(self) -> None:
        """Close the listening sockets and the idle connections; those with a request in hand go on."""
        os.close(self._stopped)
        self._thread.join()
        os.close(self._stop)
        for listener in self._listeners:
            listener.close()
        with self._lock:
            self._closing = True
            for connection in self._idle:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    # Its peer was faster.
                    continue

    def finish(self, timeout_s: float = 10.0) -> None:
        """Wait for the answers that are still due; what they wait for is ended by then."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout_s)
