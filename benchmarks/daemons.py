"""A sandbox daemon of a given isolation, on a unix socket."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from collimate_rl import CollimateClient
from collimate_rl.cli.stack import start_daemon, wait_for_daemon


class Daemon:
    """Context manager: `client` speaks to it."""

    def __init__(self, socket: Path, isolation: str = "namespaces") -> None:
        self._socket = socket
        self._isolation = isolation
        self.client = CollimateClient(unix_socket=socket)

    def __enter__(self) -> Daemon:
        self._child = start_daemon(self._socket, self._socket.with_suffix(".log"), self._isolation)
        try:
            wait_for_daemon(self._child, self._socket)
        except BaseException:
            self._child.stop()
            raise
        return self

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        self._child.stop()
