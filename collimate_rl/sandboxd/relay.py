"""One connection to an exposed port: bytes both ways between two sockets, half-closed and reset as they are.

At most CHUNK bytes wait in either direction: a side is not read while the other has not taken what was read before.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from collimate_rl.sandboxd.portloop import READ, WRITE, PortLoop

CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)


class _Flow:
    """One direction. `waiting` is what was read and not yet taken; `over` once nothing more will pass."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.waiting = b""
        self.ended = False
        self.over = False

    def pump(self) -> None:
        """Pass on what can be, without blocking. ConnectionError or another OSError when the source broke off."""
        if self.over:
            return
        if not self.waiting and not self.ended:
            try:
                self.waiting = self.source.recv(CHUNK)
            except BlockingIOError:
                return
            self.ended = not self.waiting
        try:
            if self.waiting:
                self.waiting = self.waiting[self.sink.send(self.waiting) :]
            if self.ended and not self.waiting:
                self.over = True
                self.sink.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            # The sink takes no more; what it still has to say goes the other way.
            self.waiting = b""
            self.over = True


class Relay:
    """Passes bytes between `one` and `other`, both connected, non-blocking and the relay's own, until both are done."""

    def __init__(self, loop: PortLoop, one: socket.socket, other: socket.socket, on_closed: Callable[[], None]) -> None:
        self._loop = loop
        self._sockets = (one, other)
        self._flows = (_Flow(one, other), _Flow(other, one))
        self._on_closed = on_closed
        self._closed = False

    def start(self) -> None:
        """Begin."""
        self._pump()

    def _pump(self) -> None:
        if self._closed:
            return
        try:
            for flow in self._flows:
                flow.pump()
        except OSError:
            self.close(reset=True)
            return
        if all(flow.over for flow in self._flows):
            self.close()
            return
        for end in self._sockets:
            interest = 0
            for flow in self._flows:
                if flow.source is end and not (flow.ended or flow.waiting or flow.over):
                    interest |= READ
                if flow.sink is end and flow.waiting:
                    interest |= WRITE
            self._loop.watch(end.fileno(), interest, self._pump)

    def close(self, *, reset: bool = False) -> None:
        """Close both sides; with `reset` so that neither takes what it got for the whole."""
        if self._closed:
            return
        self._closed = True
        for end in self._sockets:
            self._loop.forget(end.fileno())
            if reset:
                reset_on_close(end)
            end.close()
        self._on_closed()


def reset_on_close(connection: socket.socket) -> None:
    """Have the peer see an error and no end of the stream."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
