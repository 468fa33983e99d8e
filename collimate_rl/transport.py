"""Finding the backend: one way in, whether it is a node's daemon or the gateway."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from collimate_rl.client import SOCKET_VARIABLE, CollimateClient
from collimate_rl.gateway import API_KEY_VARIABLE as API_KEY_VARIABLE
from collimate_rl.gateway import GatewayClient


@runtime_checkable
class SessionClient(Protocol):
    """What grading and `Sandbox` need of a client. Answers are the wire's dicts, failures `CollimateError`s."""

    def health(self) -> dict[str, Any]:
        """What the backend says of itself: status, templates, capabilities."""
        ...

    def create_session(
        self, template_id: str, *, egress: Mapping[str, Any] | None = None, label: str | None = None
    ) -> dict[str, Any]:
        """Fork the template; the answer has a `session_id`. `label` only where health lists that capability."""
        ...

    def get_session(self, session_id: str) -> dict[str, Any]:
        """One session, as `list_sessions` has it; a `CollimateError` with status 404 when it is gone."""
        ...

    def list_sessions(self) -> list[dict[str, Any]]:
        """The live sessions."""
        ...

    def delete_session(self, session_id: str) -> dict[str, Any]:
        """Delete it; one that is gone already is no error."""
        ...

    def session_exec(
        self,
        session_id: str,
        *,
        command: str | None = None,
        code: str | None = None,
        commands: Sequence[Sequence[str]] | None = None,
        files: Sequence[Mapping[str, str]] | None = None,
        timeout_seconds: int = 30,
        seed: str | None = None,
    ) -> dict[str, Any]:
        """Run something in a session, at most `timeout_seconds` (1 to 3600); an exit code of -1 is that limit."""
        ...

    def exec_once(
        self,
        template_id: str,
        *,
        command: str | None = None,
        code: str | None = None,
        commands: Sequence[Sequence[str]] | None = None,
        files: Sequence[Mapping[str, str]] | None = None,
        timeout_seconds: int = 30,
        seed: str | None = None,
        egress: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """`session_exec` in a fresh fork of the template, which is discarded."""
        ...


def connect(
    base_url: str | None = None,
    *,
    api_key: str | None = None,
    unix_socket: str | os.PathLike[str] | None = None,
    **client_options: Any,
) -> SessionClient:
    """A client for the first backend named, in this order.

    `unix_socket`; `api_key` (the gateway; `base_url` is then its origin); `base_url` (a daemon);
    `$COLLIMATE_SERVE_SOCKET`; `$COLLIMATE_API_KEY`; `$COLLIMATE_SERVE_URL`; the node's session socket if it is
    there; `http://127.0.0.1:8080`. `client_options` go to the client (`timeout`, `retries`, …). Connects lazily:
    a backend that is down shows at the first request.
    """
    if unix_socket:
        return CollimateClient(unix_socket=unix_socket, **client_options)
    if api_key:
        return GatewayClient(api_key, base_url, **client_options)
    if base_url:
        return CollimateClient(base_url, **client_options)
    if not os.environ.get(SOCKET_VARIABLE) and os.environ.get(API_KEY_VARIABLE):
        return GatewayClient(**client_options)
    return CollimateClient.from_env(**client_options)
