"""A session's exposed ports: listeners on the host's loopback, each connection led into the session's own network.

The session's init hands over sockets of its network namespace (inside/ports.py); they are connected here. Nothing of
the daemon's goes the other way: the namespace sees a connection on its loopback, from its loopback.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from collimate_rl.sandboxd.inside import ports as helper
from collimate_rl.sandboxd.portloop import READ, WRITE, PortLoop
from collimate_rl.sandboxd.relay import Relay, reset_on_close

HOST = "127.0.0.1"
_BACKLOG = 128
_CONNECT_S = 10.0
_PAUSE_S = 0.2
_ADDRESSES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


class Places:
    """How many connections all sessions of a daemon may have together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._taken = 0

    def take(self) -> bool:
        """One of them, if there is one."""
        with self._lock:
            if self._taken >= self._limit:
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        """One that was taken."""
        with self._lock:
            self._taken -= 1


class _Pending:
    """A connection that was accepted and has no partner yet."""

    def __init__(self, client: socket.socket, port: int) -> None:
        self.client = client
        self.port = port
        self.families = [socket.AF_INET, socket.AF_INET6]
        self.target: socket.socket | None = None
        self.over = False


class ExposedPorts:
    """Serves from `open` to `close`, all in the loop's thread. `endpoints` are `{port inside: "host:port"}`.

    `asking` is the daemon's end of the channel to the session's init, and belongs to this object from now on. OSError
    when there is no port to listen on.
    """

    def __init__(
        self, loop: PortLoop, asking: socket.socket, ports: Sequence[int], *, limit: int, places: Places
    ) -> None:
        self._loop = loop
        self._asking = asking
        self._limit = limit
        self._places = places
        self._listeners: dict[socket.socket, int] = {}
        self._asked: deque[_Pending] = deque()
        self._queued: deque[_Pending] = deque()
        self._connecting: set[_Pending] = set()
        self._relays: set[Relay] = set()
        self._open = 0
        self._left_at = 0.0
        self._paused = False
        self._closed = False
        asking.setblocking(False)
        try:
            for port in ports:
                self._listeners[socket.create_server((HOST, 0), backlog=_BACKLOG)] = port
        except OSError:
            self._close_sockets()
            raise
        for listener in self._listeners:
            listener.setblocking(False)
        self.endpoints = {port: "{}:{}".format(*listener.getsockname()) for listener, port in self._listeners.items()}

    @property
    def served_at(self) -> float:
        """When a connection was last open, by the monotonic clock; 0.0 for never."""
        return time.monotonic() if self._open else self._left_at

    def open(self) -> None:
        """In the loop: begin to accept."""
        self._loop.watch(self._asking.fileno(), READ, self._hear)
        self._resume()

    def close(self) -> None:
        """In the loop: end every connection and listen no more."""
        if self._closed:
            return
        self._closed = True
        for pending in [*self._asked, *self._queued, *self._connecting]:
            self._refuse(pending)
        for relay in list(self._relays):
            relay.close(reset=True)
        for listener in self._listeners:
            self._loop.forget(listener.fileno())
        self._loop.forget(self._asking.fileno())
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._asking.close()

    def _resume(self) -> None:
        self._paused = False
        if not self._closed:
            for listener, port in self._listeners.items():
                self._loop.watch(listener.fileno(), READ, partial(self._accept, listener, port))

    def _pause(self, seconds: float | None) -> None:
        """Leave callers in the listeners' backlogs, until a place comes free or for a while."""
        self._paused = True
        for listener in self._listeners:
            self._loop.forget(listener.fileno())
        if seconds is not None:
            self._loop.later(seconds, self._resume)

    def _accept(self, listener: socket.socket, port: int) -> None:
        if self._closed or self._paused:
            return
        if self._open >= self._limit:
            self._pause(None)
            return
        if not self._places.take():
            self._pause(_PAUSE_S)
            return
        try:
            client, _ = listener.accept()
        except OSError as exc:
            self._places.give_back()
            if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause(_PAUSE_S)
            return
        self._open += 1
        client.setblocking(False)
        pending = _Pending(client, port)
        self._loop.later(_CONNECT_S, lambda: self._refuse(pending))
        self._ask(pending)

    def _ask(self, pending: _Pending) -> None:
        self._queued.append(pending)
        self._ask_queued()

    def _ask_queued(self) -> None:
        while self._queued and len(self._asked) < helper.MAX_ASKED:
            first = self._queued.popleft()
            if first.over:
                continue
            wanted = helper.SOCKET_4 if first.families[0] == socket.AF_INET else helper.SOCKET_6
            try:
                self._asking.send(wanted)
            except OSError:
                # The session's init is gone.
                self._refuse(first)
                continue
            self._asked.append(first)

    def _hear(self) -> None:
        """An answer of the init's, to the oldest question."""
        try:
            answer, ancillary, _, _ = self._asking.recvmsg(16, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            answer, ancillary = b"", []
        target = _received(ancillary)
        if not answer or not self._asked:
            # It is gone, or out of step: there is no more to be had from it.
            if target is not None:
                target.close()
            self.close()
            return
        pending = self._asked.popleft()
        if target is None or pending.over:
            if target is not None:
                target.close()
            self._refuse(pending)
        else:
            self._connect(pending, target)
        self._ask_queued()

    def _connect(self, pending: _Pending, target: socket.socket) -> None:
        family = pending.families.pop(0)
        if target.family != family or target.type != socket.SOCK_STREAM:
            target.close()
            self._refuse(pending)
            return
        target.setblocking(False)
        pending.target = target
        self._connecting.add(pending)
        if target.connect_ex((_ADDRESSES[family], pending.port)) in (0, errno.EINPROGRESS):
            self._loop.watch(target.fileno(), WRITE, lambda: self._connected(pending))
        else:
            self._try_other(pending)

    def _connected(self, pending: _Pending) -> None:
        target = pending.target
        if pending.over or target is None:
            return
        if target.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            self._try_other(pending)
            return
        try:
            target.getpeername()
        except OSError:
            # Woken for nothing.
            return
        self._loop.forget(target.fileno())
        self._connecting.discard(pending)
        pending.over = True
        for end in (pending.client, target):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        relay = Relay(self._loop, pending.client, target, lambda: self._ended(relay))
        self._relays.add(relay)
        relay.start()

    def _try_other(self, pending: _Pending) -> None:
        """Nobody listens at this family's loopback: a server may listen at the other's alone."""
        self._drop_target(pending)
        if pending.families:
            self._ask(pending)
        else:
            self._refuse(pending)

    def _drop_target(self, pending: _Pending) -> None:
        self._connecting.discard(pending)
        if pending.target is not None:
            self._loop.forget(pending.target.fileno())
            pending.target.close()
            pending.target = None

    def _refuse(self, pending: _Pending) -> None:
        if pending.over:
            return
        pending.over = True
        self._drop_target(pending)
        reset_on_close(pending.client)
        pending.client.close()
        self._left()

    def _ended(self, relay: Relay) -> None:
        self._relays.discard(relay)
        self._left()

    def _left(self) -> None:
        self._left_at = time.monotonic()
        self._open -= 1
        self._places.give_back()
        if self._paused:
            self._resume()


def _received(ancillary: list[tuple[int, int, bytes]]) -> socket.socket | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS and len(data) >= 4:
            (fd,) = struct.unpack("i", data[:4])
            try:
                return socket.socket(fileno=fd)
            except OSError:
                # It is no socket.
                os.close(fd)
    return None
