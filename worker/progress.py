"""Where each candidate of a batch stands on this node, and what failed for it: told when the deadline comes first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from collimate_rl.errors import CollimateError
from collimate_rl.protocol.bounds import one_line
from worker.verdicts import infra_words


class Stage(Enum):
    """What a candidate's grading is at. The texts go on after `the deadline of 60 s passed`."""

    SLOT = "while it waited for a sandbox slot of node {node}"
    RUN = "while it was being run on node {node}, for {lasted:.1f} s by then"
    PAUSE = "while node {node} tried it again"
    JUDGE = "while what it answered was being judged on node {node}"
    FAILED = "after node {node} had given it up"


TURN = "while others of its batch were being graded on node {node}"
SPEC = "while the spec's own code had yet to end on node {node}"


@dataclass(kw_only=True)
class _Place:
    stage: Stage
    since: float
    tries: int = 0
    error: CollimateError | None = None


class Progress:
    """Of one batch on one node; used by all its threads. `index` None is the spec's own code."""

    def __init__(self, node: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._clock = clock
        self._guard = threading.Lock()
        self._places: dict[int | None, _Place] = {}

    def reach(self, index: int | None, stage: Stage) -> None:
        """The candidate is at `stage` from now on."""
        now = self._clock()
        with self._guard:
            place = self._places.setdefault(index, _Place(stage=stage, since=now))
            place.stage, place.since = stage, now

    def failed(self, index: int | None, error: CollimateError) -> None:
        """A try ended with `error`: the candidate is given up, unless it is tried again."""
        self.reach(index, Stage.FAILED)
        with self._guard:
            place = self._places[index]
            place.tries, place.error = place.tries + 1, error

    def told(self, index: int, *, at: float | None = None) -> str:
        """For people: what the candidate was at, and the last error that it met. `at` is when, on `clock`."""
        with self._guard:
            place = self._places.get(index)
            spec = self._places.get(None)
        if place is None:
            if spec is None or spec.stage is Stage.JUDGE:
                return TURN.format(node=self._node)
            return SPEC.format(node=self._node) + self._failure(spec)
        lasted = max(0.0, (self._clock() if at is None else at) - place.since)
        return place.stage.value.format(node=self._node, lasted=lasted) + self._failure(place)

    def failure(self, index: int, error: CollimateError) -> str:
        """For people: `error`, which a candidate was given up for, and after how many tries."""
        with self._guard:
            place = self._places.get(index)
        tries = 1 if place is None else max(1, place.tries)
        return self._words(error, tries)

    def _failure(self, place: _Place) -> str:
        if place.error is None:
            return ""
        between = ": " if place.stage in (Stage.PAUSE, Stage.FAILED) else "; before that: "
        return between + self._words(place.error, place.tries)

    def _words(self, error: CollimateError, tries: int) -> str:
        counted = f"{tries} {'try' if tries == 1 else 'tries'}"
        return f"{one_line(infra_words(error, self._node))} ({error.error_code or 'internal'}, {counted})"
