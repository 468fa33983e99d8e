"""Who is connected, and who has to go when there is no more room."""

from __future__ import annotations

import socket
import threading


class ConnectionTable:
    """At most `max_connections`, each with a thread. One that has no request in hand is *waiting*.

    When there is no room, the one that has waited longest is ended for the newcomer: silent and dribbling peers,
    however many, keep nobody out. A connection with a request in hand is never ended here.
    """

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._lock = threading.Lock()
        self._threads: dict[socket.socket, threading.Thread] = {}
        self._waiting: dict[socket.socket, None] = {}
        self._told_to_go: set[socket.socket] = set()
        self._closing = False

    @property
    def closing(self) -> bool:
        """Whether `close` was called."""
        return self._closing

    def admit(self, connection: socket.socket, thread: threading.Thread) -> bool:
        """Enter it as waiting; False when all others have requests in hand, or the table is closing."""
        with self._lock:
            if self._closing:
                return False
            if len(self._threads) - len(self._told_to_go) >= self._max and not self._make_room():
                return False
            self._threads[connection] = thread
            self._waiting[connection] = None
            return True

    def make_room(self) -> bool:
        """End the one that has waited longest; False when none waits."""
        with self._lock:
            return self._make_room()

    def _make_room(self) -> bool:
        if not self._waiting:
            return False
        # A dict keeps the order of insertion, and who waits anew is inserted anew.
        longest = next(iter(self._waiting))
        del self._waiting[longest]
        self._told_to_go.add(longest)
        _shut(longest)
        return True

    def begin_request(self, connection: socket.socket) -> bool:
        """It has a request in hand now. False when it was told to go: then the request must not be begun."""
        with self._lock:
            self._waiting.pop(connection, None)
            return connection not in self._told_to_go

    def wait_again(self, connection: socket.socket) -> bool:
        """Its request is answered. False when the table is closing, and it should go."""
        with self._lock:
            if self._closing:
                return False
            self._waiting[connection] = None
            return True

    def remove(self, connection: socket.socket) -> None:
        """It has ended, or never began."""
        with self._lock:
            self._threads.pop(connection, None)
            self._waiting.pop(connection, None)
            self._told_to_go.discard(connection)

    def close(self) -> None:
        """Admit nobody any more, and end those that wait."""
        with self._lock:
            self._closing = True
            while self._make_room():
                pass

    def join(self, timeout_s: float) -> None:
        """Wait for each thread, up to so many seconds."""
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(timeout_s)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Its peer was faster.
        pass
