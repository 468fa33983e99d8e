"""The inline wiring: a hook's settings to a grader that works against a sandbox daemon or a gateway."""

from __future__ import annotations

import os
import threading
from typing import Protocol

from collimate_rl.grading.inline import InlineGrader
from collimate_rl.transport import SessionClient, connect

_graders: dict[tuple[int, str | None, str | None, int], InlineGrader] = {}
_clients: dict[tuple[int, str | None, str | None], SessionClient] = {}
_lock = threading.RLock()


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
    key = (os.getpid(), settings.base_url, settings.api_key, settings.concurrency)
    with _lock:
        grader = _graders.get(key)
        if grader is None:
            grader = _graders[key] = InlineGrader(inline_client(settings), concurrency=settings.concurrency)
        return grader


def inline_client(settings: Endpoint) -> SessionClient:
    """One client per process and endpoint."""
    key = (os.getpid(), settings.base_url, settings.api_key)
    with _lock:
        if key not in _clients:
            _clients[key] = connect(settings.base_url, api_key=settings.api_key)
        return _clients[key]
