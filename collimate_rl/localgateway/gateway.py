"""One gateway: a node, the API over it, and the sockets it listens on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from collimate_rl.localgateway.api import Api
from collimate_rl.localgateway.images import Images
from collimate_rl.localgateway.keys import Key, KeyRing, make_key
from collimate_rl.localgateway.nodes import DaemonNode, Node, OwnNode
from collimate_rl.localgateway.routes import GatewayFront
from collimate_rl.localgateway.sandboxes import Sandboxes
from collimate_rl.localgateway.templates import Templates
from collimate_rl.localgateway.tunnels import Tunnels
from collimate_rl.localgateway.usage import RateLimit, Usage
from collimate_rl.sandboxd.config import DaemonConfig, Limits, Template
from collimate_rl.sandboxd.listening import listen


def _one_key_each() -> tuple[Key, ...]:
    return tuple(make_key(tier) for tier in ("demo", "pro", "ent"))


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """Where it listens and what it does. Seconds: `phase_s` each phase of a bake at least, `converge_s` until a pool is
    full, `ready_s` until a ready check must succeed that names no time. `requests_per_second` of each key; 0: no limit.

    `backend` names a daemon (`unix:/path`, `http://host:port`); None runs sandboxes in this process, with `isolation`,
    `templates` and `limits`.
    """

    host: str | None = "127.0.0.1"
    port: int = 0
    unix_socket: str | None = None
    keys: tuple[Key, ...] = field(default_factory=_one_key_each)
    backend: str | None = None
    isolation: str = "namespaces"
    templates: Mapping[str, Template] | None = None
    limits: Limits = field(default_factory=Limits)
    phase_s: float = 0.2
    converge_s: float = 0.5
    ready_s: float = 10.0
    requests_per_second: float = 0.0
    node_name: str = field(default_factory=socket.gethostname)

    def __post_init__(self) -> None:
        if self.host is None and self.unix_socket is None:
            raise ValueError("a gateway needs a unix socket or a host to listen on")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"the port must be between 0 and 65535, not {self.port}")
        for name in ("phase_s", "converge_s", "ready_s", "requests_per_second"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number from 0, not {getattr(self, name)}")
        KeyRing(self.keys)


class Gateway:
    """`start` serves, `close` ends everything and leaves no sandbox behind."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.host_port: tuple[str, int] | None = None
        """Where it listens on TCP, once started."""
        self._undo: list[Callable[[], Any]] = []

    def start(self) -> None:
        """Warm up and serve. IsolationUnavailable, SocketTaken, CollimateError (no daemon) or OSError; nothing is left
        then."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        config = self.config
        listeners, self.host_port = listen(config.unix_socket, config.host, config.port, self._undo)
        node = self._node()
        images = Images(node.health().get("templates") or ())
        templates = Templates(
            node,
            images,
            node_name=config.node_name,
            phase_s=config.phase_s,
            converge_s=config.converge_s,
            ready_s=config.ready_s,
        )
        self._undo.append(templates.close)
        sandboxes = Sandboxes()
        self._undo.append(sandboxes.close)
        tunnels = Tunnels(lambda sandbox: sandboxes.info(sandbox) is not None)
        tunnels.start(config.host or "127.0.0.1")
        self._undo.append(tunnels.close)
        api = Api(node, images, templates, sandboxes, tunnels, Usage())
        front = GatewayFront(api, KeyRing(config.keys), RateLimit(config.requests_per_second), listeners)
        front.start()
        self._undo.append(front.finish)
        self._undo.append(front.stop_accepting)

    def _node(self) -> Node:
        config = self.config
        if config.backend is not None:
            elsewhere = DaemonNode(config.backend)
            self._undo.append(elsewhere.close)
            return elsewhere
        # The host only satisfies the configuration: this node has no sockets of its own.
        settings = DaemonConfig(host="127.0.0.1", isolation=config.isolation, limits=config.limits)
        own = OwnNode(settings if config.templates is None else replace(settings, templates=config.templates))
        own.start()
        self._undo.append(own.close)
        return own

    def close(self) -> None:
        """End everything, last begun first."""
        while self._undo:
            self._undo.pop()()
