"""The daemon's settings, checked when they are built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from collimate_rl.sandboxd.templates import Template as Template
from collimate_rl.sandboxd.templates import check_template_name as check_template_name

MIB = 1 << 20
DEFAULT_CATALOG = ("py", "python", "dkr-python311")
"""Names under which one and the same warm interpreter is offered when no template is named."""
ISOLATIONS = ("namespaces", "none")
SOCKET_MODES = {"600": 0o600, "660": 0o660, "666": 0o666}
"""Who may connect to the unix socket: the daemon's own user, its group as well, anybody who reaches its folder."""


def _default_catalog() -> Mapping[str, Template]:
    template = Template()
    return dict.fromkeys(DEFAULT_CATALOG, template)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the daemon; times in seconds, sizes in bytes. ValueError when one is off."""

    max_inflight: int = field(default_factory=lambda: 2 * cores())
    max_sessions: int = 1024
    admission_wait_s: float = 20.0
    idle_limit_s: float = 900.0
    age_limit_s: float = 6 * 3600.0
    drain_limit_s: float = 300.0
    output_bytes: int = 16 * MIB
    composed_bytes: int = 128 * 1024
    bringup_timeout_s: float = 10.0
    kill_timeout_s: float = 10.0
    keepalive_s: float = 120.0
    max_connections: int = 4096
    session_port_connections: int = 256
    port_connections: int = 4096

    def __post_init__(self) -> None:
        for name in (
            "max_inflight",
            "max_sessions",
            "max_connections",
            "session_port_connections",
            "port_connections",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("admission_wait_s", "idle_limit_s", "age_limit_s", "drain_limit_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")


@dataclass(frozen=True, kw_only=True)
class DaemonConfig:
    """Everything that one daemon needs to know: where it listens, what it offers, how it isolates."""

    host: str | None = None
    port: int = 0
    unix_socket: str | None = None
    socket_mode: int = 0o600
    isolation: str = "namespaces"
    templates: Mapping[str, Template] = field(default_factory=_default_catalog)
    limits: Limits = field(default_factory=Limits)
    zygotes: int = field(default_factory=lambda: cores())

    def __post_init__(self) -> None:
        if self.host is None and self.unix_socket is None:
            raise ValueError("a daemon needs a unix socket or a host to listen on")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"the port must be between 0 and 65535, not {self.port}")
        if self.unix_socket is not None and len(os.fsencode(self.unix_socket)) > 107:
            raise ValueError(
                f"the socket path is {len(os.fsencode(self.unix_socket))} bytes long and AF_UNIX ends at 107: "
                f"choose a shorter folder than {os.path.dirname(self.unix_socket)!r}"
            )
        if self.socket_mode not in SOCKET_MODES.values():
            raise ValueError(f"the socket's mode must be one of {', '.join(SOCKET_MODES)}, not {self.socket_mode:o}")
        if self.isolation not in ISOLATIONS:
            raise ValueError(f"isolation must be one of {', '.join(ISOLATIONS)}, not {self.isolation!r}")
        if not self.templates:
            raise ValueError("a daemon needs at least one template")
        for name, template in self.templates.items():
            check_template_name(name)
            if self.isolation == "none" and template.needs_isolation():
                raise ValueError(
                    f"template {name}: {', '.join(template.needs_isolation())} need --isolation namespaces: "
                    "plain processes share the machine's files and ports"
                )
            for inside, host in template.data:
                if self.unix_socket is not None and _holds(host, self.unix_socket):
                    raise ValueError(
                        f"template {name}: data: {inside} would show candidates the daemon's own socket, "
                        f"which lies below {host}: move the socket, or name a folder with nothing but data"
                    )


def _holds(folder: str, path: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + "/")


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
