"""The networks that one-shot forks live in: each is fresh, or can't be told from a fresh one.

Making a network namespace, and taking it apart, costs more than all the others of a fork together, and most candidates
use none. One in which nothing lives and nothing was counted goes to a later fork; any other is given up.
"""

from __future__ import annotations

import os
from typing import List, Tuple

from . import syscalls
from .channel import is_readable

_KEPT = 32
"""Networks at most that wait for their next fork."""
_READ = 1 << 16
_TOLD = ("dev", "snmp", "netstat", "snmp6", "rt6_stats", "fib_triestat")
"""The files of /proc/net that tell what an exec, which has no right to set anything up, leaves behind in a network:
packets and failed tries (per device, IPv4, TCP and UDP, IPv6), routes that were looked up (those of IPv4 only where the
kernel was built with CONFIG_IP_FIB_TRIE_STATS)."""
_FLUSH = "/proc/sys/net/ipv4/route/flush"
"""Written to, it has the kernel look up every route anew (net/ipv4/route.c). One that it remembers tells when it was
first asked for, by whomever."""
_UNUSED = b"sockets: used 0\n"


class Networks:
    """Those of one zygote, which is in one of its own but for the moment of a clone."""

    def __init__(self) -> None:
        self._own = _here()
        self._left: List[Tuple[int, int]] = []
        """networks whose forks have ended, with the pidfd of their process 1: something may live there yet"""
        first = self._enter_fresh()
        self._fresh = _state()
        self.leave()
        os.close(first)

    def enter(self) -> int:
        """Be in a network that is as good as fresh, its loopback up; a descriptor of it. OSError when there is none."""
        try:
            for left in tuple(self._left):
                network, first = left
                if not is_readable(first):
                    continue
                # All that lived there is dead: the end of a process 1 comes after that of all behind it.
                self._left.remove(left)
                os.close(first)
                if self._enter_if_fresh(network):
                    return network
            return self._enter_fresh()
        except OSError:
            self.leave()
            raise

    def leave(self) -> None:
        """Be in the zygote's own network again."""
        try:
            syscalls.setns(self._own, syscalls.CLONE_NEWNET)
        except OSError:
            # A socket that it makes now would be in a candidate's network. The daemon replaces a zygote that ends.
            os._exit(1)

    def give_back(self, network: int, first: int) -> None:
        """What a fork that has ended was in. What it left behind `first`, its process 1, may live for a moment yet."""
        if len(self._left) < _KEPT:
            self._left.append((network, first))
        else:
            os.close(network)
            os.close(first)

    def _enter_if_fresh(self, network: int) -> bool:
        fresh = False
        try:
            syscalls.setns(network, syscalls.CLONE_NEWNET)
            fresh = _state() == self._fresh and _forget_routes()
        finally:
            if not fresh:
                os.close(network)
        return fresh

    @staticmethod
    def _enter_fresh() -> int:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        syscalls.bring_loopback_up()
        return _here()


def _state() -> List[bytes]:
    """What there is to be seen of the network of this process, first whether it holds no socket."""
    return [_read("sockstat", len(_UNUSED)), *[_read(name, _READ) for name in _TOLD]]


def _forget_routes() -> bool:
    """False where that can't be done."""
    try:
        fd = os.open(_FLUSH, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.write(fd, b"1") == 1
    finally:
        os.close(fd)


def _read(name: str, most: int) -> bytes:
    """A file of /proc/net; nothing where the kernel has none."""
    try:
        fd = os.open("/proc/self/net/" + name, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


def _here() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY)
