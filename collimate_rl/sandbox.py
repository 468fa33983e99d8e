"""`Sandbox`: one session as an object, with exec and byte-exact file IO."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, TypeVar

from collimate_rl import _transfer
from collimate_rl.errors import CollimateError, MalformedAnswer
from collimate_rl.gateway import GatewayClient
from collimate_rl.seeds import is_valid_seed
from collimate_rl.transport import SessionClient, connect
from collimate_rl.tunnel import PortForward, open_port_forward

WARM_FORK_MS: Final = 1.0
"""A fork that took at most this long came from a warm template."""

S = TypeVar("S", bound="Sandbox")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExecResult:
    """What one exec did. `stdout` holds both streams (the guest has one pipe); `exit_code` -1 is the time limit.

    Times are milliseconds. `seed` is the one used, also when none was asked for; `seed_ack` is "verified", "off" or
    "no-ack". `raw` is the wire's dict.
    """

    stdout: str
    stderr: str
    exit_code: int
    fork_time_ms: float = 0.0
    exec_time_ms: float = 0.0
    total_time_ms: float = 0.0
    seed: str | None = None
    seed_ack: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True when the exec ended with exit code 0."""
        return self.exit_code == 0

    @classmethod
    def from_wire(cls, answer: Mapping[str, Any]) -> ExecResult:
        """From an ExecResponse; only stdout and exit_code must be there. A wrong field is a `MalformedAnswer`."""
        exit_code = answer.get("exit_code")
        if isinstance(exit_code, bool) or not isinstance(exit_code, int):
            raise MalformedAnswer(f"an exec's exit_code is a whole number, not {str(exit_code)[:80]!r}")
        return cls(
            stdout=_text(answer, "stdout", None),
            stderr=_text(answer, "stderr", ""),
            exit_code=exit_code,
            fork_time_ms=_milliseconds(answer, "fork_time_ms"),
            exec_time_ms=_milliseconds(answer, "exec_time_ms"),
            total_time_ms=_milliseconds(answer, "total_time_ms"),
            seed=_text_or_none(answer, "seed"),
            seed_ack=_text_or_none(answer, "seed_ack"),
            raw=answer,
        )


