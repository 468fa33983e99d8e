"""One daemon: a backend, the service over it, and the sockets it listens on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from collimate_rl.sandboxd.backend import Backend
from collimate_rl.sandboxd.config import DaemonConfig
from collimate_rl.sandboxd.http_front import HttpFront
from collimate_rl.sandboxd.listening import listen
from collimate_rl.sandboxd.namespaces import NamespaceBackend
from collimate_rl.sandboxd.plain import PlainBackend
from collimate_rl.sandboxd.service import EndpointsFn, Service

log = logging.getLogger(__name__)


class Daemon:
    """Built from a DaemonConfig; `start` serves, `drain` lets the running execs end, `close` leaves nothing behind."""

    def __init__(
        self, config: DaemonConfig, *, endpoints_fn: EndpointsFn | None = None, drop_session_id: bool = False
    ) -> None:
        self.config = config
        self.host_port: tuple[str, int] | None = None
        """Where it listens on TCP, once started."""
        self._endpoints_fn = endpoints_fn
        self._drop_session_id = drop_session_id
        self._undo: list[Callable[[], Any]] = []
        self._service: Service | None = None
        self._front: HttpFront | None = None

    def start(self) -> None:
        """Warm up and serve. IsolationUnavailable, SocketTaken or OSError when that can't be; nothing is left then."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        config = self.config
        listeners, self.host_port = listen(
            config.unix_socket, config.host, config.port, self._undo, mode=config.socket_mode
        )
        backend = make_backend(self.config)
        self._undo.append(self._finish)
        self._undo.append(backend.close)
        backend.start()
        self._service = Service(
            backend,
            self.config.templates,
            self.config.limits,
            endpoints_fn=self._endpoints_fn,
            drop_session_id=self._drop_session_id,
        )
        self._undo.append(self._service.close)
        limits = self.config.limits
        front = self._front = HttpFront(
            self._service,
            listeners,
            keepalive_s=limits.keepalive_s,
            max_connections=limits.max_connections,
            codes=backend.codes,
        )
        front.start()
        self._undo.append(front.stop_accepting)

    def drain(self) -> bool:
        """Refuse new work, wait for what runs; False when it did not end within the drain limit."""
        return self._service is None or self._service.drain()

    def _finish(self) -> None:
        if self._front is not None:
            self._front.finish()

    def close(self) -> None:
        """End everything, last begun first."""
        if self._service is not None:
            self._service.refuse_new()
        while self._undo:
            self._undo.pop()()


def make_backend(config: DaemonConfig) -> Backend:
    """The backend of the configured isolation."""
    if config.isolation == "none":
        return PlainBackend(config.templates, config.limits)
    return NamespaceBackend(config.templates, config.limits, zygotes=config.zygotes)
