"""The standard library's transport: a pool of kept-alive connections to one server, shared by all threads.

The pool is a stack, last in first out, and not one connection per thread: pools of threads come and go, and the
connection used last is the one least likely to have been closed by its peer. Before reuse a connection is peeked
for EOF, and it is dropped after 20 s idle, because an EOF that shows after a whole write is ambiguous and would
turn an exec into an infra error.
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Final

from collimate_rl._connection import Connection, Endpoint
from collimate_rl._sockets import ClientCert, Clock, client_context
from collimate_rl._transport import Answer
from collimate_rl.errors import AmbiguousError, MalformedAnswer, UnreachableError

MAX_ANSWER_BYTES: Final = 97 * 1024 * 1024
"""An exec's 16 MiB of output, each byte at its widest as a JSON escape, and 1 MiB for the rest."""

IDLE_LIMIT_S: Final = 20.0
MAX_IDLE: Final = 128
_REFUSAL_WAIT_S = 5.0


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
    """`request` sends one request and returns its answer; every failure says by type whether anything was sent.

    For https: `ssl_context`, else one that verifies against `ca_file`, `$SSL_CERT_FILE` or the system's authorities,
    and shows `client_cert`. Raises `ValueError` for files that cannot be read.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        ca_file: str | None = None,
        client_cert: ClientCert | None = None,
        ssl_context: ssl.SSLContext | None = None,
        clock: Clock = time.monotonic,
        idle_limit_s: float = IDLE_LIMIT_S,
        max_idle: int = MAX_IDLE,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self.endpoint = endpoint
        self._tls: ssl.SSLContext | None = None
        if endpoint.is_tls:
            self._tls = ssl_context if ssl_context is not None else client_context(ca_file, client_cert)
        elif ca_file is not None or client_cert is not None or ssl_context is not None:
            raise ValueError(f"ca_file, client_cert and ssl_context are for https, and the address is {endpoint}")
        self._clock = clock
        self._idle_limit_s = idle_limit_s
        self._max_idle = max_idle
        self._max_answer_bytes = max_answer_bytes
        # Keyed by process: a forked child must neither use its parent's connections nor wait for a lock that a
        # thread which does not exist in the child held at the fork.
        self._by_pid: dict[int, _Idle] = {}
        self._finalizer = weakref.finalize(self, _close_all, self._by_pid)

    @property
    def address(self) -> str:
        return str(self.endpoint)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Answer:
        """Send once. Raises `UnreachableError` (nothing was taken), `AmbiguousError` (sent, no answer) and
        `MalformedAnswer` (sent, and what came is no HTTP answer)."""
        deadline = self._clock() + timeout_s
        generation = self._mine().generation
        while True:
            connection, is_fresh = self._checkout(deadline)
            try:
                is_whole = self._write(connection, method, path, body, headers or {}, deadline)
                answer, is_reusable = self._read(connection, is_fresh, is_whole, method, path, deadline)
            except UnreachableError:
                connection.close()
                if is_fresh:
                    raise
                # The peer closed an idle connection between the peek and the write: the request never left whole, so
                # nobody can have acted on it. Take another.
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

    def _write(
        self,
        connection: Connection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: float,
    ) -> bool:
        """True when the whole request left; False when the peer stopped taking it on the way."""
        try:
            connection.write(method, path, body, headers, deadline)
        except OSError as exc:
            if not connection.may_have_sent:
                raise UnreachableError(f"{self.endpoint}: {method} {path}: nothing could be sent: {exc}") from exc
            if isinstance(exc, TimeoutError):
                raise AmbiguousError(f"{self.endpoint}: {method} {path} was not taken before its deadline") from exc
            return False
        return True

    def _read(
        self, connection: Connection, is_fresh: bool, is_whole: bool, method: str, path: str, deadline: float
    ) -> tuple[Answer, bool]:
        if not is_whole:
            # A peer that refuses a large body answers and closes before it has read all of it.
            deadline = min(deadline, self._clock() + _REFUSAL_WAIT_S)
        try:
            answer, is_reusable = connection.read(self._max_answer_bytes, deadline)
        except TimeoutError as exc:
            raise AmbiguousError(
                f"{self.endpoint}: {method} {path} was sent, and not answered in whole before its deadline"
            ) from exc
        except (OSError, http.client.IncompleteRead) as exc:
            what = f"{method} {path} was sent, and the connection broke before the answer was whole"
            if not is_whole and not is_fresh:
                raise UnreachableError(f"{self.endpoint}: {method} {path}: an idle connection had closed") from exc
            raise AmbiguousError(f"{self.endpoint}: {what}: {str(exc) or type(exc).__name__}") from exc
        except (http.client.HTTPException, ValueError) as exc:  # ValueError: a chunk of negative length, for one
            raise MalformedAnswer(
                f"{self.endpoint}: {method} {path}: the answer is not HTTP as this client takes it "
                f"({type(exc).__name__}: {str(exc)[:200]}); is this the right address?"
            ) from exc
        return answer, is_reusable and is_whole

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

    def _checkout(self, deadline: float) -> tuple[Connection, bool]:
        idle = self._mine()
        while True:
            with idle.lock:
                connection = idle.stack.pop() if idle.stack else None
            if connection is None:
                break
            if self._clock() - connection.idle_since <= self._idle_limit_s and not connection.is_stale():
                return connection, False
            connection.close()
        connection = Connection(self.endpoint, self._clock, self._tls)
        try:
            connection.connect_within(deadline - self._clock())
        except ssl.SSLError as exc:
            raise UnreachableError(
                f"{self.endpoint}: no TLS connection: {exc}; your own authority goes into ca_file or SSL_CERT_FILE"
            ) from exc
        except (OSError, UnicodeError) as exc:  # UnicodeError: a host name that no address lookup takes
            raise UnreachableError(
                f"{self.endpoint}: cannot connect: {exc}; is the server running, and is this its address?"
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
