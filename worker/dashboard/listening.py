"""Where the dashboard listens: on this machine alone, unless there is a token."""

from __future__ import annotations

import ipaddress
import socket

BACKLOG = 128


def listen(host: str, port: int, *, guarded: bool) -> socket.socket:
    """A listening socket on the first address that `host` resolves to; port 0 takes a free one.

    guarded -- there is a token. Without one `ValueError` for an address that others reach: what is bound is the address
    that was looked at, so that a name can't mean this machine first and another address afterwards.
    `ValueError` also when the host names nothing, or the port is taken or not ours to take.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--host {host!r} names no address of this machine: {error}") from error
    family, kind, protocol, _, address = found[0]
    if not guarded and not is_loopback(str(address[0])):
        raise ValueError(
            f"the dashboard shows candidates' code and output, and refuses to listen on {address[0]} without a token: "
            "set COLLIMATE_DASHBOARD_TOKEN or --token-file (`openssl rand -hex 24` makes one), or leave --host at "
            "127.0.0.1"
        )
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ValueError(f"the dashboard cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listening


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address. A name, or anything that is no address, is none."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def address_of(listening: socket.socket) -> str:
    """`127.0.0.1:8700`, `[::1]:8700`."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def names_this_machine(host_header: str) -> bool:
    """Whether a Host header names this machine from within: a page of another name, whose address was made to point
    here, is not to read what is shown."""
    host = host_header.strip().lower()
    if host.startswith("["):
        name, closed, rest = host[1:].partition("]")
        return bool(closed) and is_loopback(name) and (rest == "" or _is_port(rest))
    name, colon, port = host.partition(":")
    return (name == "localhost" or is_loopback(name)) and (not colon or _is_port(f":{port}"))


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdigit()
