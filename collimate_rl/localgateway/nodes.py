"""Where sandboxes run: in this process, or on a daemon that is elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol
from urllib.parse import quote

from collimate_rl._connection import Endpoint
from collimate_rl._http import HttpPool
from collimate_rl.errors import AmbiguousError, CollimateError, UnreachableError
from collimate_rl.localgateway.refusals import Refusal
from collimate_rl.sandboxd.backend import Backend, IsolationUnavailable
from collimate_rl.sandboxd.config import DaemonConfig, Template
from collimate_rl.sandboxd.daemon import make_backend
from collimate_rl.sandboxd.service import Service

_NO_ADDRESS: Final = "a daemon is named as unix:/path or http://host:port, not {!r}"
_ANSWER_S = 60.0
_ADMISSION_S = 60.0
"""What an exec may wait for besides its own time: a place on the daemon, the fork, the transfer."""


class Node(Protocol):
    """The daemon API as far as the gateway needs it; refusals are CollimateErrors with the daemon's code.

    `freeze` stops or continues every process of a session; False where that can't be had.
    """

    def health(self) -> dict[str, Any]: ...

    def create(self, template: str, label: str | None) -> dict[str, Any]: ...

    def exec(self, session_id: str, body: dict[str, Any]) -> dict[str, Any]: ...

    def info(self, session_id: str) -> dict[str, Any]: ...

    def delete(self, session_id: str) -> bool: ...

    def freeze(self, session_id: str, *, stop: bool) -> bool: ...

    def derive(self, template: str, change: Callable[[Template], Template]) -> tuple[Node, str]: ...

    def close(self) -> None: ...


class OwnNode:
    """Sandboxes of this process: the daemon's backend and service, without its sockets."""

    def __init__(self, config: DaemonConfig) -> None:
        self._config = config
        self._backend: Backend | None = None
        self._service: Service | None = None

    @property
    def service(self) -> Service:
        """The service, once started."""
        if self._service is None:
            raise RuntimeError("the node is not started")
        return self._service

    def start(self) -> None:
        """Warm up. IsolationUnavailable or OSError when that can't be; nothing is left then."""
        backend = make_backend(self._config)
        try:
            backend.start()
        except BaseException:
            backend.close()
            raise
        self._backend = backend
        self._service = Service(backend, self._config.templates, self._config.limits)

    def health(self) -> dict[str, Any]:
        return self.service.health()[1]

    def create(self, template: str, label: str | None) -> dict[str, Any]:
        return self.service.create_session({"template_id": template, "label": label})[1]

    def exec(self, session_id: str, body: dict[str, Any]) -> dict[str, Any]:
        return self.service.session_exec(session_id, body)[1]

    def info(self, session_id: str) -> dict[str, Any]:
        return self.service.get_session(session_id)[1]

    def delete(self, session_id: str) -> bool:
        return bool(self.service.delete_session(session_id)[1]["deleted"])

    def freeze(self, session_id: str, *, stop: bool) -> bool:
        return self.service.freeze_session(session_id, stop=stop)

    def derive(self, template: str, change: Callable[[Template], Template]) -> tuple[Node, str]:
        """A node for one changed template, warmed up: (node, the template's name there). ValueError, CollimateError."""
        changed = change(self._config.templates[template])
        if changed == self._config.templates[template]:
            return self, template
        node = OwnNode(replace(self._config, templates={template: changed}, zygotes=1))
        try:
            node.start()
        except IsolationUnavailable as exc:
            raise CollimateError(f"the template does not come up: {exc}", 503, "template_failed") from exc
        failed = node.health()["failed_templates"]
        if failed:
            node.close()
            raise CollimateError(f"the template does not come up: {failed[template]}", 503, "template_failed")
        return node, template

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
        if self._backend is not None:
            self._backend.close()


class DaemonNode:
    """A sandbox daemon at `unix:/path` or `http://host:port`. Requests are sent once: whether to repeat one is for
    whoever asked the gateway."""

    def __init__(self, where: str) -> None:
        self.where = where
        try:
            endpoint = Endpoint.parse(where)
        except ValueError as exc:
            raise ValueError(_NO_ADDRESS.format(where)) from exc
        if endpoint.is_tls:
            raise ValueError(_NO_ADDRESS.format(where))
        self._pool = HttpPool(endpoint)

    def health(self) -> dict[str, Any]:
        return self._ask("GET", "/v1/health")

    def create(self, template: str, label: str | None) -> dict[str, Any]:
        labelled = {} if label is None else {"label": label}
        return self._ask("POST", "/v1/sessions", {"template_id": template, **labelled})

    def exec(self, session_id: str, body: dict[str, Any]) -> dict[str, Any]:
        allowed = body.get("timeout_seconds")
        seconds = allowed if isinstance(allowed, int) and 1 <= allowed <= 3600 else 30
        return self._ask("POST", f"{_path(session_id)}/exec", body, timeout_s=seconds + _ADMISSION_S)

    def info(self, session_id: str) -> dict[str, Any]:
        return self._ask("GET", _path(session_id))

    def delete(self, session_id: str) -> bool:
        try:
            return bool(self._ask("DELETE", _path(session_id)).get("deleted"))
        except CollimateError as exc:
            if exc.status in (404, 410):
                return False
            raise

    def freeze(self, session_id: str, *, stop: bool) -> bool:  # noqa: ARG002
        """False: a daemon has no such request."""
        return False

    def derive(self, template: str, change: Callable[[Template], Template]) -> tuple[Node, str]:
        """The template as it is: a daemon that is elsewhere takes no others. ValueError when a change is asked for."""
        if change(Template()) != Template():
            raise ValueError(
                f"the daemon at {self.where} takes no templates: set ports and env in its collimate.toml, or let the "
                "gateway run sandboxes itself"
            )
        return self, template

    def close(self) -> None:
        self._pool.close()

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = _ANSWER_S
    ) -> dict[str, Any]:
        payload = None if body is None else json.dumps(body).encode()
        try:
            response = self._pool.request(method, path, payload, timeout_s=timeout_s)
            answer = json.loads(response.body)
        except UnreachableError as exc:
            raise Refusal(502, "upstream_error", f"the sandbox daemon does not answer: {exc}") from exc
        except (AmbiguousError, ValueError) as exc:
            raise Refusal(502, "upstream_error", f"the sandbox daemon's answer was lost: {exc!r}") from exc
        if not isinstance(answer, dict):
            raise Refusal(502, "upstream_error", "the sandbox daemon answered with something that is no object")
        if response.status >= 400:
            raise CollimateError(str(answer.get("error")), response.status, str(answer.get("error_code")))
        return answer


def _path(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"
