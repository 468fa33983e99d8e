"""A template's ReadySpec, and the check that it describes, run in a fork of the template."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.localgateway.nodes import Node
from collimate_rl.localgateway.refusals import bad_request, text_field
from collimate_rl.sandboxd.config import Template

_HTTP = re.compile(r"(?:http://[^/:]*)?:?(?:(\d{1,5})(?=/|$))?(/[^\s]*)?")
_BETWEEN_S = 0.1
_CMD_S = 30


@dataclass(frozen=True, kw_only=True)
class Ready:
    """`http` (a port and a path) wins over `cmd`, a shell command that must end with 0; both are tried until they do,
    for `timeout_s` seconds."""

    cmd: str | None = None
    http: tuple[int, str] | None = None
    timeout_s: float | None = None
    ports: tuple[int, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    network: bool = False

    def applied(self, template: Template) -> Template:
        """The template with this spec's ports and variables. ValueError when one can't be."""
        ports = (*self.ports, *((self.http[0],) if self.http is not None else ()))
        return replace(
            template,
            expose_ports=tuple(dict.fromkeys((*template.expose_ports, *ports))),
            env=tuple({**dict(template.env), **dict(self.env)}.items()),
        )


def parse_ready(value: Any) -> Ready:
    """From the wire; 400 when a field is off."""
    if value is None:
        return Ready()
    if not isinstance(value, dict):
        raise bad_request("ready must be an object")
    unknown = sorted(set(value) - {"cmd", "http", "http_timeout_s", "ports", "env", "network"})
    if unknown:
        raise bad_request(f"ready has unknown fields: {', '.join(unknown)}")
    ports, env, timeout = value.get("ports") or [], value.get("env") or {}, value.get("http_timeout_s")
    if not isinstance(ports, list) or not all(type(port) is int and 1 <= port <= 65535 for port in ports):
        raise bad_request("ready.ports must be a list of port numbers")
    if not isinstance(env, dict) or not all(isinstance(text, str) for text in env.values()):
        raise bad_request("ready.env must be an object of strings")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
        raise bad_request("ready.http_timeout_s must be a number of seconds above 0")
    cmd = value.get("cmd")
    if isinstance(cmd, list) and cmd and all(isinstance(word, str) for word in cmd):
        raise bad_request("ready.cmd must be one shell command, as a string")
    return Ready(
        cmd=text_field(value, "cmd", required=False, longest=32768),
        http=_http(text_field(value, "http", required=False, longest=2048), ports),
        timeout_s=timeout,
        ports=tuple(ports),
        env=tuple(env.items()),
        network=bool(value.get("network")),
    )


def _http(text: str | None, ports: list[int]) -> tuple[int, str] | None:
    if text is None:
        return None
    found = _HTTP.fullmatch(text)
    port = int(found[1]) if found is not None and found[1] else (ports[0] if ports else None)
    if found is None or port is None or not 1 <= port <= 65535:
        raise bad_request(
            "ready.http names a port and a path, as http://localhost:8000/health, :8000/health or 8000/health; "
            "a path alone is asked at the first of ready.ports"
        )
    return port, found[2] or "/"


def check_ready(
    ready: Ready, node: Node, template: str, *, timeout_s: float, stopped: Callable[[float], bool]
) -> str | None:
    """Why a fork of the template is not ready, or None when it is. `stopped(s)` waits, and says whether to give up."""
    if ready.cmd is None and ready.http is None:
        return None
    created = node.create(template, "readiness check")
    try:
        deadline = time.monotonic() + (ready.timeout_s or timeout_s)
        while True:
            if ready.http is not None:
                problem = _ask(created.get("endpoints") or {}, *ready.http)
            else:
                problem = _run(node, created["session_id"], ready.cmd)
            if problem is None or time.monotonic() > deadline or stopped(_BETWEEN_S):
                return problem
    finally:
        node.delete(created["session_id"])


def _run(node: Node, session_id: str, cmd: str | None) -> str | None:
    try:
        answer = node.exec(session_id, {"command": cmd, "timeout_seconds": _CMD_S})
    except CollimateError as exc:
        return f"the ready command could not be run: {exc}"
    if answer["exit_code"] == 0:
        return None
    return f"the ready command ended with {answer['exit_code']}: {answer['stdout'][-500:].strip()}"


def _ask(endpoints: dict[str, str], port: int, path: str) -> str | None:
    place = endpoints.get(str(port))
    if place is None:
        return f"port {port} is not exposed here"
    with closing(http.client.HTTPConnection(place, timeout=10)) as connection:
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException, ValueError) as exc:
            return f"nothing answers on port {port}: {exc!r}"
    return None if status < 400 else f"port {port} answers {path} with status {status}"
