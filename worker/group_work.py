"""The grading of one claimed batch: who runs, in which order, and where each answer goes.

Verdicts are written to the queue as they come, by `worker.verdict_writer`. Infrastructure errors are no verdicts: they
are kept here, and the batch job decides whether others try again or the result carries them.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, cast

from collimate_rl.errors import CollimateError
from collimate_rl.grading.execute import Executor
from collimate_rl.grading.group import Graded, grade_group
from collimate_rl.grading.losses import Loss, LossWitness
from collimate_rl.protocol import GradeBatch, Verdict
from collimate_rl.protocol.codes import SUSPECT_OUTCOMES
from collimate_rl.queue import faults
from collimate_rl.queue.replies import Grant, PublishReply, Written
from collimate_rl.specs import RewardSpec, spec_from_wire
from worker import answer_counts, logs, metrics
from worker.batch_sessions import BatchSessions
from worker.bench import Bench
from worker.case_store import QueueCaseStore
from worker.executor import NodeExecutor
from worker.keeper import Fenced, Keeper, Reason
from worker.ledger import SessionLabel, runs_in_sessions
from worker.persist import persist
from worker.progress import Progress
from worker.session_executor import SessionExecutor
from worker.verdict_cache import VerdictCache
from worker.verdict_writer import HELD_S, VerdictWriter
from worker.verdicts import Desk


def with_case_timeout(spec: RewardSpec, seconds: float | None) -> RewardSpec:
    """The spec under the batch's own limit per case, where the batch names one and the spec knows such a limit."""
    if seconds is None or not hasattr(spec, "case_timeout_s"):
        return spec
    return cast(RewardSpec, replace(cast(Any, spec), case_timeout_s=seconds))


