"""A helper process of the zygote that keeps the processes 1 of coming forks at hand.

It is a process of its own because it ignores SIGCHLD, where the zygote must not: the zygote waits for its forks. It
ignores all else, too, and so do the processes 1, to which any exec may send a signal.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from typing import NoReturn

from . import syscalls
from .channel import pass_descriptor, receive_packet

AHEAD = 4
"""How many are made before they are asked for."""
_WAIT_S = 10


class PlaceholderSource:
    """The zygote's end: `take` gives a pidfd and orders the next."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._orders.close()
            _serve(theirs)
        theirs.close()
        self._orders.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _WAIT_S, 0))
        for _ in range(AHEAD):
            self._orders.send(b"+")

    def take(self) -> int:
        """The pidfd of a process 1 in a fresh pid namespace. OSError when there is none."""
        try:
            answer, pidfd = receive_packet(self._orders, 256)
        except OSError:
            answer, pidfd = b"", -1
        if not answer:
            # Its maker is gone or stuck: the daemon replaces a zygote that ends, and no other would be of use.
            os._exit(1)
        self._orders.send(b"+")
        if pidfd < 0:
            raise OSError("no process 1 for the fork: " + answer.decode())
        return pidfd


def _serve(orders: socket.socket) -> NoReturn:
    # A handler would let its signal through to a process 1, and run in the memory that they all share.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, orders.fileno())
    os.closerange(orders.fileno() + 1, 64)
    placeholders = syscalls.Placeholders()
    try:
        while orders.recv(1):
            try:
                pidfd = placeholders.make()
            except OSError as exc:
                orders.send(str(exc).encode() or b"?")
                continue
            pass_descriptor(orders, b"1", pidfd)
            os.close(pidfd)
    finally:
        os._exit(0)
