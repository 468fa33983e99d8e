"""The routes of the daemon API."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.http_server import HttpServer, Reply
from collimate_rl.sandboxd.http_wire import Request, error_answer
from collimate_rl.sandboxd.service import Service
from collimate_rl.sandboxd.wire import BodyParser

log = logging.getLogger(__name__)


class HttpFront(HttpServer):
    """Serves one Service. `codes` are programs that many an exec brings along (see `BodyParser`)."""

    def __init__(
        self,
        service: Service,
        listeners: list[socket.socket],
        *,
        keepalive_s: float,
        max_connections: int,
        codes: Iterable[str] = (),
    ):
        super().__init__(listeners, keepalive_s=keepalive_s, max_connections=max_connections)
        self._service = service
        self._parse = BodyParser(codes).parse

    def handle(self, request: Request) -> Reply:
        status, answer = self._answer(request)
        return Reply(status=status, body=answer)

    def refusal(self, error: CollimateError) -> Reply:
        status, answer = error_answer(error)
        return Reply(status=status, body=answer)

    def _answer(self, request: Request) -> tuple[int, Any]:
        try:
            return self._route(request)
        except CollimateError as exc:
            return error_answer(exc)
        except Exception:
            # Whatever it is, this request's caller must hear of it and the others go on.
            log.exception("%s %s failed", request.method, request.path)
            return 500, {"error": "the daemon failed; its log says why", "error_code": "internal_error"}

    def _route(self, request: Request) -> tuple[int, Any]:
        service = self._service
        parts = request.path.strip("/").split("/")
        if parts[0] == "v1":
            parts = parts[1:]
        elif parts not in (["health"], ["exec"]):
            parts = []
        routes: dict[str, Callable[[], tuple[int, Any]]]
        match parts:
            case ["exec"]:
                routes = {"POST": lambda: service.exec_once(self._parse(request.body), hung_up=request.hung_up)}
            case ["health"]:
                routes = {"GET": service.health}
            case ["sessions"]:
                routes = {
                    "GET": service.list_sessions,
                    "POST": lambda: service.create_session(self._parse(request.body)),
                }
            case ["sessions", session_id]:
                routes = {
                    "GET": lambda: service.get_session(session_id),
                    "DELETE": lambda: service.delete_session(session_id),
                }
            case ["sessions", session_id, "exec"]:
                routes = {
                    "POST": lambda: service.session_exec(session_id, self._parse(request.body), hung_up=request.hung_up)
                }
            case _:
                raise CollimateError(f"there is nothing at {request.path}", 404, "not_found")
        handler = routes.get(request.method)
        if handler is None:
            raise CollimateError(f"{request.path} takes {' or '.join(routes)}", 405, "method_not_allowed")
        return handler()
