"""`reuse_session`: the turns of one episode run in one session, whose files stay from turn to turn."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from collimate_rl.errors import CollimateError
from collimate_rl.grading.grader import GroupRequest, GroupScore
from collimate_rl.grading.inline import score_of
from collimate_rl.hooks.forks import ForkLock
from collimate_rl.rewards import grade
from collimate_rl.transport import SessionClient

WIDTH: Final = 32
"""Threads that grade: as many as SkyRL steps environments on."""

_lock = ForkLock()
_pools: dict[int, ThreadPoolExecutor] = {}


def _threads() -> ThreadPoolExecutor:
    """This process' pool: the threads of one that was made before a fork are not in the child."""
    with _lock:
        pid = os.getpid()
        if pid not in _pools:
            _pools[pid] = ThreadPoolExecutor(max_workers=WIDTH, thread_name_prefix="collimate-session")
        return _pools[pid]


class SessionGrader:
    """A `Grader` whose candidates run in one session, made when it is first needed; judging has forks of its own.

    A session that met infra trouble is given up: the next attempt makes another.
    """

    def __init__(self, client: SessionClient) -> None:
        self._client = client
        self._session: str | None = None
        self._lock = threading.Lock()

    async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
        """As `Grader.grade_group`, one candidate after the other."""
        return await asyncio.wrap_future(_threads().submit(self._grade, request))

    def _grade(self, request: GroupRequest) -> list[GroupScore]:
        with self._lock:
            pairs = zip(request.candidates, request.seeds, strict=True)
            return [self._one(request, candidate, seed) for candidate, seed in pairs]

    def _one(self, request: GroupRequest, candidate: str, seed: str | None) -> GroupScore:
        try:
            if self._session is None:
                self._session = str(self._client.create_session(request.template)["session_id"])
            graded = grade(
                self._client,
                request.template,
                candidate,
                request.spec,
                seed=seed,
                timeout_seconds=request.timeout_seconds,
                session_id=self._session,
            )
        except CollimateError as error:
            self.release()
            return GroupScore(failure=error)
        return score_of(graded)

    def release(self) -> None:
        """Deletes the session, if there is one. Best effort: a daemon reaps what stays idle."""
        session, self._session = self._session, None
        if session is not None:
            try:
                self._client.delete_session(session)
            except CollimateError:  # the node that had it is gone, or reaps it later
                pass
