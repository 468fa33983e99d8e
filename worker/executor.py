"""How a batch's execs run on this node: a slot per sandbox, retries with jitter, all within the deadline.

Waiting for a slot happens before the exec is sent, so it never counts into the exec's own time limit.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from collimate_rl.errors import CollimateDrainingError, CollimateError, UnreachableError
from collimate_rl.grading.execute import ExecRequest, Executor
from collimate_rl.sandbox import ExecResult
from worker.progress import Progress, Stage
from worker.slots import Slots, SlotTimeout

LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often an infrastructure error is tried again on this node, and how long it pauses before (full jitter)."""

    retries: int = 3
    backoff_s: float = 0.5
    waits_out: frozenset[str] = frozenset()
    """Codes that are no failure but a "not now": tried again until the deadline, and never counted."""

    def pause(self, attempt: int, uniform: Callable[[float, float], float]) -> float:
        """Seconds before try `attempt` (0 is the first retry): uniform in 0 to `backoff_s` doubled per attempt."""
        return uniform(0.0, min(self.backoff_s * 2**attempt, LONGEST_PAUSE_S))

    def waits(self, error: CollimateError) -> bool:
        """Whether `error` only says that there is no room just now."""
        return error.error_code in self.waits_out

    def wait_s(self, error: CollimateError, waited: int, uniform: Callable[[float, float], float]) -> float:
        """Seconds before the next try after such an error: what the backend asks for, and the jitter."""
        return (error.retry_after_s or 0.0) + self.pause(min(waited, 30), uniform)

    def allows(self, error: CollimateError, attempt: int) -> bool:
        """Whether the same node should try again after `error`, having retried `attempt` times.

        An exec whose answer was lost is run again: a second run of a candidate does no harm, its verdict is written
        once. A misconfigured run fails the same way each time, and a draining daemon wants the work to go elsewhere.
        """
        if not error.is_infra or error.is_misconfigured or isinstance(error, CollimateDrainingError):
            return False
        return attempt < self.retries


class NodeExecutor:
    """An `Executor` for one batch on this node.

    `until` is on `clock`; at it, or when `stop` is set, nothing further starts and `run` raises a `CollimateError`
    with the code `expired` or `stopped`. `on_error(error)` hears of each exec that failed, `on_retry(index, error,
    pause_s)` of each new try, `on_wait(seconds)` of each wait for a slot; `on_slot(index)` of each candidate that has
    got a slot; `on_start(index)` of each candidate's exec before it is sent, and stops it by raising;
    `on_draining(error)` of a daemon that is going away, from which everything has to be taken elsewhere. `drains()`
    knows of a drain that no exec was told of: once nothing runs on it any more such a daemon closes its socket, and is
    only unreachable. `progress` is told where each candidate stands. `quiet_others` is how many slots may be taken
    beside a quiet exec; None where this node's slots say nothing about the load.
    """

    def __init__(
        self,
        inner: Executor,
        slots: Slots,
        policy: RetryPolicy,
        *,
        until: float,
        stop: threading.Event,
        on_retry: Callable[[int | None, CollimateError, float], None],
        on_error: Callable[[CollimateError], None] = lambda _error: None,
        on_wait: Callable[[float], None] = lambda _seconds: None,
        on_start: Callable[[int], None] | None = None,
        on_slot: Callable[[int], None] = lambda _index: None,
        on_draining: Callable[[CollimateError], None] | None = None,
        drains: Callable[[], bool] = lambda: False,
        quiet_others: int | None = None,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._inner = inner
        self._slots = slots
        self._policy = policy
        self._until = until
        self._stop = stop
        self._on_retry = on_retry
        self._on_error = on_error
        self._on_wait = on_wait
        self._on_start = on_start
        self._on_slot = on_slot
        self._on_draining = on_draining
        self._drains = drains
        self._quiet_others = quiet_others
        self._progress = progress if progress is not None else Progress("", clock=clock)
        self._clock = clock
        self._uniform = uniform
        self._guard = threading.Lock()
        self._waited_s: dict[int, float] = {}
        self._began: dict[int, float] = {}

    def queue_ms(self, index: int) -> float:
        """How long candidate `index` waited for sandbox slots in all, in milliseconds."""
        with self._guard:
            return self._waited_s.get(index, 0.0) * 1000.0

    def began(self, index: int) -> float | None:
        """When candidate `index`'s first exec that was answered began, by `clock`."""
        with self._guard:
            return self._began.get(index)

    def run(self, request: ExecRequest, *, role: Literal["runner", "judge"], index: int | None) -> ExecResult:
        """One exec in a slot of its own. Raises the last `CollimateError` when the tries are used up."""
        attempt = waited_out = 0
        while True:
            try:
                self._progress.reach(index, Stage.SLOT)
                with self._slot_for(request) as waited:
                    self._on_wait(waited)
                    self._note_wait(index, waited)
                    if role == "runner" and index is not None:
                        self._on_slot(index)
                        if self._on_start is not None:
                            self._on_start(index)
                    began = self._clock()
                    self._progress.reach(index, Stage.RUN)
                    answer = self._inner.run(request, role=role, index=index)
                    self._progress.reach(index, Stage.JUDGE)
                    if role == "runner" and index is not None:
                        with self._guard:
                            self._began.setdefault(index, began)
                    return answer
            except SlotTimeout as timeout:
                code = "stopped" if self._stop.is_set() else "expired"
                raise CollimateError(str(timeout), None, code) from timeout
            except CollimateError as error:
                self._on_error(error)
                self._progress.failed(index, error)
                drained = self._is_drained(error)
                if drained and self._on_draining is not None:
                    self._on_draining(error)
                waits = self._policy.waits(error)
                if drained or (not waits and not self._policy.allows(error, attempt)):
                    raise
                if waits:
                    pause = self._policy.wait_s(error, waited_out, self._uniform)
                    waited_out += 1
                else:
                    pause = self._policy.pause(attempt, self._uniform)
                    attempt += 1
                if self._clock() + pause >= self._until:
                    raise
                self._on_retry(index, error, pause)
                self._progress.reach(index, Stage.PAUSE)
                if self._stop.wait(pause):
                    raise

    def _slot_for(self, request: ExecRequest) -> AbstractContextManager[float]:
        if request.quiet and self._quiet_others is not None:
            return self._slots.quiet_slot(until=self._until, others=self._quiet_others, stop=self._stop)
        return self._slots.slot(until=self._until, stop=self._stop)

    def _is_drained(self, error: CollimateError) -> bool:
        if isinstance(error, CollimateDrainingError):
            return True
        return isinstance(error, UnreachableError) and self._drains()

    def _note_wait(self, index: int | None, waited_s: float) -> None:
        if index is not None:
            with self._guard:
                self._waited_s[index] = self._waited_s.get(index, 0.0) + waited_s
