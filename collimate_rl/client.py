"""The client of a node-local Collimate daemon: sessions, execs and one-shot execs over HTTP.

Answers are the wire's own dicts (see `ExecResult.from_wire` for a typed one). Every failure is a `CollimateError`:

- `UnreachableError`: nothing was sent. `AmbiguousError`: sent, and no answer came back.
- `MalformedAnswer`: what came back is no answer of the daemon API.
- `CollimateDrainingError`: the daemon was still going away when the retries were spent.
- `CollimateError` with `.status` and `.error_code`: the daemon's own refusal.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

from collimate_rl._connection import Endpoint
from collimate_rl._http import HttpPool
from collimate_rl._retry import IDEMPOTENT, NON_IDEMPOTENT, RetryPolicy, Sleep, Uniform
from collimate_rl._sockets import ClientCert
from collimate_rl._transport import Sender, Transport
from collimate_rl.errors import CollimateDrainingError as CollimateDrainingError
from collimate_rl.errors import CollimateError as CollimateError
from collimate_rl.errors import CollimateTaskError as CollimateTaskError
from collimate_rl.errors import MalformedAnswer

DEFAULT_BASE_URL: Final = "http://127.0.0.1:8080"
SESSION_SOCKET: Final = "/run/collimate-session/serve.sock"
"""Where a node mounts the daemon's session socket into its workers."""

SOCKET_VARIABLE: Final = "COLLIMATE_SERVE_SOCKET"
URL_VARIABLE: Final = "COLLIMATE_SERVE_URL"

EXEC_MARGIN_S: Final = 30
"""How much longer than its own time limit an exec may take to be answered: admission, fork and transfer."""


