"""The routes of the gateway API, with who may enter, and errors in its shape."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

from collimate_rl.errors import CollimateError
from collimate_rl.localgateway.api import Answer, Api
from collimate_rl.localgateway.keys import Key, KeyRing
from collimate_rl.localgateway.refusals import Proxied, Refusal
from collimate_rl.localgateway.usage import RateLimit
from collimate_rl.sandboxd.http_server import HttpServer, Reply
from collimate_rl.sandboxd.http_wire import Request
from collimate_rl.sandboxd.wire import parse_object

log = logging.getLogger(__name__)
_KEEPALIVE_S = 120.0
_MAX_CONNECTIONS = 4096
Routes = dict[str, Callable[[], Answer]]


class GatewayFront(HttpServer):
    """Serves one Api."""

    def __init__(self, api: Api, keys: KeyRing, rate: RateLimit, listeners: list[socket.socket]) -> None:
        super().__init__(listeners, keepalive_s=_KEEPALIVE_S, max_connections=_MAX_CONNECTIONS)
        self._api = api
        self._keys = keys
        self._rate = rate

    def handle(self, request: Request) -> Reply:
        try:
            status, answer = self._answer(request)
            return Reply(status=status, body=answer)
        except CollimateError as exc:
            return self.refusal(exc)
        except Exception:
            # Whatever it is, this request's caller must hear of it and the others go on.
            log.exception("%s %s failed", request.method, request.path)
            return Reply(status=500, body={"code": "internal_error", "message": "the gateway failed; its log says why"})

    def refusal(self, error: CollimateError) -> Reply:
        """`{code, message}`; what the sandbox daemon refused keeps its shape, `{error, error_code}`."""
        status, code = error.status or 500, error.error_code or "internal_error"
        wait = error.retry_after_s if isinstance(error, Refusal) else 1 if code == "at_capacity" else None
        headers = {} if wait is None else {"Retry-After": str(wait)}
        if isinstance(error, Proxied):
            return Reply(status=status, body={"error": error.message, "error_code": code}, headers=headers)
        return Reply(status=status, body={"code": code, "message": error.message}, headers=headers)

    def _answer(self, request: Request) -> Answer:
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        if parts == ["v1", "health"] and request.method == "GET":
            return self._api.health()
        key = self._keys.admit(request.headers.get(b"authorization", b"").decode("latin-1"))
        self._rate.take(key.key_id)
        routes = self._routes(key, parts[1:] if parts[0] == "v1" else [], request)
        if not routes:
            raise Refusal(404, "not_found", f"there is nothing at {request.path}")
        handler = routes.get(request.method)
        if handler is None:
            raise Refusal(405, "method_not_allowed", f"{request.path} takes {' or '.join(routes)}")
        return handler()

    def _routes(self, key: Key, parts: list[str], request: Request) -> Routes:
        api = self._api

        def body() -> dict[str, Any]:
            return parse_object(request.body) if request.body else {}

        match parts:
            case ["health"]:
                return {"GET": api.health}
            case ["images"]:
                return {"GET": lambda: api.images(key)}
            case ["usage"]:
                asked = {name: values[0] for name, values in parse_qs(request.query).items()}
                return {"GET": lambda: api.usage(key, asked.get("from"), asked.get("to"))}
            case ["templates"]:
                return {"GET": lambda: api.list_templates(key), "POST": lambda: api.create_template(key, body())}
            case ["templates", one]:
                return {"GET": lambda: api.get_template(key, one), "DELETE": lambda: api.delete_template(key, one)}
            case ["templates", one, "expect"]:
                return {"POST": lambda: api.expect(key, one, body())}
            case ["templates", one, "release"]:
                return {"POST": lambda: api.release(key, one)}
            case ["sandboxes"]:
                return {"GET": lambda: api.list_sandboxes(key), "POST": lambda: api.create_sandbox(key, body())}
            case ["sandboxes", one]:
                return {"GET": lambda: api.get_sandbox(key, one), "DELETE": lambda: api.delete_sandbox(key, one)}
            case ["sandboxes", one, verb]:
                return self._verbs(key, one, verb, body)
            case _:
                return {}

    def _verbs(self, key: Key, one: str, verb: str, body: Callable[[], dict[str, Any]]) -> Routes:
        api = self._api
        verbs: dict[str, Callable[[], Answer]] = {
            "exec": lambda: api.exec(key, one, body()),
            "fork": lambda: api.fork(key, one, body()),
            "suspend": lambda: api.suspend(key, one),
            "resume": lambda: api.resume(key, one),
            "connect-url": lambda: api.connect_url(key, one, body()),
        }
        return {"POST": verbs[verb]} if verb in verbs else {}
