"""Pairs of connected sockets, made at the least cost: every exec needs two."""

from __future__ import annotations

import _socket
import socket
from typing import cast


def stream_pair() -> tuple[socket.socket, socket.socket]:
    """As `socket.socketpair()`, which makes two objects of each end and asks the kernel for the address of both."""
    return cast("tuple[socket.socket, socket.socket]", _socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM, 0))
