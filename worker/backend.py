"""The node's sandbox daemon as the worker sees it: is it there, does it take work, does it isolate.

A session socket may have no health, so nothing depends on it: without one the templates stay unknown, and
whether the daemon takes work is seen by forking and deleting a sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from collimate_rl.errors import CollimateDrainingError, CollimateError
from collimate_rl.gateway import API_KEY_VARIABLE, GatewayClient
from collimate_rl.protocol.bounds import one_line
from collimate_rl.transport import SessionClient, connect
from worker.ledger import is_node_local

LOOK_TIMEOUT_S = 10.0
UNISOLATED = "none"
MAX_FAILED = 16
PROBE_LABEL = "collimate/probe"
NOT_A_TEMPLATE = "collimate-probe"
"""Asked for when no template is known: a daemon that answers `no_template` is up and takes work."""


@dataclass(frozen=True, kw_only=True)
class BackendState:
    """What one look found. `templates` and `isolation` are None where the daemon doesn't say."""

    up: bool
    reason: str = ""
    draining: bool = False
    """It is up, and takes nothing any more."""
    busy: bool = False
    """It is up, and has no room just now."""
    templates: tuple[str, ...] | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    """Templates that could not be brought up, and why: at most `MAX_FAILED`, a line each."""
    isolation: str | None = None
    version: str = ""
    capabilities: frozenset[str] = frozenset()
    """What this daemon can beyond the API, as its health lists it."""

    @property
    def unisolated(self) -> bool:
        """The daemon says itself that candidates run unconfined."""
        return self.isolation == UNISOLATED


def client_for(where: str, **options: Any) -> SessionClient:
    """A client for `unix:PATH`, a URL or `gateway:URL`; empty is the SDK's own order.

    `https://` is a gateway where `$COLLIMATE_API_KEY` is set. `ValueError` for an address that cannot be, and for a
    gateway without a key.
    """
    if where.startswith("gateway:"):
        return GatewayClient(base_url=where.removeprefix("gateway:"), **options)
    if where.startswith("https://") and os.environ.get(API_KEY_VARIABLE):
        return GatewayClient(base_url=where, **options)
    if where.startswith("unix:"):
        return connect(unix_socket=where.removeprefix("unix:").removeprefix("//"), **options)
    return connect(where or None, **options)


class Backend:
    """Looks at the daemon with a client of its own, which waits shortly and repeats nothing."""

    def __init__(self, where: str, *, client: SessionClient | None = None) -> None:
        self._client = client or client_for(where, timeout=LOOK_TIMEOUT_S, retries=0)

    def look(self, template: str | None = None) -> BackendState:
        """Ask for health; where the daemon has none, fall back to `probe`."""
        try:
            health = self._client.health()
        except CollimateError as error:
            return self.probe(template) if error.status in (404, 405) else _down(error)
        return GATEWAY_UP if isinstance(self._client, GatewayClient) else _state(health)

    def probe(self, template: str | None, *, labels: bool = False) -> BackendState:
        """Create and delete a sandbox of `template`: the proof that work is taken.

        Without a template that the daemon has, one that drains cannot be told from one that is up. `labels`: the
        daemon takes a label, by which the session janitor knows a probe whose process died in the middle of it.
        """
        named: dict[str, Any] = {"label": PROBE_LABEL} if labels else {}
        try:
            session = self._client.create_session(template or NOT_A_TEMPLATE, **named)
            self._client.delete_session(session["session_id"])
        except CollimateError as error:
            return BackendState(up=True) if error.error_code == "no_template" else _down(error)
        return BackendState(up=True)

    def ready(self, template: str | None = None) -> BackendState:
        """Health, and then a probe of the first template it names: health alone would say little.

        `template` is probed where health names none.
        """
        state = self.look(template)
        if not state.up or not state.templates:
            return state
        probed = self.probe(state.templates[0], labels="label" in state.capabilities)
        return state if probed.up else probed


GATEWAY_UP = BackendState(up=True, capabilities=frozenset({"label"}))
"""A gateway whose health answers: what it knows of templates and rooms is asked for when it is needed."""


def remembering(state: BackendState, before: BackendState | None) -> BackendState:
    """`state`, with the templates of the look before where a daemon that is away, or fails as a whole for a moment, can
    name none."""
    if before is None or state.templates or (state.templates is not None and (state.up or not before.templates)):
        return state
    return replace(state, templates=before.templates, failed=state.failed or before.failed)


def _down(error: CollimateError) -> BackendState:
    """A daemon whose health fails says all the same which templates it has, and which it could not bring up."""
    return replace(
        _state(error.answer or {}),
        up=False,
        reason=str(error),
        draining=isinstance(error, CollimateDrainingError),
        busy=error.error_code == "at_capacity",
    )


def _state(health: Mapping[str, Any]) -> BackendState:
    listed = health.get("templates")
    known = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    isolation = health.get("isolation")
    status = health.get("status")
    return BackendState(
        up=status == "ok",
        draining=status == "draining",
        reason="" if status == "ok" else f"the daemon says that it is {status!r}",
        templates=tuple(listed) if known and listed is not None else None,
        failed=_failed(health.get("failed_templates")),
        isolation=isolation if isinstance(isolation, str) else None,
        version=str(health.get("version", "")),
        capabilities=_names(health.get("capabilities")),
    )


def _failed(told: object) -> dict[str, str]:
    if not isinstance(told, dict):
        return {}
    named = sorted((name, why) for name, why in told.items() if isinstance(name, str) and isinstance(why, str))
    return {one_line(name, 200): one_line(why) for name, why in named[:MAX_FAILED]}


def _names(listed: object) -> frozenset[str]:
    return frozenset(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else frozenset()


def endpoint_of(client: SessionClient) -> str:
    """Where a client's daemon is: `unix:PATH` or a URL."""
    socket = getattr(client, "unix_socket", None)
    return f"unix:{socket}" if socket else str(getattr(client, "base_url", ""))


def is_this_nodes(backend: str) -> bool:
    """Whether a setting `backend` names a daemon that no other node reaches under that name."""
    return is_node_local(endpoint_of(client_for(backend)))
