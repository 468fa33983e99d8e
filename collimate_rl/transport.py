"""Finding the backend: one way in, whether it is a node's daemon or the gateway."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from collimate_rl.client import CollimateClient

API_KEY_VARIABLE: Final = "COLLIMATE_API_KEY"


@runtime_checkable
class SessionClient(Protocol):
    """What grading and `Sandbox` need of a client. Answers are the wire's dicts, failures `CollimateError`s."""

    def health(self) -> dict[str, Any]: ...

    def create_session(
        self, template_id: str, *, egress: Mapping[str, Any] | None = None, label: str | None = None
    ) -> dict[str, Any]: ...

    def get_session(self, session_id: str) -> dict[str, Any]: ...

    def list_sessions(self) -> list[dict[str, Any]]: ...

    def delete_session(self, session_id: str) -> dict[str, Any]: ...

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
    ) -> dict[str, Any]: ...

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
    ) -> dict[str, Any]: ...


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
    a daemon that is down shows at the first request. An API key is a `ValueError`: this version has no gateway client.
    """
    if unix_socket:
        return CollimateClient(unix_socket=unix_socket, **client_options)
    if api_key:
        raise _no_gateway("api_key was given")
    if base_url:
        return CollimateClient(base_url, **client_options)
    if not os.environ.get("COLLIMATE_SERVE_SOCKET") and os.environ.get(API_KEY_VARIABLE):
        raise _no_gateway(f"${API_KEY_VARIABLE} is set")
    return CollimateClient.from_env(**client_options)


def _no_gateway(why: str) -> ValueError:
    return ValueError(
        f"{why}, and this version of collimate-rl has no client for the gateway: name a daemon instead "
        "(base_url=, unix_socket=, $COLLIMATE_SERVE_SOCKET or $COLLIMATE_SERVE_URL)"
    )