class CollimateClient:
    """Speaks the daemon API to one daemon; safe to share between threads, and to use after a fork.

    `timeout` (seconds) bounds one request, answer included. A request is repeated at most `retries` times with full
    jitter (`uniform(0, backoff * 2**attempt)` seconds), sleeping at most `retry_budget` seconds in all; a create or
    an exec only when nothing can have happened. `base_url` is `http[s]://host:port` or `unix:/path`; `unix_socket`
    wins over it. For https `ca_file` (PEM) stands where `$SSL_CERT_FILE` or the system's authorities do not do, and
    `client_cert` is shown to a server that asks. A `transport` of the caller's own wins over every address. Raises
    `ValueError` for an address or a setting that cannot be.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_BASE_URL,
        timeout: float = 120.0,
        retries: int = 3,
        backoff: float = 0.15,
        retry_budget: float = 30.0,
        unix_socket: str | os.PathLike[str] | None = None,
        *,
        ca_file: str | None = None,
        client_cert: ClientCert | None = None,
        transport: Transport | None = None,
        sleep: Sleep = time.sleep,
        uniform: Uniform = random.uniform,
    ) -> None:
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
        self.base_url = base_url
        self.unix_socket = None if unix_socket is None else os.fspath(unix_socket)
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self.retry_budget = retry_budget
        policy = RetryPolicy(retries=retries, backoff_s=backoff, budget_s=retry_budget)
        if transport is None:
            endpoint = Endpoint.parse(base_url) if unix_socket is None else Endpoint.unix(unix_socket)
            transport = HttpPool(endpoint, ca_file=ca_file, client_cert=client_cert)
        self._sender = Sender(transport, policy, sleep=sleep, uniform=uniform)

    @classmethod
    def for_node_socket(cls, path: str = SESSION_SOCKET, **options: Any) -> CollimateClient:
        """The client for the session socket that a node mounts into its workers."""
        return cls(unix_socket=path, **options)

    @classmethod
    def from_env(cls, **options: Any) -> CollimateClient:
        """`$COLLIMATE_SERVE_SOCKET`, else `$COLLIMATE_SERVE_URL`, else the node's session socket if it is there,
        else `http://127.0.0.1:8080`."""
        if path := os.environ.get(SOCKET_VARIABLE):
            return cls(unix_socket=path, **options)
        if url := os.environ.get(URL_VARIABLE):
            return cls(url, **options)
        if os.path.exists(SESSION_SOCKET):
            return cls(unix_socket=SESSION_SOCKET, **options)
        return cls(**options)

    def __enter__(self) -> CollimateClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"CollimateClient({self._sender.address!r})"

    def close(self) -> None:
        """Close the idle connections. The client stays usable, and opens new ones when it must."""
        self._sender.transport.close()

    # What the daemon knows

    def health(self) -> dict[str, Any]:
        """`{status, sessions, running, max_inflight, queued, templates, version, …}`; a session socket may lack it."""
        return _mapping(self._repeatable("GET", "/v1/health"), "health")

    def templates(self) -> list[str]:
        """The ids of the daemon's templates, as its health lists them."""
        ids = self.health().get("templates", [])
        if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
            raise MalformedAnswer(f"{self._sender.address}: health lists templates that are no names: {str(ids)[:200]}")
        return ids

    def images(self) -> list[dict[str, Any]]:
        """Always raises: a daemon has no image catalog."""
        raise CollimateError(
            "images() is gateway only: a node's daemon has no image catalog; templates() lists what it can fork"
        )

    def list_images(self) -> list[dict[str, Any]]:
        """As `images()`."""
        return self.images()

    # Sessions

    def list_sessions(self) -> list[dict[str, Any]]:
        """`[{session_id, template_id, age_secs, idle_secs, exec_count}]`."""
        sessions = self._repeatable("GET", "/v1/sessions")
        if not isinstance(sessions, list):
            raise MalformedAnswer(f"{self._sender.address}: the list of sessions is {type(sessions).__name__}")
        return [_mapping(session, "session") for session in sessions]

    def create_session(
        self, template_id: str, *, egress: Mapping[str, Any] | None = None, label: str | None = None
    ) -> dict[str, Any]:
        """Fork a session: `{session_id, template_id, fork_time_ms, create_time_ms, endpoints?}`.

        `label`, at most 256 characters, comes back in what `get_session` and `list_sessions` tell. Give one only to a
        daemon whose health lists `label` among its `capabilities`.
        """
        body: dict[str, Any] = {"template_id": template_id}
        if egress is not None:
            body["egress"] = dict(egress)
        if label is not None:
            body["label"] = label
        session = _mapping(self._once("/v1/sessions", body, self.timeout), "session")
        if not isinstance(session.get("session_id"), str) or not session["session_id"]:
            raise MalformedAnswer(f"{self._sender.address}: a session was created and its answer names no session_id")
        return session

    def get_session(self, session_id: str) -> dict[str, Any]:
        """`{session_id, template_id, age_secs, idle_secs, exec_count}`; `no_such_session` when it is gone."""
        return _mapping(self._repeatable("GET", _session_path(session_id)), "session")

    def delete_session(self, session_id: str) -> dict[str, Any]:
        """`{deleted, session_id}`; a session that is not there is `deleted: False`, never an error."""
        try:
            return _mapping(self._repeatable("DELETE", _session_path(session_id)), "deletion")
        except CollimateError as exc:
            if exc.status in (404, 410):
                return {"deleted": False, "session_id": session_id}
            raise

    # Execs

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
        """Run in a live session; the answer is an ExecResponse.

        `command` is one shell string, `commands` argv lists run in order until one fails, `code` a program for the
        template's interpreter; `files` are `{"path", "content"}`, written first, as text. `timeout_seconds` is a
        whole number from 1 to 3600; running out of it is `exit_code: -1`, not an error.
        """
        body = exec_body(command, code, commands, files, timeout_seconds, seed)
        path = f"{_session_path(session_id)}/exec"
        return self._exec(path, body, timeout_seconds)

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
        """Fork a fresh sandbox, run once, discard it; arguments and answer as `session_exec`."""
        body = {"template_id": template_id, **exec_body(command, code, commands, files, timeout_seconds, seed)}
        if egress is not None:
            body["egress"] = dict(egress)
        return self._exec("/v1/exec", body, timeout_seconds)

    def _exec(self, path: str, body: Mapping[str, Any], timeout_seconds: int) -> dict[str, Any]:
        answer = self._once(path, body, max(self.timeout, timeout_seconds + EXEC_MARGIN_S))
        return checked_exec(answer, self._sender.address)

    # Sending

    def _repeatable(self, method: str, path: str) -> Any:
        return self._sender.json(method, path, rule=IDEMPOTENT, timeout_s=self.timeout)

    def _once(self, path: str, body: Mapping[str, Any], timeout_s: float) -> Any:
        return self._sender.json("POST", path, body, rule=NON_IDEMPOTENT, timeout_s=timeout_s)


def _session_path(session_id: str) -> str:
    if not session_id:
        raise ValueError("a session_id is a text of at least one character")
    return f"/v1/sessions/{quote(session_id, safe='', errors='surrogatepass')}"


def exec_body(
    command: str | None,
    code: str | None,
    commands: Sequence[Sequence[str]] | None,
    files: Sequence[Mapping[str, str]] | None,
    timeout_seconds: int,
    seed: str | None,
) -> dict[str, Any]:
    """An ExecRequest without its template: what was given."""
    body: dict[str, Any] = {"timeout_seconds": timeout_seconds}
    if command is not None:
        body["command"] = command
    if commands is not None:
        # A text among them goes as it is, for the server to refuse: as a list it would be an argv of letters.
        body["commands"] = [argv if isinstance(argv, str) else list(argv) for argv in commands]
    if code is not None:
        body["code"] = code
    if files is not None:
        body["files"] = [dict(file) for file in files]
    if seed is not None:
        body["seed"] = seed
    return body


def checked_exec(value: object, address: str) -> dict[str, Any]:
    """An ExecResponse that has at least an output and an exit code; else `MalformedAnswer`."""
    answer = _mapping(value, "exec")
    exit_code = answer.get("exit_code")
    if isinstance(exit_code, bool) or not isinstance(exit_code, int) or not isinstance(answer.get("stdout"), str):
        raise MalformedAnswer(f"{address}: an exec ran and its answer has no stdout and exit_code")
    return answer


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedAnswer(f"the answer to {what} is no JSON object but {type(value).__name__}")
    return value
