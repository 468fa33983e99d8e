"""Many sandboxes side by side: made, one exec in each, deleted; and what that took."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collimate_rl.errors import CollimateError, UnreachableError
from collimate_rl.sandbox import WARM_FORK_MS, milliseconds_or_none

if TYPE_CHECKING:
    from collimate_rl.gateway import GatewayClient

DEFAULT_COMMAND = "echo $((6 * 7))"
TIER_CONCURRENCY = {"demo": 8}
"""Sandboxes that a key of this tier may have at once; others have no limit that is known here."""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One sandbox. `error` is None when it was made, ran the command with exit code 0, and was deleted."""

    create_ms: float
    fork_ms: float
    exec_ms: float
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Burst:
    """All of them."""

    shots: tuple[Shot, ...]
    seconds: float
    concurrency: int

    @property
    def failed(self) -> int:
        """How many went wrong."""
        return sum(shot.error is not None for shot in self.shots)

    @property
    def warm_hits(self) -> float:
        """The share of sandboxes whose fork took at most 1 ms."""
        made = [shot for shot in self.shots if shot.error is None]
        return sum(shot.fork_ms <= WARM_FORK_MS for shot in made) / len(made) if made else 0.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON data; times in milliseconds."""
        made = [shot for shot in self.shots if shot.error is None]
        return {
            "sandboxes": len(self.shots),
            "failed": self.failed,
            "errors": dict(Counter(shot.error for shot in self.shots if shot.error is not None)),
            "concurrency": self.concurrency,
            "seconds": round(self.seconds, 3),
            "per_second": round(len(made) / self.seconds, 1) if self.seconds else 0.0,
            "create_ms": quantiles([shot.create_ms for shot in made]),
            "fork_ms": quantiles([shot.fork_ms for shot in made]),
            "exec_ms": quantiles([shot.exec_ms for shot in made]),
            "warm_hits": round(self.warm_hits, 3),
        }

    def summary(self) -> str:
        """One line for people."""
        told = self.as_dict()
        text = (
            f"{told['sandboxes']} sandboxes, {self.failed} failed, {told['per_second']} per second "
            f"({self.concurrency} side by side); create {_said(told['create_ms'])}, exec {_said(told['exec_ms'])}, "
            f"{self.warm_hits:.0%} warm hits"
        )
        return "; ".join([text, *(f"{count}x {error}" for error, count in told["errors"].items())])


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99, max; nothing of nothing."""
    ordered = sorted(times)
    if not ordered:
        return {}
    at = {
        name: ordered[math.ceil(share * len(ordered)) - 1]
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    return {name: round(value, 2) for name, value in (*at.items(), ("max", ordered[-1]))}


def _said(told: dict[str, float]) -> str:
    return f"p50 {told['p50']:g} ms, p95 {told['p95']:g} ms" if told else "-"


def side_by_side(client: GatewayClient, wanted: int) -> int:
    """So many at once, or as many as the key's tier allows."""
    return max(1, min(wanted, TIER_CONCURRENCY.get(client.tier or "", wanted)))


def run_burst(
    client: GatewayClient,
    template: str,
    *,
    count: int,
    concurrency: int,
    command: str = DEFAULT_COMMAND,
    timeout_seconds: int = 30,
    on_shot: Callable[[Shot], None] = lambda _: None,
) -> Burst:
    """`count` sandboxes, at most `concurrency` alive at once. A wrong key or template, or no gateway, ends it early.

    Raises that CollimateError; what fails otherwise is counted.
    """
    at_once = side_by_side(client, min(concurrency, count))
    stopped = threading.Event()
    wrong: list[CollimateError] = []

    def shoot(_: int) -> Shot | None:
        if stopped.is_set():
            return None
        try:
            shot = _shoot(client, template, command, timeout_seconds)
        except CollimateError as error:
            wrong.append(error)
            stopped.set()
            return None
        on_shot(shot)
        return shot

    began = time.monotonic()
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="burst")
    try:
        shots = [shot for shot in pool.map(shoot, range(count)) if shot is not None]
    finally:
        # Ctrl-C: those that run end and delete their sandboxes; nothing else begins.
        stopped.set()
        pool.shutdown(cancel_futures=True)
    if wrong:
        raise wrong[0]
    return Burst(shots=tuple(shots), seconds=time.monotonic() - began, concurrency=at_once)


def _shoot(client: GatewayClient, template: str, command: str, timeout_seconds: int) -> Shot:
    began = time.monotonic()
    try:
        made = client.create_session(template)
    except CollimateError as error:
        if error.is_misconfigured or error.status in (404, 409) or isinstance(error, UnreachableError):
            raise
        return Shot(create_ms=0.0, fork_ms=0.0, exec_ms=0.0, error=error.error_code or type(error).__name__)
    create_ms = (time.monotonic() - began) * 1000
    failure = None
    exec_ms = fork_ms = 0.0
    try:
        fork_ms = milliseconds_or_none(made, "fork_time_ms") or 0.0
        began = time.monotonic()
        answer = client.session_exec(made["session_id"], command=command, timeout_seconds=timeout_seconds)
        exec_ms = (time.monotonic() - began) * 1000
        if answer["exit_code"] != 0:
            failure = f"exit code {answer['exit_code']}"
    except CollimateError as error:
        failure = error.error_code or type(error).__name__
    finally:
        try:
            client.delete_session(made["session_id"])
        except CollimateError as error:
            failure = failure or f"not deleted: {error.error_code or type(error).__name__}"
    return Shot(create_ms=create_ms, fork_ms=fork_ms, exec_ms=exec_ms, error=failure)
