"""The sockets that a server of this package listens on: a unix socket's file, a TCP port, or both."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from typing import Any

_BACKLOG = 512


class SocketTaken(RuntimeError):
    """Another daemon serves on this socket already."""


def listen(
    unix_socket: str | None, host: str | None, port: int, undo: list[Callable[[], Any]], *, mode: int = 0o600
) -> tuple[list[socket.socket], tuple[str, int] | None]:
    """The listening sockets, and where the TCP one listens. What ends each is added to `undo` at once, so that nothing
    stays of a start that fails half way. `mode` is the unix socket's: whoever may write to it may connect. SocketTaken
    or OSError."""
    listeners, host_port = [], None
    if unix_socket is not None:
        listener = _listen_unix(unix_socket, mode)
        undo += [listener.close, lambda: _unlink(unix_socket)]
        listeners.append(listener)
    if host is not None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        undo.append(listener.close)
        host_port = listener.getsockname()[:2]
        listeners.append(listener)
    return listeners, host_port


def _listen_unix(path: str, mode: int) -> socket.socket:
    """Listen at `path`. A socket that nobody serves any more is replaced; SocketTaken when somebody does."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            _remove_stale(path)
        listener.bind(path)
        # Before it listens: until then nobody can connect, whatever the mask made of its mode.
        os.chmod(path, mode)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise SocketTaken(f"{path} exists and is no socket: remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            _unlink(path)
        else:
            raise SocketTaken(f"another daemon serves on {path}: stop it, or choose another path")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        # Somebody cleaned up before us.
        pass
