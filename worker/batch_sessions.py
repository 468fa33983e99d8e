"""The sessions of one claimed batch: taken over from the ledger, or made and noted, and deleted only by right.

The right to delete a session comes from an accepted verdict, from an accepted note that replaced it, from a refused
note of a session that was never noted, and from a release that dropped it. Nothing else deletes one: an owner that was
fenced while it slept would otherwise delete the session that the next owner is waiting for. What is left over (a
session whose note never came to an answer, a batch that was cancelled) is the session janitor's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.grading.losses import session_lost
from collimate_rl.queue import faults
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Hold
from collimate_rl.seeds import fresh_seed
from collimate_rl.transport import SessionClient
from worker import logs
from worker.keeper import Fenced
from worker.ledger import LedgerEntry, SessionLabel, is_node_local
from worker.persist import persist

DELETERS = 4
DROPPERS = 16


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """A node's sandbox daemon. `client` is for execs; `tidy` waits shortly, and asks for and deletes sessions."""

    client: SessionClient
    tidy: SessionClient
    node: str
    endpoint: str
    labels: Callable[[], bool] = lambda: False
    """Whether it takes a label on create, as its health says."""
    one_shot: bool = True
    """Whether it runs once in one request; a gateway does not."""
    left: Callable[[str], None] = lambda _session: None
    """Hears of a session that nobody comes back to, before it is deleted."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session that candidate `index` may run in, under `seed` where the batch names none.

    `inherited`: an earlier owner noted it.
    """

    id: str
    index: int
    inherited: bool
    seed: str
    fork_time_ms: float = 0.0


