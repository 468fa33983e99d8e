"""Holding a run to one grader: answers of another are refused, and the trainer hears of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from collimate_rl.errors import GraderChanged
from collimate_rl.protocol import BatchResult
from collimate_rl.queue.batches import BatchQueue

PIN = "pin"
RENEW_S = 600.0
"""How often the run's key is given its lifetime anew, at most."""


class GraderPin:
    """What the answers' `grader_version` has to be.

    asked -- None takes any; "pin" the first that answers the run, for all its processes and lives of this epoch; any
             other text that version, or what begins with it and a plus sign ("2" takes "2+5bd0…").
    """

    def __init__(
        self,
        queue: BatchQueue,
        run: str,
        epoch: int,
        asked: str | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given: object = asked
        if given is not None and not (isinstance(given, str) and 0 < len(given.strip()) <= 200):
            raise ValueError(f'grader_version is None, "pin" or a version that verdicts carry, not {asked!r}')
        self._queue = queue
        self._run = run
        self._epoch = epoch
        self._asked = asked
        self._clock = clock
        self._lock = threading.Lock()
        self._held: str | None = None
        self._renew_at = float("-inf")

    def refusal(self, result: BatchResult) -> GraderChanged | None:
        """Why the result can't be taken; None where it can. Raises `RedisUnavailable`."""
        if self._asked is None:
            return None
        # Answers that no grader made (expired, cancelled, infra) carry no version.
        for verdict in result.results:
            version = verdict.grader_version
            if not version:
                continue
            wanted = self._wanted(version)
            if version != wanted and not version.startswith(f"{wanted}+"):
                return GraderChanged(
                    f"batch {result.id!r} was judged by grader {version} on node {verdict.node!r}, and run "
                    f"{self._run!r} is held to {wanted}: its rewards may not compare with those before. "
                    "Bring every worker to one release and start a new epoch or run; or pass grader_version=None to "
                    "take any"
                )
        return None

    def _wanted(self, version: str) -> str:
        if self._asked is not None and self._asked != PIN:
            return self._asked
        with self._lock:
            if self._held is None or self._clock() >= self._renew_at:
                self._held = self._queue.pin_grader(self._run, self._epoch, self._held or version)
                self._renew_at = self._clock() + RENEW_S
            return self._held
