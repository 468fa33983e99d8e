"""A pool of kept-alive connections to one daemon, shared by all threads of a process.

The pool is a stack, last in first out, and not one connection per thread: pools of threads come and go, and the
connection used last is the one least likely to have been closed by its peer. Before reuse a connection is peeked
for EOF, and it is dropped after 20 s idle, because an EOF that shows after a whole write is ambiguous and would
turn an exec into an infra error.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Final

from collimate_rl._connection import Clock, Connection, Endpoint
from collimate_rl.errors import AmbiguousError, MalformedAnswer, UnreachableError

MAX_ANSWER_BYTES: Final = 97 * 1024 * 1024
"""An exec's 16 MiB of output, each byte at its widest as a JSON escape, and 1 MiB for the rest."""

IDLE_LIMIT_S: Final = 20.0
MAX_IDLE: Final = 128
_REFUSAL_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    body: bytes


class _Idle:
    """The idle connections of one process, oldest first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stack: deque[Connection] = deque()
        self.generation = 0


def _close_all(by_pid: dict[int, _Idle]) -> None:
    for idle in by_pid.values():
        while idle.stack:
            idle.stack.pop().close()


class HttpPool:
    """`request` sends one request and returns its answer; every failure says by type whether anything was sent."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        clock: Clock = time.monotonic,
        idle_limit_s: float = IDLE_LIMIT_S,
        max_idle: int = MAX_IDLE,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._idle_limit_s = idle_limit_s
        self._max_idle = max_idle
        self._max_answer_bytes = max_answer_bytes
        # Keyed by process: a forked child must neither use its parent's connections nor wait for a lock that a
        # thread which does not exist in the child held at the fork.
        self._by_pid: dict[int, _Idle] = {}
        self._finalizer = weakref.finalize(self, _close_all, self._by_pid)

    def request(self, method: str, path: str, body: bytes | None = None, *, timeout_s: float) -> Answer:
        """Send once. Raises `UnreachableError` (nothing was sent), `AmbiguousError` (sent, no answer) and
        `MalformedAnswer` (sent, and what came is no HTTP answer)."""
        deadline = self._clock() + timeout_s
        generation = self._mine().generation
        while True:
            connection, is_fresh = self._checkout()
            try:
                answer, is_reusable = self._exchange(connection, method, path, body, deadline, timeout_s)
            except UnreachableError:
                connection.close()
                if is_fresh:
                    raise
                # The peer closed an idle connection between the peek and the write: no byte left, so take another.
                continue
            except BaseException:
                connection.close()
                raise
            if is_reusable:
                self._checkin(connection, generation)
            else:
                connection.close()
            return answer

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their request ends. The pool stays usable."""
        idle = self._mine()
        with idle.lock:
            idle.generation += 1
            connections = list(idle.stack)
            idle.stack.clear()
        for connection in connections:
            connection.close()

    def _exchange(
        self, connection: Connection, method: str, path: str, body: bytes | None, deadline: float, timeout_s: float
    ) -> tuple[Answer, bool]:
        is_whole = True
        try:
            connection.write(method, path, body, deadline)
        except OSError as exc:
            if connection.sent == 0:
                raise UnreachableError(f"{self.endpoint}: {method} {path}: nothing could be sent: {exc}") from exc
            if isinstance(exc, TimeoutError):
                raise AmbiguousError(f"{self.endpoint}: {method} {path} was not taken within {timeout_s:g} s") from exc
            # A peer that refuses a large body answers and closes before it has read all of it.
            is_whole = False
            deadline = min(deadline, self._clock() + _REFUSAL_WAIT_S)
        try:
            status, content, is_reusable = connection.read(self._max_answer_bytes, deadline)
        except TimeoutError as exc:
            raise AmbiguousError(
                f"{self.endpoint}: {method} {path} was sent, and not answered in whole within {timeout_s:g} s"
            ) from exc
        except (OSError, http.client.IncompleteRead) as exc:
            raise AmbiguousError(
                f"{self.endpoint}: {method} {path} was sent, and the connection broke before the answer was whole: "
                f"{str(exc) or type(exc).__name__}"
            ) from exc
        except http.client.HTTPException as exc:
            raise MalformedAnswer(
                f"{self.endpoint}: {method} {path}: the answer is not HTTP as this client takes it "
                f"({type(exc).__name__}: {str(exc)[:200]}); is this the address of a daemon?"
            ) from exc
        return Answer(status=status, body=content), is_reusable and is_whole

    def _mine(self) -> _Idle:
        pid = os.getpid()
        idle = self._by_pid.get(pid)
        if idle is None:
            idle = self._by_pid.setdefault(pid, _Idle())
            for other in [key for key in self._by_pid if key != pid]:
                inherited = self._by_pid.pop(other, None)
                if inherited is not None:
                    _close_all({other: inherited})
        return idle

    def _checkout(self) -> tuple[Connection, bool]:
        idle = self._mine()
        while True:
            with idle.lock:
                connection = idle.stack.pop() if idle.stack else None
            if connection is None:
                break
            if self._clock() - connection.idle_since <= self._idle_limit_s and not connection.is_stale():
                return connection, False
            connection.close()
        connection = Connection(self.endpoint, self._clock)
        try:
            connection.connect()
        except (OSError, UnicodeError) as exc:  # UnicodeError: a host name that no address lookup takes
            raise UnreachableError(
                f"{self.endpoint}: cannot connect: {exc}; is the daemon running, and is this its address?"
            ) from exc
        return connection, True

    def _checkin(self, connection: Connection, generation: int) -> None:
        idle = self._mine()
        now = self._clock()
        connection.idle_since = now
        expired: list[Connection] = []
        with idle.lock:
            if idle.generation == generation:
                idle.stack.append(connection)
            else:
                expired.append(connection)
            while idle.stack and (
                len(idle.stack) > self._max_idle or now - idle.stack[0].idle_since > self._idle_limit_s
            ):
                expired.append(idle.stack.popleft())
        for old in expired:
            old.close()
