"""What the service needs of an isolation: forks that run execs. Two kinds exist, `namespaces` and `plain`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from collimate_rl.sandboxd.config import Template
from collimate_rl.sandboxd.wire import Exec

Turn = Callable[[], AbstractContextManager[object]]
"""What an exec is run in: entering it may take a wait, and may raise."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an exec ended: its exit code (128 + n for a signal's death, -1 for a timeout), output and times in ms."""

    exit_code: int
    output: bytes
    truncated: bool
    fork_ms: float
    exec_ms: float


class Box(Protocol):
    """A fork that stays. After `destroy` (or its own death) every exec raises 410 `session_gone`.

    `endpoints`: where its exposed ports are reached on the host, `{port inside: "host:port"}`. `served_at`: when a
    connection to one of them was last open, by the monotonic clock; 0.0 for never. `freeze`: stop every process in it,
    or let them go on; False where that can't be had, or not all would stop.
    """

    fork_ms: float

    @property
    def endpoints(self) -> Mapping[int, str]: ...

    @property
    def served_at(self) -> float: ...

    def run(self, request: Exec) -> Outcome: ...

    def alive(self) -> bool: ...

    def freeze(self, *, stop: bool) -> bool: ...

    def destroy(self) -> bool: ...


class Backend(Protocol):
    """An isolation. `start` raises IsolationUnavailable; `close` leaves nothing behind.

    `failure` says why no fork of a template can be had, or None; `codes` are the programs that it keeps compiled.
    `run_once` runs the exec in its `turn`, and makes ready for it before that, and clears away after it, where it can.
    """

    name: str

    @property
    def codes(self) -> Iterable[str]: ...

    def start(self) -> None: ...

    def run_once(self, template: Template, request: Exec, turn: Turn = nullcontext) -> Outcome: ...

    def create(self, template: Template) -> Box: ...

    def failure(self, template: Template) -> str | None: ...

    def facts(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class IsolationUnavailable(RuntimeError):
    """This isolation can't be had on this machine; the message says why and what to do."""


def timeout_notice(seconds: int) -> bytes:
    """What a timed out exec's output ends with."""
    return f"\n[collimate] timed out after {seconds} s and was killed\n".encode()
