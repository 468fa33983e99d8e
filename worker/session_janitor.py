"""The session janitor, one per node by lease: deletes sessions of ours that nobody will come back to.

Owners delete what they have the right to delete (`worker.batch_sessions`); this takes what they left behind: they died
before they could, the batch was cancelled, another node has the candidate by now. Each rule holds for good once it
holds, so that what was decided may be done later: a verdict stays, and no owner of an old fence ever notes again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collimate_rl.errors import AmbiguousError, CollimateError, QueueError, RedisUnavailable, UnreachableError
from collimate_rl.protocol import BatchStatus, keys
from collimate_rl.queue import faults
from collimate_rl.queue._raw import raw, text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.transport import SessionClient
from worker import logs
from worker.backend import LOOK_TIMEOUT_S, PROBE_LABEL, client_for
from worker.ledger import LedgerEntry, SessionLabel
from worker.outage import Outage
from worker.settings import WorkerSettings

BEATS_PER_ROUND = 2.5
ROUNDS_PER_LEASE = 3
TRIM_AT_ONCE = 1000
PROBE_S = 60.0
"""A probe deletes its session at once; one that is this old never will."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the queue knows of a labelled session, all of one instant."""

    status: str | None
    """Its batch's; None when nothing is known of the batch."""
    fence: int
    judged: bool
    """Its candidate has a verdict."""
    named: bool
    """The ledger names it: whoever owns the batch, now or next, may come back to it."""
    noted: bool
    """Some ledger named it once."""


def reason_to_reap(label: SessionLabel, facts: Facts) -> str | None:
    """Why a session of ours may be deleted; None when somebody may still come back to it."""
    if facts.status is None:
        # Perhaps a batch on another server, whose nodes share this daemon: only what was noted here is ours for sure.
        return "its batch is forgotten" if facts.noted else None
    if facts.status == BatchStatus.DONE.value:
        return "its batch is answered"
    owned = facts.status == BatchStatus.RUNNING.value and facts.fence == label.fence
    if label.index is None:
        return None if owned else "the owner whose judge it served is gone"
    if facts.judged:
        return "its candidate is judged"
    if facts.named:
        return None
    if not owned:
        return "its owner is gone, and the ledger does not name it"
    return "the ledger names another by now" if facts.noted else None


@dataclass(frozen=True, kw_only=True)
class Reapable:
    """A session to be deleted, and why."""

    session: str
    reason: str
    label: SessionLabel | None