class Sandbox:
    """A live session of `template`: forked by `start` (or on entering the context), deleted by `close`.

    `default_timeout` (seconds) and `default_seed` (64 hex digits) stand where an exec names none. With
    `keep_on_error` an exception inside the context leaves the session alive, to be looked at; its id is in the log.
    Without a `client` it is `connect()`'s. Failures are `CollimateError`s; a command that fails is an `ExecResult`.
    """

    def __init__(
        self,
        template: str,
        *,
        client: SessionClient | None = None,
        egress: Mapping[str, Any] | None = None,
        default_timeout: int = 60,
        keep_on_error: bool = False,
        default_seed: str | None = None,
    ) -> None:
        if default_seed is not None and not is_valid_seed(default_seed):
            raise ValueError(f"default_seed must be 64 hex digits (32 bytes), not {default_seed!r}")
        self.template = template
        self.egress = egress
        self.default_timeout = default_timeout
        self.keep_on_error = keep_on_error
        self.default_seed = default_seed
        self.session_id: str | None = None
        self.fork_time_ms: float | None = None
        self.create_time_ms: float | None = None
        self.endpoints: Mapping[str, str] = {}
        self._client = client if client is not None else connect()
        self._guard = threading.RLock()  # one session, however many threads start, reset or close it

    @classmethod
    def attach(cls: type[S], client: SessionClient, session_id: str, **options: Any) -> S:
        """Take over a live session after asking the backend for it; nothing is forked.

        Raises `CollimateError` with `no_such_session` when it is gone. Closing the sandbox deletes the session.
        """
        info = client.get_session(session_id)
        template = info.get("template_id", "")
        return cls.adopt(client, session_id, template=template if isinstance(template, str) else "", **options)

    @classmethod
    def adopt(cls: type[S], client: SessionClient, session_id: str, *, template: str = "", **options: Any) -> S:
        """As `attach`, without asking: a session that is gone shows at the first exec."""
        if not session_id:
            raise ValueError("a session_id is a text of at least one character")
        sandbox = cls(template, client=client, **options)
        sandbox.session_id = session_id
        return sandbox

    @property
    def client(self) -> SessionClient:
        return self._client

    @property
    def is_started(self) -> bool:
        return self.session_id is not None

    @property
    def warm_hit(self) -> bool:
        """True when the fork took at most 1 ms; False before a start, and for a session that was taken over."""
        return self.fork_time_ms is not None and self.fork_time_ms <= WARM_FORK_MS

    def __enter__(self) -> Sandbox:
        if self.session_id is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None and self.keep_on_error:
            _log.warning("session %s of %s is kept after %s", self.session_id, self.template, type(exc).__name__)
            return
        try:
            self.close()
        except CollimateError as error:
            # The work is done (or has its own exception): the daemon's idle limit reaps what could not be deleted.
            _log.warning("session %s of %s could not be deleted: %s", self.session_id, self.template, error)

    def start(self) -> Sandbox:
        """Fork the session; does nothing when there is one."""
        with self._guard:
            if self.session_id is not None:
                return self
            if not self.template:
                raise ValueError("a sandbox that was adopted without a template cannot fork a session of its own")
            session = self._create()
            self.session_id = session["session_id"]
            try:
                self.fork_time_ms = milliseconds_or_none(session, "fork_time_ms")
                self.create_time_ms = milliseconds_or_none(session, "create_time_ms")
            except MalformedAnswer:
                self.close()  # whoever enters a context that cannot be entered never leaves it
                raise
            endpoints = session.get("endpoints")
            self.endpoints = endpoints if isinstance(endpoints, dict) else {}
            return self

    def _create(self) -> dict[str, Any]:
        return self._client.create_session(self.template, egress=self.egress)

    def close(self) -> None:
        """Delete the session; a session that is gone already is no error, and closing twice neither."""
        with self._guard:
            if self.session_id is None:
                return
            self._client.delete_session(self.session_id)
            self.session_id = None
            self.fork_time_ms = self.create_time_ms = None
            self.endpoints = {}

    def reset(self) -> Sandbox:
        """Delete the session and fork a clean one of the same template."""
        if not self.template:
            raise ValueError("a sandbox that was adopted without a template cannot fork a session of its own")
        with self._guard:
            self.close()
            return self.start()

    def exec(
        self,
        command: str | None = None,
        *,
        code: str | None = None,
        commands: Sequence[Sequence[str]] | None = None,
        files: Sequence[Mapping[str, str]] | None = None,
        timeout_seconds: int | None = None,
        seed: str | None = None,
    ) -> ExecResult:
        """Run one shell string, a program of the template's interpreter, or argv lists; see `session_exec`."""
        answer = self._client.session_exec(
            self._live(),
            command=command,
            code=code,
            commands=commands,
            files=files,
            timeout_seconds=self.default_timeout if timeout_seconds is None else timeout_seconds,
            seed=self.default_seed if seed is None else seed,
        )
        return ExecResult.from_wire(answer)

    def upload_bytes(self, path: str, data: bytes) -> None:
        """Write `data` to `path`, byte for byte or not at all; the folder must exist.

        Travels in chunks of 96 KiB of base64, is checked by size and sha256 in the guest, and is moved into place
        last. Raises `TransferError` when the guest could not take it; a failed upload leaves no temporary file.
        """
        self._live()
        _transfer.upload(self._shell, path, data)

    def download(self, path: str) -> bytes:
        """The bytes of a regular file of at most 11 MiB, checked by sha256. Raises `TransferError`."""
        self._live()
        return _transfer.download(self._shell, path)

    def connect_url(self, port: int, *, ttl_seconds: int = 600, protocol: str = "tcp") -> str:
        """The URL of a WebSocket that reaches `port` inside, as `GatewayClient.connect_url`. On a daemon: an error."""
        gateway = self._gateway("connect_url")
        return str(gateway.connect_url(self._live(), port, ttl_seconds=ttl_seconds, protocol=protocol)["url"])

    def cdp_url(self, *, ttl_seconds: int = 600) -> str:
        """The URL of the DevTools of a browser that listens on port 9222 inside. On a daemon: an error."""
        return self._gateway("cdp_url").cdp_url(self._live(), ttl_seconds=ttl_seconds)

    def port_forward(
        self, port: int, *, local_port: int = 0, local_host: str = "127.0.0.1", ttl_seconds: int = 3600
    ) -> PortForward:
        """Listen on this machine and carry each connection to `port` inside; needs the extra `[tunnel]`.

        `local_port` 0 is any free one; `ttl_seconds` is how long a minted tunnel may be opened. On a daemon: an error.
        """
        gateway, session_id = self._gateway("port_forward"), self._live()
        return open_port_forward(
            lambda: gateway.connect_url(session_id, port, ttl_seconds=ttl_seconds),
            port,
            local_port=local_port,
            local_host=local_host,
        )

    def _gateway(self, what: str) -> GatewayClient:
        if not isinstance(self._client, GatewayClient):
            raise CollimateError(
                f"{what} is gateway only: a node's daemon has no tunnels into its sandboxes. A port that the template "
                "exposes is reached at its address in `sandbox.endpoints`"
            )
        return self._client

    def _shell(self, command: str) -> tuple[int, str]:
        result = self.exec(command)
        return result.exit_code, result.stdout

    def _live(self) -> str:
        if self.session_id is None:
            raise CollimateError("the sandbox has no session: call start(), or use it as a context manager")
        return self.session_id


def rollout_once(
    template: str,
    command: str | None = None,
    *,
    code: str | None = None,
    commands: Sequence[Sequence[str]] | None = None,
    files: Sequence[Mapping[str, str]] | None = None,
    timeout_seconds: int = 60,
    seed: str | None = None,
    egress: Mapping[str, Any] | None = None,
    client: SessionClient | None = None,
) -> ExecResult:
    """Fork a fresh sandbox, run once in it, discard it."""
    answer = (client if client is not None else connect()).exec_once(
        template,
        command=command,
        code=code,
        commands=commands,
        files=files,
        timeout_seconds=timeout_seconds,
        seed=seed,
        egress=egress,
    )
    return ExecResult.from_wire(answer)


def _text(answer: Mapping[str, Any], key: str, default: str | None) -> str:
    value = answer.get(key, default)
    if not isinstance(value, str):
        raise MalformedAnswer(f"an exec's {key} is text, not {type(value).__name__}")
    return value


def _text_or_none(answer: Mapping[str, Any], key: str) -> str | None:
    return None if answer.get(key) is None else _text(answer, key, None)


def _milliseconds(answer: Mapping[str, Any], key: str) -> float:
    return milliseconds_or_none(answer, key) or 0.0


def milliseconds_or_none(answer: Mapping[str, Any], key: str) -> float | None:
    """The answer's number under `key`; None where it has none. What is no number is a `MalformedAnswer`."""
    value = answer.get(key)
    if value is None:
        return None
    try:
        milliseconds = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        milliseconds = math.inf  # JSON's whole numbers have no end
    if not math.isfinite(milliseconds):
        raise MalformedAnswer(f"{key} is a number of milliseconds, not {str(value)[:80]!r}")
    return milliseconds
