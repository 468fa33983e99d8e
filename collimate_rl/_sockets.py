"""Sockets whose reads end at one absolute deadline, plain and TLS, and how they are opened.

A socket timeout alone lets a peer that drips a byte per second hold its caller for ever.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, Final

Clock = Callable[[], float]

CONNECT_TIMEOUT_S: Final = 10.0
_LONGEST_WAIT_S: Final = 1e6  # what a socket timeout can hold on every platform

ClientCert = str | tuple[str, str]
"""A PEM file with certificate and key, or one of each."""


class _Deadline(socket.socket):
    clock: Clock
    deadline: float | None = None

    def wait_at_most_until(self, deadline: float, clock: Clock) -> None:
        self.clock = clock
        self.deadline = deadline

    def arm(self) -> None:
        """Give the next read or write what is left. Raises `TimeoutError` when nothing is."""
        if self.deadline is None:
            return
        left = self.deadline - self.clock()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self.settimeout(min(left, _LONGEST_WAIT_S))

    def send(self, *args: Any, **kwargs: Any) -> int:
        self.arm()
        return super().send(*args, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> bytes:
        self.arm()
        return super().recv(*args, **kwargs)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.arm()
        return super().recv_into(*args, **kwargs)


class DeadlineSocket(_Deadline):
    """A plain socket with a deadline."""


class DeadlineTlsSocket(_Deadline, ssl.SSLSocket):
    """A TLS socket with a deadline; what a context with `sslsocket_class` set to it makes."""


def client_context(ca_file: str | None = None, client_cert: ClientCert | None = None) -> ssl.SSLContext:
    """A context that verifies its peer: against `ca_file`, else `$SSL_CERT_FILE`, `$SSL_CERT_DIR` or the system's.

    Raises `ValueError` for files that cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise ValueError(f"ca_file is no readable PEM file: {ca_file!r}: {exc}") from exc
    if client_cert is not None:
        chain, key = (client_cert, None) if isinstance(client_cert, str) else client_cert
        try:
            context.load_cert_chain(chain, key)
        except OSError as exc:
            raise ValueError(f"client_cert is no readable certificate with its key: {client_cert!r}: {exc}") from exc
    context.set_alpn_protocols(["http/1.1"])
    return context


def open_unix(path: str | os.PathLike[str]) -> DeadlineSocket:
    """A connected AF_UNIX socket, in at most `CONNECT_TIMEOUT_S`. Raises `OSError`."""
    sock = DeadlineSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # In non-blocking mode a full backlog is EAGAIN at once; in blocking mode the kernel waits for room, and
        # SO_SNDTIMEO bounds that wait.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(CONNECT_TIMEOUT_S), 0))
        sock.connect(os.fspath(path))
    except BaseException:
        sock.close()
        raise
    return sock


def open_tcp(
    host: str, port: int, *, tls: ssl.SSLContext | None = None, wait_s: float = CONNECT_TIMEOUT_S
) -> DeadlineSocket | DeadlineTlsSocket:
    """Connected to the first address of `host` that takes it, each tried for `wait_s`, and through the TLS handshake.

    Raises `OSError`, and `UnicodeError` for a name that no lookup takes.
    """
    error: OSError | None = None
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = DeadlineSocket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(wait_s)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock if tls is None else _secured(sock, host, tls)
        except OSError as exc:
            sock.close()
            error = exc  # the next address of the same name may do
        except BaseException:
            sock.close()
            raise
    raise error or OSError(f"no address for {host}")


def _secured(sock: DeadlineSocket, host: str, tls: ssl.SSLContext) -> DeadlineTlsSocket:
    tls.sslsocket_class = DeadlineTlsSocket  # without a deadline it behaves as its base class does
    secured = tls.wrap_socket(sock, server_hostname=host)
    assert isinstance(secured, DeadlineTlsSocket)
    return secured
