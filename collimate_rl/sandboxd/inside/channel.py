"""Frames between the daemon and the init of a fork: four bytes of length, a JSON header, then raw payload bytes.

Descriptors ride on a frame's first byte. Both ends use this module.
"""

from __future__ import annotations

import array
import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
_MAX_HEADER = 4 << 20
_MAX_FDS = 8


class ChannelClosed(Exception):
    """The other end is gone."""


def send_frame(
    channel: socket.socket, header: dict[str, Any], fds: tuple[int, ...] = (), payload: tuple[bytes, ...] = ()
) -> None:
    """Send one frame; raises OSError when the other end is gone or does not take it in time."""
    body = json.dumps(header).encode()
    data = b"".join((_LENGTH.pack(len(body)), body, *payload))
    if fds:
        sent = channel.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        if sent < len(data):
            channel.sendall(memoryview(data)[sent:])
    else:
        channel.sendall(data)


def receive_frame(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next header and the descriptors that came with it; the payload is still to be read.

    Raises ChannelClosed at the end of the stream.
    """
    start, ancillary, _, _ = channel.recvmsg(4, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_WAITALL)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
            fds.extend(received)
    if len(start) < 4:
        raise ChannelClosed
    (length,) = _LENGTH.unpack(start)
    if length > _MAX_HEADER:
        raise ValueError(f"a frame header of {length} bytes")
    return json.loads(receive_exactly(channel, length)), fds


def receive_exactly(channel: socket.socket, length: int) -> bytes:
    """`length` bytes, or ChannelClosed."""
    data = channel.recv(length, socket.MSG_WAITALL)
    if len(data) < length:
        raise ChannelClosed
    return data
