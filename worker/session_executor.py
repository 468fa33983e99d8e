"""Runs candidates in the batch's sessions. An exec that may have run already is simply sent again, to the same session.

The runner is idempotent per exec id: it reads what is finished, waits for what is running, runs what is lost. So one
rule serves a takeover, a socket timeout and a reset alike, and nothing is run blindly elsewhere.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from collimate_rl.errors import CollimateError, TransferError
from collimate_rl.grading.execute import ExecRequest, Executor, Role, run_in_sandbox
from collimate_rl.grading.losses import session_lost
from collimate_rl.sandbox import ExecResult, Sandbox
from worker.batch_sessions import BatchSessions, Session

AGAIN = 75
"""The runner's exit code for: nothing ran here, send the same exec again (guest/runner)."""
AGAIN_TRIES = 20
AGAIN_PAUSE_S = 0.25
ROOM_MARGIN_S = 30.0
_HOW = re.compile(r"^[0-9a-f]{32} end (ran|rerun|read|waited)\n\Z", re.MULTILINE)
RECOVERED = {"ran": "none", "rerun": "rerun", "read": "read", "waited": "waited"}
"""What the runner says of an exec sent to an inherited session, in the words of `Verdict.recovered`."""
_RANK = ("none", "read", "waited", "rerun")


def how_it_came(answer: ExecResult) -> str | None:
    """The runner's own word on how its result came; None without a whole result."""
    # Nobody but the runner can write to its standard output, so the last line is its.
    found = _HOW.search(answer.stdout, max(0, len(answer.stdout) - 64))
    return found[1] if found else None


class SessionExecutor:
    """An `Executor` for one batch: its runners go to the batch's sessions, everything else to `one_shot`.

    What cannot be sent again (a judge's exec, a program that is no runner) gains nothing from a session.
    """

    def __init__(
        self,
        sessions: BatchSessions,
        one_shot: Executor,
        *,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._sessions = sessions
        self._one_shot = one_shot
        self._stop = stop
        self._clock = clock
        self._uniform = uniform
        self._recovered: dict[int, str] = {}
        self._used: dict[str, str] = {}
        """Per session of this owner's own the first exec that was sent to it."""

    def recovered(self, index: int) -> str | None:
        """How candidate `index`'s outputs were had, as a verdict says it; None when it never ran in a session."""
        return self._recovered.get(index)

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        """Raises `CollimateError`; then calling again heals what can be healed, in the same session where it lives.

        An error that says that the session is gone is always about one made for this exec: it went after that was sent,
        or before. A loss of any other session is made good here.
        """
        if role == "judge" or index is None or request.exec_id is None:
            return self._one_shot.run(request, role=role, index=index)
        while True:
            session = self._sessions.enter(index, request.exec_id)
            fresh = not session.inherited and session.id not in self._used
            # What only this exec was sent to can be lost under nothing else.
            witness = not session.inherited and self._used.setdefault(session.id, request.exec_id) == request.exec_id
            seeded = request if request.seed is not None else replace(request, seed=session.seed)
            try:
                answer = self._until_it_ran(session, seeded, fresh)
            except CollimateError as error:
                if witness or not session_lost(error) or self._stop.is_set():
                    raise
                continue
            how = how_it_came(answer)
            if how is None and not fresh:
                # A session in which something ran before is no witness against the candidate: its disk may be full
                # with what that wrote. What goes wrong in a fresh one is the candidate's doing.
                self._sessions.leave(session, gone=False)
                continue
            self._remember(session, how)
            return replace(answer, fork_time_ms=session.fork_time_ms or answer.fork_time_ms)

    def _until_it_ran(self, session: Session, request: ExecRequest, fresh: bool) -> ExecResult:
        """The exec's answer, sent again for as long as the runner asks for that, within bounds."""
        tries = 1
        room_until = self._clock() + request.timeout_seconds + ROOM_MARGIN_S
        while True:
            try:
                answer = run_in_sandbox(Sandbox.adopt(self._sessions.client, session.id), request)
            except CollimateError as error:
                if session_lost(error) or (isinstance(error, TransferError) and not fresh):
                    self._sessions.leave(session, gone=session_lost(error))
                # The exec's first sending may still hold its place on the daemon, until it ends within its time limit.
                if error.error_code != "at_capacity" or fresh or self._clock() >= room_until:
                    raise
                if self._stop.wait(self._uniform(AGAIN_PAUSE_S, 4 * AGAIN_PAUSE_S)):
                    raise
                continue
            if answer.exit_code != AGAIN or how_it_came(answer) is not None or tries >= AGAIN_TRIES:
                return answer
            tries += 1
            if self._stop.wait(AGAIN_PAUSE_S):
                raise CollimateError("asked to stop before the exec was done", None, "stopped")

    def _remember(self, session: Session, how: str | None) -> None:
        index = session.index
        if session.inherited and how is not None:
            word = RECOVERED[how]
        else:
            word = "rerun" if self._sessions.was_noted(index) else "none"
        before = self._recovered.get(index, "none")
        self._recovered[index] = max(before, word, key=_RANK.index)
