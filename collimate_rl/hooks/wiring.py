"""The inline wiring: a hook's settings to a grader that works against a sandbox daemon or a gateway."""

from __future__ import annotations

import os
from typing import Final, Protocol

from collimate_rl._variables import warn_once
from collimate_rl.grading.inline import InlineGrader
from collimate_rl.hooks.forks import ForkLock
from collimate_rl.transport import SessionClient, connect

_OF_CONNECT: Final = ("COLLIMATE_SERVE_SOCKET", "COLLIMATE_API_KEY", "COLLIMATE_BASE_URL", "COLLIMATE_SERVE_URL")
"""What `connect` reads where the settings name no backend."""

_graders: dict[tuple[object, ...], InlineGrader] = {}
_clients: dict[tuple[object, ...], SessionClient] = {}
_lock = ForkLock()


class Endpoint(Protocol):
    """What of the settings says where to grade, and how wide."""

    @property
    def base_url(self) -> str | None: ...
    @property
    def api_key(self) -> str | None: ...
    @property
    def concurrency(self) -> int: ...


def inline_grader(settings: Endpoint) -> InlineGrader:
    """One grader per process, endpoint and concurrency. Its client is a pool of sockets: bound to no loop."""
    key = (*_where(settings), settings.concurrency)
    with _lock:
        grader = _graders.get(key)
        if grader is None:
            grader = _graders[key] = InlineGrader(inline_client(settings), concurrency=settings.concurrency)
        return grader


def inline_client(settings: Endpoint) -> SessionClient:
    """One client per process and endpoint."""
    key = _where(settings)
    with _lock:
        if key not in _clients:
            warn_once()
            _clients[key] = connect(settings.base_url, api_key=settings.api_key)
        return _clients[key]


def _where(settings: Endpoint) -> tuple[object, ...]:
    named = tuple(os.environ.get(name) for name in _OF_CONNECT)
    return (os.getpid(), settings.base_url, settings.api_key, *named)