class SessionJanitor:
    """One node's session janitor. `round` never raises for a server or a daemon that is away: the next one goes on.

    min_idle_s -- sessions that are not ours are reaped too once they were idle for so long; None: they never are.
    """

    def __init__(
        self, queue: BatchQueue, client: SessionClient, node: str, token: str, *, min_idle_s: float | None = None
    ) -> None:
        self._queue = queue
        self._client = client
        self._node = node
        self._token = token
        self._min_idle_s = min_idle_s
        self._outage = Outage()
        self.every_s = BEATS_PER_ROUND * queue.timing.beat_every_ms / 1000

    @classmethod
    def for_node(
        cls,
        settings: WorkerSettings,
        queue: BatchQueue,
        token: str,
        *,
        timeout_s: float = LOOK_TIMEOUT_S,
        retries: int = 1,
    ) -> SessionJanitor:
        """The janitor of the node and the daemon that the settings name; a request takes `timeout_s` at most."""
        client = client_for(settings.backend, timeout=timeout_s, retries=retries)
        min_idle_s = settings.min_idle if settings.reap_unclaimed else None
        return cls(queue, client, settings.node, token, min_idle_s=min_idle_s)

    @property
    def _lease(self) -> str:
        return f"sessions:{self._node}"

    def round(self) -> int:
        """One pass, by lease; how many sessions were deleted."""
        try:
            if not self._queue.lease(self._lease, self._token, round(ROUNDS_PER_LEASE * self.every_s * 1000)).mine:
                return 0
            noted = self._noted()
            listed = self._client.list_sessions()
            reaped = [found for found in self._plan(listed, noted) if self._reap(found)]
            self._trim(noted - {str(session.get("session_id")) for session in listed})
        except RedisUnavailable as error:
            logs.emit(logs.JANITOR_FAILED, logging.DEBUG, error=error.message)
            return 0
        except CollimateError as error:
            level = logging.ERROR if isinstance(error, QueueError) else logging.DEBUG
            self._outage.report(logs.JANITOR_FAILED, level, error=error.message)
            return 0
        self._outage.over()
        return len(reaped)

    def forecast(self) -> list[Reapable]:
        """What a round would delete now. Writes nothing; raises `QueueError`, `CollimateError`."""
        noted = self._noted()
        return self._plan(self._client.list_sessions(), noted)

    def resign(self) -> None:
        """Let another process of this node do it at once."""
        self._queue.lease(self._lease, self._token, 0)

    def _noted(self) -> set[str]:
        # Read before the sessions are listed: what is noted and then not listed is gone, not yet to come.
        with translate_errors("read the node's sessions"):
            return {text(member) for member in self._queue.client.zrange(keys.sessions(self._node), 0, -1)}

    def _plan(self, listed: Sequence[Mapping[str, Any]], noted: set[str]) -> list[Reapable]:
        ours: dict[str, SessionLabel] = {}
        plan: list[Reapable] = []
        for info in listed:
            session = str(info.get("session_id"))
            label = SessionLabel.parse(info.get("label"))
            if label is not None:
                ours[session] = label
            elif info.get("label") == PROBE_LABEL:
                if _number(info, "age_secs") > PROBE_S:
                    plan.append(Reapable(session=session, reason="a probe that was broken off", label=None))
            elif session not in noted and self._is_unclaimed(info):
                plan.append(Reapable(session=session, reason="it is idle, and nobody's", label=None))
        by_id = {str(info.get("session_id")): info for info in listed}
        for session, facts in self._facts(ours, noted).items():
            reason = reason_to_reap(ours[session], facts)
            if reason is None and facts.status is None and self._is_unclaimed(by_id[session]):
                reason = "it is idle, and its batch is not known here"
            if reason is not None:
                plan.append(Reapable(session=session, reason=reason, label=ours[session]))
        return plan

    def _is_unclaimed(self, info: Mapping[str, Any]) -> bool:
        return self._min_idle_s is not None and _number(info, "idle_secs") >= self._min_idle_s

    def _facts(self, ours: Mapping[str, SessionLabel], noted: set[str]) -> dict[str, Facts]:
        if not ours:
            return {}
        with translate_errors("read what is known of sessions"), self._queue.client.pipeline() as pipe:  # MULTI
            for label in ours.values():
                of = keys.BatchKeys(label.k)
                index = "-" if label.index is None else str(label.index)
                pipe.hmget(of.state, "status", "fence")
                pipe.hexists(of.verdicts, index)
                pipe.hget(of.ledger, index)
            replies = pipe.execute()
        facts = {}
        for number, session in enumerate(ours):
            (status, fence), judged, blob = replies[3 * number : 3 * number + 3]
            entry = LedgerEntry.unpack(raw(blob)) if blob is not None else None
            facts[session] = Facts(
                status=None if status is None else text(status),
                fence=int(fence or 0),
                judged=bool(judged),
                # An entry that this version cannot read may name anything.
                named=blob is not None and (entry is None or entry.session == session),
                noted=session in noted,
            )
        return facts

    def _reap(self, found: Reapable) -> bool:
        faults.reach("reaping")
        try:
            deleted = self._client.delete_session(found.session).get("deleted") is True
        except (UnreachableError, AmbiguousError):
            raise  # the daemon went away or hangs: so would each further deletion
        except CollimateError as error:
            logs.emit(logs.JANITOR_FAILED, logging.DEBUG, error=error.message)
            return False
        if deleted:
            label = found.label
            logs.emit(
                logs.SESSION_REAPED,
                session=found.session,
                reason=found.reason,
                k="" if label is None else label.k,
                index="" if label is None or label.index is None else label.index,
            )
        return deleted

    def _trim(self, gone: set[str]) -> None:
        members = sorted(gone)
        with translate_errors("forget the node's dead sessions"):
            for start in range(0, len(members), TRIM_AT_ONCE):
                self._queue.client.zrem(keys.sessions(self._node), *members[start : start + TRIM_AT_ONCE])


def _number(info: Mapping[str, Any], name: str) -> float:
    """A number that the daemon tells of a session; 0 where it tells none."""
    value = info.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