class BatchSessions:
    """What one execution of a batch has in sessions; used by all its threads, each candidate by one at a time."""

    def __init__(
        self,
        daemon: Daemon,
        queue: BatchQueue,
        hold: Hold,
        ledger: Mapping[int, bytes],
        *,
        template: str,
        egress: Mapping[str, Any] | None = None,
        on_fenced: Callable[[], None] = lambda: None,
        on_found: Callable[[str], None] = lambda _reply: None,
    ) -> None:
        self._daemon = daemon
        self._queue = queue
        self._hold = hold
        self._template = template
        self._egress = egress
        self._on_fenced = on_fenced
        self._on_found = on_found
        self._guard = threading.Condition()
        self._ledger = dict(ledger)
        """Entries of earlier owners that have not been looked at yet."""
        self._inherited = frozenset(ledger)
        self._live: dict[int, Session] = {}
        self._last_id: dict[int, str] = {}
        self._gone: set[str] = set()
        """Ids that name no session of this batch any more; a daemon may give them to somebody else's."""
        self._making = 0
        # A grading thread must not wait for a deletion: there are only as many of them as the node has slots.
        self._deleters = ThreadPoolExecutor(DELETERS, thread_name_prefix=f"delete-{hold.k[:8]}")

    @property
    def client(self) -> SessionClient:
        return self._daemon.client

    @property
    def only_here(self) -> bool:
        """No other node reaches these sessions."""
        return is_node_local(self._daemon.endpoint)

    def was_noted(self, index: int) -> bool:
        """An earlier owner had a session for this candidate."""
        return index in self._inherited

    def session_id(self, index: int) -> str | None:
        """The session that candidate `index` ran in last."""
        return self._last_id.get(index)

    def enter(self, index: int, exec_id: str) -> Session:
        """The session to send candidate `index`'s exec to: the one at hand, the ledger's, or one made and noted now.

        Raises `CollimateError` for what may pass, and `Fenced`.
        """
        session = self._live.get(index) or self._attach(index) or self._make(index, exec_id)
        with self._guard:
            self._live[index] = session
            self._last_id[index] = session.id
        return session

    def leave(self, session: Session, *, gone: bool) -> None:
        """Never go back to this session: it is gone, or no good. The next `enter` makes another."""
        with self._guard:
            if self._live.get(session.index) is session:
                del self._live[session.index]
            if gone:
                self._gone.add(session.id)
        self._daemon.left(session.id)

    def judged(self, index: int) -> None:
        """The verdict of `index` was accepted: its session is this owner's to delete."""
        with self._guard:
            session = self._live.pop(index, None)
            blob = self._ledger.pop(index, None)
        entry = LedgerEntry.unpack(blob) if blob is not None else None
        if session is not None:
            self._deleters.submit(self._delete, session.id)
        elif entry is not None:
            self._deleters.submit(self._delete_entry, entry)

    def dropped(self, entries: Mapping[int, bytes]) -> None:
        """A release took these entries out of the ledger: their sessions are this owner's to delete."""
        found = [entry for entry in map(LedgerEntry.unpack, entries.values()) if entry is not None]
        if found:  # in threads of their own: the keeper may release after the job has closed this
            with ThreadPoolExecutor(min(DROPPERS, len(found)), thread_name_prefix="drop") as pool:
                list(pool.map(self._delete_entry, found))

    def close(self) -> None:
        """Wait until what is being deleted is; each deletion has its own time limit."""
        self._deleters.shutdown()

    def settle(self, timeout_s: float) -> bool:
        """Wait until no session is being made and noted; after a release their notes are refused and they deleted."""
        with self._guard:
            return self._guard.wait_for(lambda: self._making == 0, timeout_s)

    def _attach(self, index: int) -> Session | None:
        with self._guard:
            blob = self._ledger.get(index)
        if blob is None:
            return None
        entry = LedgerEntry.unpack(blob)
        found = entry is not None and self._is_here(entry, index)
        with self._guard:
            self._ledger.pop(index, None)
            if entry is not None and not found:
                self._gone.add(entry.session)
        reply = "attached" if found else "lost"
        self._on_found(reply)
        logs.emit(
            logs.SESSION_FOUND,
            k=self._hold.k,
            index=index,
            session=None if entry is None else entry.session,
            reply=reply,
        )
        if entry is None or not found:
            return None
        faults.reach("attached")
        return Session(id=entry.session, index=index, inherited=True, seed=entry.seed)

    def _is_here(self, entry: LedgerEntry, index: int) -> bool:
        """Whether this daemon has the session: by its label where it has one, else by where the ledger says it is."""
        near = entry.reachable_from(self._daemon.node, self._daemon.endpoint)
        if not near and not self._daemon.labels():
            return False
        try:
            info = self._daemon.tidy.get_session(entry.session)
        except CollimateError as error:
            if session_lost(error):
                return False
            raise
        label = SessionLabel.parse(info.get("label"))
        return near if label is None else (label.k, label.index) == (self._hold.k, index)

    def _make(self, index: int, exec_id: str) -> Session:
        with self._guard:
            self._making += 1
        try:
            return self._make_and_note(index, exec_id)
        finally:
            with self._guard:
                self._making -= 1
                self._guard.notify_all()

    def _make_and_note(self, index: int, exec_id: str) -> Session:
        label = SessionLabel(k=self._hold.k, index=index, fence=self._hold.fence)
        named: dict[str, Any] = {"label": str(label)} if self._daemon.labels() else {}
        made = self._daemon.client.create_session(self._template, egress=self._egress, **named)
        session: str = made["session_id"]
        faults.reach("session_created")
        seed = fresh_seed()
        entry = LedgerEntry(
            session=session, node=self._daemon.node, endpoint=self._daemon.endpoint, exec_id=exec_id, seed=seed
        ).pack()
        reply = persist(lambda: self._queue.note(self._hold, index, entry, session, self._daemon.node))
        if not reply.accepted:
            if not reply.noted:
                self._delete(session)
            self._on_fenced()
            raise Fenced
        replaced = LedgerEntry.unpack(reply.replaced) if reply.replaced is not None else None
        if replaced is not None:
            faults.reach("replaced")
            self._delete_entry(replaced)
        faults.reach("noted")
        took = made.get("fork_time_ms")
        return Session(
            id=session,
            index=index,
            inherited=False,
            seed=seed,
            fork_time_ms=float(took) if isinstance(took, int | float) else 0.0,
        )

    def _delete_entry(self, entry: LedgerEntry) -> None:
        # A session on a daemon that can't be reached from here is left to that node's janitor.
        near = entry.reachable_from(self._daemon.node, self._daemon.endpoint)
        if entry.session not in self._gone and (near or entry.session in self._last_id.values()):
            self._delete(entry.session)

    def _delete(self, session: str) -> None:
        started = time.monotonic()
        try:
            self._daemon.tidy.delete_session(session)
        except CollimateError as error:
            # The janitor, and in the end the daemon's own idle limit, take what could not be deleted now.
            logs.emit(logs.SESSION_LEFT, logging.WARNING, k=self._hold.k, session=session, error=error.message)
            return
        ms = round((time.monotonic() - started) * 1000, 1)
        logs.emit(logs.SESSION_DELETED, logging.DEBUG, k=self._hold.k, session=session, ms=ms)
