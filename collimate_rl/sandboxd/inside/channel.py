"""Frames between the daemon and a fork: four bytes of length, a header, then raw payload bytes.

Descriptors ride on a frame's first byte. Requests (to a fork) have marshalled headers, since a fresh fork pays for
every page that it touches and JSON touches many; what comes back to the daemon is JSON, which can do no harm whoever
wrote it. Both ends use this module.
"""

from __future__ import annotations

import array
import json
import marshal
import select
import socket
import struct
from typing import Any, Dict, Optional, Tuple

_LENGTH = struct.Struct(">I")
_MAX_HEADER = 4 << 20
_MAX_FDS = 8
_MARSHAL_FORMAT = 2
"""The one that every supported Python reads."""


class ChannelClosed(Exception):
    """The other end is gone."""


def send_request(
    channel: socket.socket, header: dict[str, Any], fds: tuple[int, ...] = (), payload: tuple[bytes, ...] = ()
) -> None:
    """To a fork. OSError when the other end is gone or does not take it in time."""
    _send(channel, marshal.dumps(header, _MARSHAL_FORMAT), fds, payload)


def receive_request(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """In a fork: the next header and its descriptors; the payload is still to be read. ChannelClosed at the end."""
    body, fds = _receive(channel)
    header: dict[str, Any] = marshal.loads(body)
    return header, fds


def send_report(
    channel: socket.socket, header: dict[str, Any], fds: tuple[int, ...] = (), payload: tuple[bytes, ...] = ()
) -> None:
    """To the daemon."""
    _send(channel, json.dumps(header).encode(), fds, payload)


def receive_report(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """In the daemon: the next header and its descriptors; a payload is still to be read. ChannelClosed at the end."""
    body, fds = _receive(channel)
    return _read_report(body), fds


def report_in(begun: bytes) -> Optional[Tuple[Dict[str, Any], int]]:
    """The report that these bytes begin with, and where it ends; None as long as some of it is missing."""
    if len(begun) < _LENGTH.size:
        return None
    end = _LENGTH.size + _length(begun)
    return (_read_report(begun[_LENGTH.size : end]), end) if len(begun) >= end else None


def _read_report(body: bytes) -> Dict[str, Any]:
    header = json.loads(body.decode())
    if not isinstance(header, dict):
        raise ChannelClosed("what came is no report")
    return header


def send_made_report(channel: socket.socket, header: bytes, fds: tuple[int, ...] = ()) -> None:
    """To the daemon, from where making JSON would cost more than all else: `header` is JSON already."""
    _send(channel, header, fds, ())


def pass_descriptor(channel: socket.socket, word: bytes, fd: int) -> None:
    """Send a packet of its own, with one descriptor."""
    channel.sendmsg([word], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def receive_packet(channel: socket.socket, most: int) -> tuple[bytes, int]:
    """A packet and the descriptor that came with it: -1 for none, as where this process had no room for it. Nothing at
    all is the end."""
    word, ancillary, _, _ = channel.recvmsg(most, socket.CMSG_SPACE(4))
    return word, struct.unpack("i", ancillary[0][2][:4])[0] if ancillary else -1


def bound_sends(channel: socket.socket, seconds: int) -> None:
    """An other end that takes no bytes for so long is broken: sending to it is an OSError then."""
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, 0))


def wait_readable(channel: socket.socket, *, timeout_s: float) -> bool:
    """Whether there is something to read, or the other end is gone, within so many seconds.

    By poll: select knows no descriptor above 1023, and a daemon with many sessions has higher ones.
    """
    return is_readable(channel.fileno(), timeout_s=timeout_s)


def is_readable(fd: int, *, timeout_s: float = 0) -> bool:
    """Whether a descriptor, or a pidfd whose process has ended, is to be read within so many seconds."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _send(channel: socket.socket, body: bytes, fds: tuple[int, ...], payload: tuple[bytes, ...]) -> None:
    data = b"".join((_LENGTH.pack(len(body)), body, *payload))
    if fds:
        sent = channel.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        if sent < len(data):
            channel.sendall(memoryview(data)[sent:])
    else:
        channel.sendall(data)


def _length(begun: bytes) -> int:
    (length,) = _LENGTH.unpack_from(begun)
    if length > _MAX_HEADER:
        raise ValueError(f"a frame header of {length} bytes")
    return int(length)


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    start, ancillary, _, _ = channel.recvmsg(4, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_WAITALL)
    fds: list[int] = []
    for _, kind, data in ancillary:
        if kind == socket.SCM_RIGHTS:
            fds.extend(struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4]))
    if len(start) < 4:
        raise ChannelClosed
    length = _length(start)
    body = channel.recv(length, socket.MSG_WAITALL)
    if len(body) < length:
        raise ChannelClosed
    return body, fds
