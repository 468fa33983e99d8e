"""A gateway key's concurrency cap, shared by all nodes: a place per live sandbox, on the queue's server.

A place is leased, and renewed by the process whose sandbox sits on it: a killed holder frees it by not renewing. It
lasts as long as its sandbox, from before the create until after the delete. Nobody waits long here: a place that does
not come free is the gateway's own `at_capacity`, which a batch waits out until its deadline.

Candidates' sessions leave one place to what holds no other while it waits: judges, one-shot execs, controls. A
candidate keeps its session until it is judged, so with every place taken by sessions no judge would ever run.
"""

from __future__ import annotations

import hashlib
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from collimate_rl.errors import AmbiguousError, CollimateError, QueueError
from collimate_rl.gateway import GatewayClient
from collimate_rl.grading.losses import session_lost
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.transport import SessionClient
from worker import logs
from worker.ledger import SessionLabel

DEMO_CAP: Final = 8
LEASE_MS: Final = 15_000
RENEW_EVERY_S: Final = 4.0
WAIT_S: Final = 5.0
"""How long a create waits for a place before it counts as refused: short, so that a batch that stops is not held up."""
LOOK_EVERY_S: Final = (0.02, 0.08)


def default_cap(client: GatewayClient) -> int | None:
    """How many sandboxes a key of this tier may have at once; None where the tier has no cap that is known here."""
    return DEMO_CAP if client.tier == "demo" else None