class GroupWork:
    """Grades what has no verdict. `judged` and `failed` tell what came of it; `sessions` are the batch's, if any.

    `on_draining` hears of a daemon that is going away before the work stops. `close` is given the call that writes the
    last verdict and answers the batch with it, and says whether it made that call: not where the batch is closed.
    """

    def __init__(
        self,
        bench: Bench,
        grant: Grant,
        batch: GradeBatch,
        keeper: Keeper,
        *,
        on_draining: Callable[[CollimateError], None] = lambda _error: None,
        close: Callable[[Callable[[], PublishReply | None]], bool] = lambda _call: False,
    ) -> None:
        self._claimed = time.monotonic()
        self._queue = bench.queue
        self._tally = bench.tally
        # More threads than the node has slots would only wait for one.
        self._concurrency = min(bench.concurrency, bench.slots.count)
        self._grant = grant
        self._batch = batch
        self._keeper = keeper
        self._guard = threading.Lock()
        self._all_begun = bench.all_begun
        self._to_begin: set[int] = set()
        """Candidates that are to be graded and have not had a slot yet."""
        self._spec: RewardSpec | None = None
        self.desk = Desk(
            node=bench.node,
            fence=grant.hold.fence,
            queue_ms=grant.queue_ms,
            recovered="rerun" if grant.losses else "none",
        )
        self.judged: set[int] = set(grant.verdicts)
        """Candidates with a verdict, from now or before."""
        self._writing: set[int] = set(grant.verdicts)
        """Those, and candidates whose verdict is being written."""
        self.failed: dict[int, CollimateError] = {}
        """Candidates that the infrastructure failed beyond this node's retries."""
        self._on_draining = on_draining
        self._close = close
        self._cache = VerdictCache.for_batch(bench.queue, batch, grant, bench.node)
        self._twins: dict[int, list[int]] = {}
        """Candidates that wait for the verdict of the one that they are the same as."""
        inner = bench.executor_for(batch, grant.hold)
        self.sessions: BatchSessions | None = None
        self._in_sessions: SessionExecutor | None = None
        if bench.daemon is not None and runs_in_sessions(batch, one_shot=bench.daemon.one_shot):
            self.sessions = BatchSessions(
                bench.daemon,
                bench.queue,
                grant.hold,
                {index: entry for index, entry in grant.ledger.items() if index not in grant.verdicts},
                template=batch.template,
                egress=batch.egress,
                on_fenced=lambda: keeper.halt(Reason.FENCED),
                on_found=lambda reply: bench.tally.add(metrics.SESSIONS_FOUND, reply),
            )
            self._in_sessions = SessionExecutor(self.sessions, inner, stop=keeper.stop)
        self._progress = Progress(bench.node)
        runs_here = bench.daemon is None or bench.daemon.one_shot
        # Those of one candidate after the other come too seldom to wait. Where something is done with a verdict that
        # stands, or a death counts against whoever has none, each is written before anything else is.
        together = self._concurrency > 1 and self.sessions is None and self._cache is None and not grant.cautious
        self._suspects: deque[tuple[int, str, str | None]] = deque()
        """Candidates with verdicts that are to be counted against their run, not yet counted."""
        self._writer = VerdictWriter(
            bench.queue, grant.hold, held_s=HELD_S if together else 0.0, on_stands=self._has_verdict
        )
        self._execute = NodeExecutor(
            self._witnessed(bench, self._in_sessions or inner),
            bench.slots,
            bench.retry,
            until=keeper.deadline,
            stop=keeper.stop,
            on_retry=self._retried,
            on_error=self._erred,
            on_wait=lambda seconds: bench.tally.observe(metrics.SLOT_WAIT_SECONDS, seconds),
            on_start=self._starts if grant.cautious else None,
            on_slot=self._has_begun,
            on_draining=self._drains,
            drains=bench.drains,
            quiet_others=max(1, len(os.sched_getaffinity(0)) - 1) if runs_here else None,
            progress=self._progress,
        )

    def _witnessed(self, bench: Bench, inner: Executor) -> Executor:
        if bench.daemon is None:
            return inner
        label = SessionLabel(k=self._grant.hold.k, index=None, fence=self._grant.hold.fence)
        return LossWitness(
            inner,
            bench.daemon.client,
            self._batch.template,
            egress=self._batch.egress,
            label=str(label) if bench.daemon.labels() else None,
            stop=self._keeper.stop,
            on_loss=self._lost,
        )

    @property
    def complete(self) -> bool:
        """Every candidate has its verdict."""
        return len(self.judged) == len(self._batch.candidates)

    def expired(self) -> list[Verdict]:
        """At the deadline: an infra-flagged answer for each candidate without a verdict, with what it was at."""
        with self._guard:
            judged = set(self.judged)
        deadline = f"the deadline of {self._batch.deadline_s:g} s passed"
        return [
            self.desk.expired(index, f"{deadline} {self._progress.told(index, at=self._keeper.deadline)}")
            for index in range(len(self._batch.candidates))
            if index not in judged
        ]

    def passing(self) -> list[tuple[CollimateError, str]]:
        """Errors that another node may not meet, one per candidate that failed, and in words what failed how often."""
        return [
            (error, self._progress.failure(index, error))
            for index, error in sorted(self.failed.items())
            if not error.is_misconfigured
        ]

    def grade(self) -> None:
        """Grade every open candidate. `ValueError` when the spec is at fault; `Fenced`; returns early when stopped."""
        self._spec = with_case_timeout(spec_from_wire(json.loads(self._batch.spec)), self._batch.case_timeout_s)
        everybody = range(len(self._batch.candidates))
        if self._cache is not None:
            for index, verdict in self._cache.known(set(everybody) - self.judged).items():
                self._write(index, verdict)
            self._twins = self._cache.twins(set(everybody) - self.judged)
            skip = self.judged.union(*self._twins.values())
            self._to_begin = set(everybody) - skip
            self._grade_all_but(skip)
            self._twins = {}
            if self._keeper.stop.is_set() or len(self.judged) + len(self.failed) == len(everybody):
                return
            # Twins of a candidate whose verdict says nothing about them.
            self._grade_all_but(self.judged | set(self.failed))
            return
        # In a cautious batch a candidate on its last chance runs alone, after the rest: what then kills the worker is
        # known for certain.
        last_chance = [
            index
            for index, blame in sorted(self._grant.blame.items())
            if blame == self._grant.max_blame - 1 and index not in self.judged
        ]
        shut_out = self._grant.quarantined
        self._to_begin = set(everybody) - self.judged - shut_out
        self._grade_all_but(self.judged | shut_out | set(last_chance))
        for index in last_chance:
            if not self._keeper.stop.is_set():
                self._grade_all_but(set(everybody) - {index})

    def _grade_all_but(self, skip: Collection[int]) -> None:
        if len(skip) >= len(self._batch.candidates):
            return
        assert self._spec is not None
        grade_group(
            self._execute,
            self._spec,
            self._batch.candidates,
            seeds=self._batch.seeds,
            timeout_seconds=self._batch.timeout_seconds,
            concurrency=self._concurrency,
            skip=frozenset(skip),
            on_grade=self._graded,
            stop=self._keeper.stop,
            case_store=QueueCaseStore(self._queue, self._grant.hold),
            # The same names for whoever takes the batch over: then their execs are the same execs.
            exec_prefix=self._grant.hold.k if self.sessions is not None else None,
        )
        self.write_rest()

    def _graded(self, index: int, graded: Graded) -> None:
        """Called by grading's threads, once per candidate."""
        self._has_begun(index)  # some need no exec
        if isinstance(graded, CollimateError):
            if not self._keeper.stop.is_set():
                with self._guard:
                    self.failed[index] = graded
                logs.emit(
                    logs.CANDIDATE_INFRA,
                    logging.WARNING,
                    **self._about(index),
                    code=graded.error_code,
                    error=graded.message,
                )
            return
        try:
            verdict = self.desk.verdict(
                index,
                graded,
                self._execute.queue_ms(index),
                recovered=self._in_sessions.recovered(index) if self._in_sessions is not None else None,
                session_id=self.sessions.session_id(index) if self.sessions is not None else None,
                started_ms=self._since_claim(self._execute.began(index)),
                judged_ms=self._since_claim(time.monotonic()),
            )
        except ValueError as error:  # our own fault, not the spec's
            raise RuntimeError(f"there is no verdict in the grade of candidate {index}: {error}") from error
        faults.reach("graded")
        self._write(index, verdict)
        if self._cache is not None:
            self._cache.keep(verdict)
            for shared in self._cache.shared(verdict, self._twins.get(index, ())):
                self._write(shared.index, shared)

    def _has_begun(self, index: int) -> None:
        with self._guard:
            last = self._to_begin == {index}
            self._to_begin.discard(index)
        if last:
            self._all_begun()

    def _since_claim(self, at: float | None) -> float | None:
        return None if at is None else round((at - self._claimed) * 1000, 1)

    def write_rest(self) -> None:
        """Write verdicts that wait for others. Raises `Fenced`, after the stop is set."""
        self._writer.flush()
        self._see_to_outcomes()

    def write_due(self) -> None:
        """For a thread that must not be held up, every now and then: the next verdict may be a long time coming."""
        for verdict, came in self._writer.flush_due():
            if came is not Written.FENCED:
                self._stands(verdict, mine=came is Written.ACCEPTED)
        if self._writer.fenced:
            self._keeper.halt(Reason.FENCED)

    def _write(self, index: int, verdict: Verdict) -> None:
        """Write a verdict to the queue, now or soon. Raises `Fenced`, after the stop is set."""
        try:
            if not (self._is_last(index) and self._close(lambda: self._writer.end(verdict))):
                self._writer.put(verdict)
        except ValueError as error:
            raise _unwritable(index, error) from error
        self._see_to_outcomes()

    def _see_to_outcomes(self) -> None:
        """What follows from verdicts that grading's threads have written, each its own or also others'."""
        refused: Exception | None = None
        while (outcome := self._writer.next_outcome()) is not None:
            verdict, came = outcome
            if isinstance(came, Exception):
                refused = refused or (_unwritable(verdict.index, came) if isinstance(came, ValueError) else came)
            elif came is not Written.FENCED:
                self._stands(verdict, mine=came is Written.ACCEPTED)
        while self._suspects:
            try:
                self._count(*self._suspects.popleft())
            except IndexError:
                break  # another thread had the last one
        if self._writer.fenced:
            self._keeper.halt(Reason.FENCED)
            raise Fenced
        if refused is not None:
            raise refused

    def _stands(self, verdict: Verdict, *, mine: bool) -> None:
        """The candidate has its verdict: this one, where it is `mine`."""
        index = verdict.index
        faults.reach("verdict_written")
        if not mine:
            return
        if self.sessions is not None:
            self.sessions.judged(index)
        answer_counts.count_verdict(self._tally, verdict)
        if verdict.outcome in SUSPECT_OUTCOMES:
            # By a grading thread: a server that is away then must not hold up the keeper's.
            self._suspects.append((index, verdict.outcome, verdict.session_id))
        logs.emit(
            logs.CANDIDATE_GRADED,
            logging.DEBUG,
            **self._about(index, verdict.session_id),
            reward=verdict.reward,
            outcome=verdict.outcome,
        )

    def _has_verdict(self, index: int) -> None:
        with self._guard:
            self.judged.add(index)

    def _is_last(self, index: int) -> bool:
        """Whether the batch may be answered with this verdict: every other stands, or is under way before it.

        Not where something is left to be done before: a session to be deleted, a verdict to be kept for the run.
        """
        if self.sessions is not None or self._cache is not None or self._keeper.stop.is_set():
            return False
        with self._guard:
            self._writing.add(index)
            return not self.failed and len(self._writing) == len(self._batch.candidates)

    def _about(self, index: int | None, session: str | None = None) -> dict[str, Any]:
        """What the log calls a candidate: its batch, its place, and the session that it ran in, or ran in last."""
        if session is None and index is not None and self.sessions is not None:
            session = self.sessions.session_id(index)
        return {"k": self._grant.hold.k, "index": index, "session": session}

    def _count(self, index: int, outcome: str, session: str | None) -> None:
        k = self._grant.hold.k
        logs.emit(logs.CANDIDATE_SUSPECT, logging.WARNING, **self._about(index, session), outcome=outcome)
        persist(lambda: self._queue.suspect(self._batch.run, outcome, k, index))

    def _erred(self, error: CollimateError) -> None:
        if error.is_infra:
            self._tally.add(metrics.INFRA_ERRORS, error.error_code or "other")

    def _retried(self, index: int | None, error: CollimateError, pause_s: float) -> None:
        logs.emit(
            logs.CANDIDATE_RETRIED,
            **self._about(index),
            code=error.error_code,
            error=error.message,
            pause=round(pause_s, 3),
        )

    def _lost(self, loss: Loss) -> None:
        self._tally.add(metrics.SANDBOXES_LOST, "worked" if loss.control else "failed")
        logs.emit(
            logs.SANDBOX_LOST,
            logging.WARNING,
            **self._about(loss.index),
            control=loss.control,
            counted=loss.counted,
            code=loss.error.error_code,
            error=loss.error.message,
        )

    def _drains(self, error: CollimateError) -> None:
        # Whoever else takes jobs on this node has to hear of it before the batch is given back.
        self._on_draining(error)
        self._keeper.halt(Reason.DRAINING)

    def _starts(self, index: int) -> None:
        if not persist(lambda: self._queue.mark(self._grant.hold, index)):
            self._keeper.halt(Reason.FENCED)
            raise Fenced
        faults.reach("marked")


def _unwritable(index: int, error: Exception) -> RuntimeError:
    return RuntimeError(f"the verdict of candidate {index} cannot be written: {error}")
