"""A small HTTP server for a supervisor's pages: one thread, a bounded number of connections, a deadline on each.

Nothing that a client does costs more than that: slow ones are cut off, a crowd of them pushes out its own oldest, and
more requests than a scraper ever makes wait in the kernel's queue. It only answers GET and HEAD, and reads no body.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from worker import logs

MAX_OPEN = 32
MAX_REQUEST = 8192
PATIENCE_S = 5.0
"""From the accept to the last byte of the answer."""
LINGER_S = 1.0
"""How long an answered client may go on sending before the connection is closed under it."""
PER_SECOND = 50.0
BURST = 100.0
"""Connections beyond these wait to be accepted."""
MAX_UNREAD = 65536
"""So much of what an answered client goes on sending is read and forgotten."""
PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a path answers with."""

    status: int
    content_type: str
    body: bytes


@dataclass(eq=False)
class _Client:
    peer: socket.socket
    until: float
    heard: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None
    answered: bool = False
    unread: int = MAX_UNREAD


class MetricsServer:
    """Serves `pages` (path to what makes the page, which must not wait for anything) on `host` and `port`.

    Port 0 takes a free one; `port` says which. The constructor raises `OSError` when the address cannot be had.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Callable[[], Page]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=16)
        self._listener.setblocking(False)
        self._pages = dict(pages)
        self._clock = clock
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._listens = True
        self._clients: dict[socket.socket, _Client] = {}
        self._tokens = BURST
        self._refilled_at = clock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        number: int = self._listener.getsockname()[1]
        return number

    @property
    def open(self) -> int:
        """Connections just now."""
        return len(self._clients)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Close everything. False when the thread took longer than `timeout_s`."""
        self._stopped = True
        self._waker.send(b"x")
        if self._thread.ident is None:
            self._close()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._round()
            except Exception:  # noqa: BLE001 - a client must not end the server, whatever it found
                logs.emit(logs.LOOP_FAILED, logging.ERROR, loop="metrics", exc_info=True)
                self._drop_all()
                time.sleep(1.0)
        self._close()

    def _round(self) -> None:
        self._admit()
        for key, _ in self._selector.select(self._wait_s()):
            if key.fileobj is self._listener:
                self._accept()
            elif (client := self._clients.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                self._serve(client)
        now = self._clock()
        for client in [client for client in self._clients.values() if client.until <= now]:
            self._drop(client)

    def _admit(self) -> None:
        """Listen as long as connections come no faster than they may."""
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._refilled_at) * PER_SECOND)
        self._refilled_at = now
        listens = self._tokens >= 1.0
        if listens and not self._listens:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._listens and not listens:
            self._selector.unregister(self._listener)
        self._listens = listens

    def _wait_s(self) -> float:
        first = min((client.until for client in self._clients.values()), default=float("inf"))
        refill = float("inf") if self._listens else (1.0 - self._tokens) / PER_SECOND
        return max(0.0, min(60.0, first - self._clock(), refill))

    def _accept(self) -> None:
        self._tokens -= 1.0
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return  # it hung up before it was its turn
        except OSError:
            self._tokens = -PER_SECOND  # no descriptor to be had: again in a second
            return
        peer.setblocking(False)
        if len(self._clients) >= MAX_OPEN:
            self._drop(min(self._clients.values(), key=lambda client: client.until))
        self._clients[peer] = _Client(peer, self._clock() + PATIENCE_S)
        self._selector.register(peer, selectors.EVENT_READ)

    def _serve(self, client: _Client) -> None:
        try:
            if client.answer is None:
                self._hear(client)
            elif client.answered:
                more = client.peer.recv(MAX_UNREAD)
                client.unread -= len(more)
                if not more or client.unread <= 0:
                    self._drop(client)
            else:
                self._speak(client)
        except BlockingIOError:
            pass  # not ready after all
        except OSError:
            self._drop(client)  # reset

    def _hear(self, client: _Client) -> None:
        told = client.peer.recv(MAX_REQUEST + 1 - len(client.heard))
        if not told:
            self._drop(client)
            return
        client.heard += told
        if b"\r\n\r\n" in client.heard or b"\n\n" in client.heard:
            client.answer = memoryview(self._answer(bytes(client.heard)))
        elif len(client.heard) > MAX_REQUEST:
            client.answer = memoryview(_written(_error(431), head=False))
        if client.answer is not None:
            self._selector.modify(client.peer, selectors.EVENT_WRITE)
            self._speak(client)

    def _speak(self, client: _Client) -> None:
        assert client.answer is not None
        client.answer = client.answer[client.peer.send(client.answer) :]
        if not client.answer:
            # Closed at once, what the client still sends would reset the connection before it has read the answer.
            client.answered = True
            client.until = min(client.until, self._clock() + LINGER_S)
            client.peer.shutdown(socket.SHUT_WR)
            self._selector.modify(client.peer, selectors.EVENT_READ)

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return _written(_error(400), head=False)
        method, target, version = words
        if not version.startswith(b"HTTP/1."):
            return _written(_error(505), head=False)
        if method not in (b"GET", b"HEAD"):
            return _written(_error(405), head=False)
        make = self._pages.get(target.split(b"?", 1)[0].decode("latin-1"))
        if make is None:
            return _written(_error(404), head=method == b"HEAD")
        try:
            page = make()
        except Exception:  # noqa: BLE001 - a fault in one page is told in the log, and to the client by its status
            logs.emit(logs.LOOP_FAILED, logging.ERROR, loop="metrics", exc_info=True)
            page = _error(500)
        return _written(page, head=method == b"HEAD")

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.peer)
        del self._clients[client.peer]
        client.peer.close()

    def _drop_all(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)

    def _close(self) -> None:
        self._drop_all()
        self._selector.close()
        for each in (self._listener, self._waker, self._woken):
            each.close()


def _error(status: int) -> Page:
    return Page(status=status, content_type="text/plain; charset=utf-8", body=f"{PHRASES[status]}\n".encode())


def _written(page: Page, *, head: bool) -> bytes:
    lines = (
        f"HTTP/1.1 {page.status} {PHRASES[page.status]}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if page.status == 405 else []),
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (b"" if head else page.body)