class Seats:
    """The places under one key's cap, as one process uses them; safe to share between threads."""

    def __init__(
        self,
        queue: BatchQueue,
        gate: str,
        cap: int,
        *,
        lease_ms: int = LEASE_MS,
        renew_every_s: float = RENEW_EVERY_S,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if cap < 2:
            raise ValueError(f"a key's cap is at least 2, a candidate's sandbox and its judge's, not {cap}")
        self._queue = queue
        self._gate = gate
        self._cap = cap
        self._lease_ms = lease_ms
        self._renew_every_s = renew_every_s
        self._wait_s = wait_s
        self._clock = clock
        self._uniform = uniform
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        self._held: set[str] = set()
        self._closed = threading.Event()
        self._renewer: threading.Thread | None = None

    @classmethod
    def for_client(cls, queue: BatchQueue, client: SessionClient, cap: int = 0) -> Seats | None:
        """The places of a gateway's client, `cap` of them (0: as its tier has); None where nothing is counted."""
        if not isinstance(client, GatewayClient):
            return None
        known = cap or default_cap(client)
        return None if known is None else cls(queue, client.key_hash, known)

    @property
    def cap(self) -> int:
        return self._cap

    @property
    def held(self) -> int:
        """How many places this process holds just now."""
        with self._guard:
            return len(self._held)

    def take(self, *, lasting: bool) -> str:
        """A place for a sandbox that is about to be made; the token to give it back with.

        `lasting`: a candidate's session. Raises `at_capacity` when none comes free in time, and `QueueError`.
        """
        token = secrets.token_hex(12)
        cap = self._cap - 1 if lasting else self._cap
        until = self._clock() + self._wait_s
        # One thread per process asks the server, the others queue behind it: first come, first served.
        while not self._turn.acquire(timeout=0.05):
            self._check(until)
        try:
            while not self._queue.seat(self._gate, token, self._lease_ms, cap=cap).mine:
                self._check(until)
                time.sleep(self._uniform(*LOOK_EVERY_S))
        finally:
            self._turn.release()
        self._keep(token)
        return token

    def name(self, token: str, session_id: str) -> None:
        """The sandbox on that place is this session: the place goes by its name, whoever takes it over later."""
        self._hold(place_of(session_id))
        self.give(token)

    def take_over(self, session_id: str) -> None:
        """The session runs, whoever made it: it has its place, whatever the cap. Nothing where it is held already."""
        token = place_of(session_id)
        with self._guard:
            known = token in self._held
        if not known:
            self._hold(token)

    def leave(self, session_id: str) -> None:
        """The session is gone, or nobody comes back to it: its place is free."""
        self.give(place_of(session_id))

    def give(self, token: str) -> None:
        """Give a place back."""
        self.lapse(token)
        try:
            self._queue.seat(self._gate, token, 0, cap=self._cap)
        except QueueError as error:
            logs.emit(logs.SEAT_FAILED, logging.DEBUG, error=error.message)  # the lease ends by itself

    def lapse(self, token: str) -> None:
        """Stop renewing a place whose sandbox may or may not be: it comes free when the lease ends."""
        with self._guard:
            self._held.discard(token)

    def close(self) -> None:
        """Stop renewing; what is still held comes free when its lease ends."""
        self._closed.set()
        if self._renewer is not None:
            self._renewer.join()

    def _check(self, until: float) -> None:
        if self._clock() >= until:
            raise CollimateError(
                f"all {self._cap} sandboxes that the gateway's key may have at once are in use", 503, "at_capacity"
            )

    def _hold(self, token: str) -> None:
        self._keep(token)
        try:
            self._queue.seat(self._gate, token, self._lease_ms, cap=self._cap, held=True)
        except QueueError as error:
            logs.emit(logs.SEAT_FAILED, logging.DEBUG, error=error.message)  # the next renewal takes it

    def _keep(self, token: str) -> None:
        with self._guard:
            self._held.add(token)
            if self._renewer is None:
                self._renewer = threading.Thread(target=self._renew, name="seats", daemon=True)
                self._renewer.start()

    def _renew(self) -> None:
        while not self._closed.wait(self._renew_every_s):
            with self._guard:
                tokens = list(self._held)
            for token in tokens:
                try:
                    # Its sandbox runs, so the place is taken back even if the lease ended in an outage.
                    self._queue.seat(self._gate, token, self._lease_ms, cap=self._cap, held=True)
                except QueueError as error:
                    logs.emit(logs.SEAT_FAILED, logging.DEBUG, error=error.message)
                    break
                if token not in self._held:  # given back meanwhile
                    self.give(token)


def place_of(session_id: str) -> str:
    """What the place of a session is called, on every node."""
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


class SeatedClient:
    """A `SessionClient` on a gateway that takes a place under the key's cap for every sandbox it makes."""

    def __init__(self, inner: GatewayClient, seats: Seats) -> None:
        self._inner = inner
        self._seats = seats
        self.base_url = inner.base_url

    def health(self) -> dict[str, Any]:
        return self._inner.health()

    def get_session(self, session_id: str) -> dict[str, Any]:
        return self._inner.get_session(session_id)

    def list_sessions(self) -> list[dict[str, Any]]:
        return self._inner.list_sessions()

    def create_session(
        self, template_id: str, *, egress: Mapping[str, Any] | None = None, label: str | None = None
    ) -> dict[str, Any]:
        token = self._seats.take(lasting=_is_candidates(label))
        try:
            made = self._inner.create_session(template_id, egress=egress, label=label)
        except BaseException as error:
            self._after(error, token)
            raise
        self._seats.name(token, made["session_id"])
        return made

    def delete_session(self, session_id: str) -> dict[str, Any]:
        deleted = self._inner.delete_session(session_id)
        self._seats.leave(session_id)
        return deleted

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
        self._seats.take_over(session_id)
        try:
            return self._inner.session_exec(
                session_id,
                command=command,
                code=code,
                commands=commands,
                files=files,
                timeout_seconds=timeout_seconds,
                seed=seed,
            )
        except CollimateError as error:
            if session_lost(error):
                self._seats.leave(session_id)
            raise

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
        label: str | None = None,
    ) -> dict[str, Any]:
        token = self._seats.take(lasting=False)
        try:
            answer = self._inner.exec_once(
                template_id,
                command=command,
                code=code,
                commands=commands,
                files=files,
                timeout_seconds=timeout_seconds,
                seed=seed,
                egress=egress,
                label=label,
            )
        except BaseException as error:
            self._after(error, token)
            raise
        self._seats.give(token)
        return answer

    def _after(self, error: BaseException, token: str) -> None:
        # Whatever is not the gateway's own word on it may have left a sandbox behind, which counts against the cap.
        if isinstance(error, CollimateError) and not isinstance(error, AmbiguousError):
            self._seats.give(token)
        else:
            self._seats.lapse(token)


def seated(client: SessionClient, seats: Seats | None) -> SessionClient:
    """The client with the key's places around it, where there are any."""
    return SeatedClient(client, seats) if seats is not None and isinstance(client, GatewayClient) else client


def _is_candidates(label: str | None) -> bool:
    ours = SessionLabel.parse(label)
    return ours is not None and ours.index is not None
