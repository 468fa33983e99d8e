"""The table of sessions: who lives, since when, and who has been forgotten."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.admission import at_capacity
from collimate_rl.sandboxd.backend import Box

_REMEMBERED = 4096
"""How many ids of sessions that died under their users are told apart from ids that never were."""


class Session:
    """One session and its counters."""

    def __init__(self, session_id: str, template_id: str, label: str | None, box: Box, now: float) -> None:
        self.session_id = session_id
        self.template_id = template_id
        self.label = label
        self.box = box
        self.created = now
        self.last_used = now
        self.running = 0
        self.exec_count = 0

    def idle_s(self, now: float) -> float:
        """Since the last exec in it ended, or the last connection to one of its ports."""
        return 0.0 if self.running else max(now - max(self.last_used, self.box.served_at), 0.0)

    def info(self, now: float) -> dict[str, Any]:
        """SessionInfo as on the wire; `label` when there is one."""
        info: dict[str, Any] = {
            "session_id": self.session_id,
            "template_id": self.template_id,
            "age_secs": round(now - self.created, 3),
            "idle_secs": round(self.idle_s(now), 3),
            "exec_count": self.exec_count,
        }
        if self.label is not None:
            info["label"] = self.label
        return info


class Sessions:
    """At most `max_sessions`; those idle or old beyond the limits are taken out by `overdue`."""

    def __init__(
        self,
        *,
        max_sessions: int,
        idle_limit_s: float,
        age_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max = max_sessions
        self._idle_limit_s = idle_limit_s
        self._age_limit_s = age_limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._reserved = 0
        self._gone: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, template_id: str, label: str | None, create: Callable[[], Box]) -> Session:
        """Make a session's box and enter it; `at_capacity` before anything is made when the table is full."""
        with self._lock:
            if len(self._sessions) + self._reserved >= self._max:
                raise at_capacity(f"{self._max} sessions live already: delete some, or raise --max-sessions")
            self._reserved += 1
        try:
            box = create()
        except BaseException:
            with self._lock:
                self._reserved -= 1
            raise
        session = Session(secrets.token_hex(16), template_id, label, box, self._clock())
        with self._lock:
            self._reserved -= 1
            self._sessions[session.session_id] = session
        return session

    def infos(self) -> list[dict[str, Any]]:
        """All SessionInfos, oldest first."""
        now = self._clock()
        with self._lock:
            return [session.info(now) for session in self._sessions.values()]

    def info(self, session_id: str) -> dict[str, Any]:
        """One SessionInfo; 404 or 410 when there is none."""
        with self._lock:
            return self._find(session_id).info(self._clock())

    @contextmanager
    def in_use(self, session_id: str) -> Iterator[Session]:
        """The session for the length of an exec: it doesn't count as idle, and the exec is counted."""
        with self._lock:
            session = self._find(session_id)
            session.running += 1
            session.exec_count += 1
        try:
            yield session
        finally:
            with self._lock:
                session.running -= 1
                session.last_used = self._clock()

    def _find(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        if session_id in self._gone:
            raise CollimateError(f"session {session_id} was destroyed while in use", 410, "session_gone")
        raise CollimateError(f"there is no session {session_id}", 404, "no_such_session")

    def remove(self, session_id: str) -> Session | None:
        """Take it out, or None when it isn't there; its box is still to be destroyed. In use, it is remembered."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
            if session is not None and session.running:
                self._remember(session_id)
            return session

    def lost(self, session: Session) -> None:
        """Its box died: take it out and remember that it was."""
        with self._lock:
            if self._sessions.pop(session.session_id, None) is not None:
                self._remember(session.session_id)

    def _remember(self, session_id: str) -> None:
        self._gone[session_id] = None
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def overdue(self) -> list[Session]:
        """Take out those that are idle or old beyond the limits."""
        now = self._clock()
        with self._lock:
            found = [
                session
                for session in self._sessions.values()
                if now - session.created > self._age_limit_s or session.idle_s(now) > self._idle_limit_s
            ]
        return [session for session in found if self.remove(session.session_id) is not None]

    def dead(self) -> list[Session]:
        """Those whose box has died on its own. One with an exec in it is left to that exec, which reports the death."""
        with self._lock:
            sessions = [session for session in self._sessions.values() if not session.running]
        return [session for session in sessions if not session.box.alive()]

    def clear(self) -> list[Session]:
        """Take all out."""
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
            return sessions
