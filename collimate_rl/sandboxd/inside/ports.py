"""A session's end of its exposed ports: sockets of its own network namespace, handed to the daemon unconnected.

A socket belongs to the network namespace in which it was made, whoever connects it. So the daemon connects it from
outside, with time limits of its own, and nothing here ever waits. One packet asks, one answers, in order. It runs in
the init of a session, which its candidates can neither signal, trace nor read, and no exec gets its descriptors.
"""

from __future__ import annotations

import socket
import struct

from .channel import pass_descriptor

MAX_ASKED = 16
"""How many questions may be open at once: their answers fit the channel's buffer, so that answering never blocks."""
SOCKET_4, SOCKET_6, LISTENING = b"4", b"6", b"?"
HERE, MISSING = b"+", b"-"
_LISTEN = "0A"
_ANY_4 = ("00000000", "0100007F")
_ANY_6 = ("0" * 32, "0" * 24 + "01000000")
_MAPPED = "0" * 16 + "FFFF0000"


class PortHelper:
    """Answers on `channel`, a packet socket: SOCKET_4, SOCKET_6, or LISTENING and ports of 16 bits each.

    A socket comes with HERE; LISTENING is answered by a byte per port, 1 for one that a server listens on.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        channel.setblocking(False)

    def answer(self) -> bool:
        """Answer one packet; False when the daemon closed its end."""
        try:
            asked = self._channel.recv(64)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not asked:
            return False
        try:
            if asked[:1] == LISTENING:
                self._tell_listening(asked[1:])
            else:
                self._hand_over(socket.AF_INET6 if asked == SOCKET_6 else socket.AF_INET)
        except OSError:
            # The daemon is gone: its end of the channel will say so.
            pass
        return True

    def _hand_over(self, family: int) -> None:
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            self._channel.send(MISSING)
            return
        with made:
            try:
                pass_descriptor(self._channel, HERE, made.fileno())
            except OSError:
                # Too many descriptors are in flight for now.
                self._channel.send(MISSING)

    def _tell_listening(self, packed: bytes) -> None:
        heard = listening_ports(_read("/proc/self/net/tcp"), _read("/proc/self/net/tcp6"))
        ports = struct.unpack(">%dH" % (len(packed) // 2), packed)
        self._channel.send(bytes(port in heard for port in ports))


def listening_ports(tcp: str, tcp6: str) -> set[int]:
    """Ports that a server listens on at an address that loopback reaches, by the kernel's two tables."""
    heard = set()
    for line in (tcp + tcp6).splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[3] != _LISTEN:
            continue
        address, _, port = fields[1].partition(":")
        if address in _ANY_4 or address in _ANY_6 or (address[:24] == _MAPPED and address[24:] in _ANY_4):
            heard.add(int(port, 16))
    return heard


def _read(path: str) -> str:
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        # No such protocol in this kernel.
        return ""
