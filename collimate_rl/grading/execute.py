"""How grading runs a program in a sandbox: one request, one answer."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from collimate_rl.errors import CollimateError, GuestFileError, TransferError
from collimate_rl.sandbox import ExecResult, Sandbox
from collimate_rl.transport import SessionClient

MAX_COMPOSED: Final = 120 * 1024
"""Bytes of code and files that go in one exec; the wire takes 128 KiB, and a daemon adds words of its own."""

PER_FILE: Final = 256
"""What a file costs beside its content, as the wire counts it."""

Role = Literal["runner", "judge"]


@dataclass(frozen=True, kw_only=True)
class ExecRequest:
    """A program and the text files that lie beside it. `files` are (path, content), relative to the working directory.

    `timeout_seconds` is wall time, 1 to 3600. `seed` is 64 hex digits, or None: the daemon draws one and says which.
    With an `exec_id` the program is the runner, which does the same exec once however often it is sent to one session.
    `quiet`: run it when little else does, where whoever runs it can tell.
    """

    code: str
    files: tuple[tuple[str, str], ...] = ()
    timeout_seconds: int = 30
    seed: str | None = None
    exec_id: str | None = None
    quiet: bool = False

    @property
    def composed_bytes(self) -> int:
        """UTF-8 bytes as the daemon counts them against its limit for one exec."""
        size = len(self.code.encode("utf-8", "surrogatepass"))
        for path, content in self.files:
            size += (
                len(path.encode("utf-8", "surrogatepass")) + len(content.encode("utf-8", "surrogatepass")) + PER_FILE
            )
        return size


class Executor(Protocol):
    """Runs requests, each in a sandbox of its own; safe to call from several threads."""

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        """What the program did. Infrastructure trouble is a CollimateError.

        `role` says whether a candidate runs ("runner", `index` is its place in the group) or the spec's own code.
        """
        ...


class OneShotExecutor:
    """Forks a fresh sandbox per request and discards it; what is too large for one exec goes in by upload first.

    `label` is given to the sessions that such an upload needs; not every daemon takes one. `label_execs`: to one-shot
    execs too, which on a gateway are sandboxes like any other.
    """

    def __init__(
        self,
        client: SessionClient,
        template_id: str,
        *,
        egress: Mapping[str, Any] | None = None,
        label: str | None = None,
        label_execs: bool = False,
    ) -> None:
        self._client = client
        self._template_id = template_id
        self._egress = egress
        self._label = label
        self._labelled: dict[str, Any] = {"label": label} if label_execs and label is not None else {}

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:  # noqa: ARG002 - the protocol's
        if request.composed_bytes > MAX_COMPOSED:
            return self._run_in_session(request)
        answer = self._client.exec_once(
            self._template_id,
            code=request.code,
            files=[{"path": path, "content": content} for path, content in request.files],
            timeout_seconds=request.timeout_seconds,
            seed=request.seed,
            egress=self._egress,
            **self._labelled,
        )
        return ExecResult.from_wire(answer)

    def _run_in_session(self, request: ExecRequest) -> ExecResult:
        named: dict[str, Any] = {} if self._label is None else {"label": self._label}
        session = self._client.create_session(self._template_id, egress=self._egress, **named)
        with Sandbox.adopt(self._client, session["session_id"]) as sandbox:
            return run_in_sandbox(sandbox, request)


class SessionExecutor:
    """Runs every request in one session that the caller owns; nothing is created or deleted."""

    def __init__(self, client: SessionClient, session_id: str) -> None:
        self._sandbox = Sandbox.adopt(client, session_id)

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:  # noqa: ARG002 - the protocol's
        return run_in_sandbox(self._sandbox, request)


def run_in_sandbox(sandbox: Sandbox, request: ExecRequest) -> ExecResult:
    """Run a request in a live session; files that make it too large for one exec are uploaded first."""
    small, large = list(request.files), []
    size = request.composed_bytes
    for item in sorted(request.files, key=lambda file: -len(file[1])):
        if size <= MAX_COMPOSED:
            break
        small.remove(item)
        large.append(item)
        size -= len(item[1].encode("utf-8", "surrogatepass"))
    if size > MAX_COMPOSED:
        raise CollimateError(f"a program of {size} bytes does not fit into one exec", 413, "command_too_large")
    for path, content in large:
        try:
            sandbox.upload_bytes(posixpath.normpath(path), content.encode("utf-8", "surrogatepass"))
        except GuestFileError as error:
            # Before any candidate's code has run: here the guest's state is the infrastructure's.
            raise TransferError(error.message) from error
    return sandbox.exec(
        code=request.code,
        files=[{"path": path, "content": content} for path, content in small],
        timeout_seconds=request.timeout_seconds,
        seed=request.seed,
    )
