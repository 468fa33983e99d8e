"""What a bell sets off: claim the batch, grade what has no verdict yet, write verdicts as they come, publish once.

The right to write is the claim's fence. Whatever goes wrong ends in one of: published, released, or left to the lease;
never in a result that nobody owned, and never in an exception.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from collimate_rl.errors import BadMessage, QueueError, RedisUnavailable, UnknownVersion
from collimate_rl.protocol import Verdict
from collimate_rl.protocol.bounds import clip_text
from collimate_rl.queue import codec, faults
from collimate_rl.queue.replies import Claimed, Grant, Mode, Published, PublishReply, Released
from worker import answer_counts, logs, metrics
from worker.batch_sessions import BatchSessions
from worker.bench import Bench, Host
from worker.group_work import GroupWork
from worker.keeper import Fenced, Keeper, Reason
from worker.persist import persist

OK, DONE, BUSY, FENCED, GONE = "OK", "DONE", "BUSY", "FENCED", "GONE"
SETTLE_S = 2.0
"""How long a release waits for sessions that were just being made: their notes are refused, and they are deleted."""


def run_batch(bench: Bench, host: Host, k: str) -> str:
    """Answer one bell. Returns OK (done with it here), DONE, BUSY, FENCED or GONE, for people; raises nothing."""
    faults.reach("job_started")
    owner = secrets.token_hex(12)  # once: a claim whose reply was lost is sent again by the same owner
    try:
        reply = persist(lambda: bench.queue.claim(k, owner, bench.worker, bench.node))
    except RedisUnavailable as error:
        # The bell is lost with this; the janitor rings another.
        logs.emit(logs.BATCH_SKIPPED, logging.WARNING, k=k, reply="unavailable", error=error.message)
        return BUSY
    except (QueueError, ValueError):
        logs.emit(logs.BATCH_ERROR, logging.ERROR, k=k, exc_info=True)
        return GONE
    if reply.grant is None:
        logs.emit(logs.BATCH_SKIPPED, logging.DEBUG, k=k, reply=reply.word.value)
        return {Claimed.DONE: DONE, Claimed.BUSY: BUSY}.get(reply.word, GONE)
    faults.reach("claimed")
    bench.tally.set(metrics.BATCHES_RUNNING, 1.0)
    try:
        return _Execution(bench, host, reply.grant).run()
    finally:
        bench.tally.set(metrics.BATCHES_RUNNING, 0.0)


class _Execution:
    """One claimed batch. `_close` runs once, in the job's thread or, when that is late, in the keeper's."""

    def __init__(self, bench: Bench, host: Host, grant: Grant) -> None:
        self._bench = bench
        self._queue = bench.queue
        self._host = host
        self._grant = grant
        self._hold = grant.hold
        self._started = time.monotonic()
        self._closing = threading.Lock()
        self._closed: str | None = None
        self._ended: Published | None = None
        """It was answered together with its last verdict."""
        self._work_on: GroupWork | None = None
        self._sessions: BatchSessions | None = None
        self._tally = bench.tally
        self._size: int | None = None
        self._name: dict[str, Any] = {"k": self._hold.k, "fence": self._hold.fence}
        """What the log calls it; its run and id, too, once its payload is read."""
        self._judged: Collection[int] = grant.verdicts

    def run(self) -> str:
        grant = self._grant
        self._tally.add(metrics.BATCHES_CLAIMED)
        if grant.losses:
            self._tally.add(metrics.BATCHES_TAKEN_OVER)
        if self._hold.fence == 1:
            self._tally.observe(metrics.QUEUE_SECONDS, grant.queue_ms / 1000)
        logs.emit(
            logs.BATCH_CLAIMED,
            **self._name,
            judged=len(grant.verdicts),
            losses=grant.losses,
            passes=grant.passes,
        )
        with Keeper(
            self._queue,
            grant,
            grace_s=self._bench.grace_s,
            stopping_for=self._host.stopping_for,
            cancel_asked=self._host.cancel_asked,
            on_tick=self._tick,
            on_late=self._stopped,
            leave=self._host.leave,
        ) as keeper:
            try:
                return self._work_and_tidy(keeper)
            except Fenced:
                return self._fenced()
            except RedisUnavailable as error:
                # Nothing can be said to the server: the lease runs out, and another takes the batch over.
                self._tally.add(metrics.BATCHES_FENCED)
                logs.emit(logs.BATCH_FENCED, logging.ERROR, **self._name, error=error.message)
                return FENCED
            except Exception as error:  # noqa: BLE001 - a fault in our own code is logged, counted and answered
                self._tally.add(metrics.BATCH_ERRORS)
                logs.emit(logs.BATCH_ERROR, logging.ERROR, **self._name, exc_info=True)
                return self._after_error(keeper.reason, f"{type(error).__name__}: {error}")

    def _after_error(self, reason: Reason | None, detail: str) -> str:
        try:
            return self._stopped(reason) if reason is not None else self._release(Mode.ERROR, detail)
        except (QueueError, ValueError):
            logs.emit(logs.BATCH_ERROR, logging.ERROR, **self._name, exc_info=True)
            return FENCED

    def _work_and_tidy(self, keeper: Keeper) -> str:
        try:
            return self._work(keeper)
        finally:
            if self._sessions is not None:
                self._sessions.close()

    def _work(self, keeper: Keeper) -> str:
        if not self._grant.payload:
            return self._close(lambda: self._fill("internal", "the batch's payload is gone from the server"))
        try:
            batch = codec.unpack_batch(self._grant.payload)
        except UnknownVersion as error:
            return self._release(Mode.LATER, error.message)
        except BadMessage as error:
            return self._misconfigured("bad_request", error.message)
        self._size = len(batch.candidates)
        self._name |= {"run": batch.run, "id": batch.id}
        keeper.exec_limit_s = float(batch.timeout_seconds)
        work = GroupWork(
            self._bench,
            self._grant,
            batch,
            keeper,
            on_draining=self._host.backend_failed,
            close=self._end,
        )
        self._work_on, self._sessions, self._judged = work, work.sessions, work.judged
        try:
            work.grade()
        except ValueError as error:
            if keeper.reason is not None:
                return self._stopped(keeper.reason)
            return self._misconfigured("bad_request", str(error))
        if keeper.reason is not None and (keeper.reason is Reason.FENCED or not work.complete):
            return self._stopped(keeper.reason)
        return self._finish(work)

    def _finish(self, work: GroupWork) -> str:
        failed = work.failed
        passing = work.passing()
        for error, _ in passing:
            self._host.backend_failed(error)
        if passing and self._grant.passes < self._bench.hops:
            return self._release(Mode.PASS, passing[0][1])
        codes = {error.error_code for error in failed.values()}
        if failed and not passing and not work.judged and len(codes) == 1:
            error = next(iter(failed.values()))
            return self._misconfigured(str(error.error_code), error.message)
        return self._close(lambda: self._publish(work))

    def _publish(self, work: GroupWork) -> str:
        faults.reach("all_judged")
        answers = [work.desk.flagged(index, error) for index, error in sorted(work.failed.items())]
        reply = persist(lambda: self._queue.publish(self._hold, answers))
        if reply.word is Published.FENCED:
            return self._fenced()
        if reply.word is Published.MISSING:
            raise RuntimeError(f"candidates {reply.missing} were neither judged nor flagged")
        failed = {answer.index: str(answer.error_code) for answer in answers}
        return self._published(reply.word, failed=failed, flagged=len(answers))

    def _misconfigured(self, code: str, detail: str) -> str:
        logs.emit(logs.BATCH_MISCONFIGURED, logging.WARNING, **self._name, code=code, detail=detail)
        return self._close(lambda: self._fill(code, detail))

    def _expired(self) -> str:
        answers = [] if self._work_on is None else self._work_on.expired()
        detail = next((str(answer.detail) for answer in answers), "the deadline passed before a candidate began")
        logs.emit(logs.BATCH_STOPPED, **self._name, reason=Reason.EXPIRED.value, detail=detail)
        return self._fill(Reason.EXPIRED.value, detail, answers)

    def _fill(self, code: str, detail: str, answers: Sequence[Verdict] = ()) -> str:
        reply = persist(lambda: self._queue.publish(self._hold, answers, fill=code, detail=clip_text(detail)))
        if reply.word is Published.FENCED:
            return self._fenced()
        return self._published(reply.word, fill=code, code=code)

    def _stopped(self, reason: Reason) -> str:
        """Close a batch that was told to stop. Also called by the keeper, when the job itself takes too long to."""
        if self._ended is not None:  # the lease is gone because of that, perhaps
            return self._close(lambda: DONE)
        if reason is Reason.FENCED:
            return self._fenced()
        if reason is Reason.SHUTDOWN:
            return self._release(Mode.CLEAN, "the worker is stopping", drop=self._bench.drop_on_stop)
        if reason is Reason.DRAINING:
            return self._release(Mode.CLEAN, "the sandbox daemon is draining", drop=True)
        if reason is Reason.EXPIRED:
            return self._close(self._expired)
        logs.emit(logs.BATCH_STOPPED, **self._name, reason=reason.value)
        return self._close(lambda: self._fill(reason.value, ""))

    def _release(self, mode: Mode, detail: str, *, drop: bool = False) -> str:
        return self._close(lambda: self._give_back(mode, detail, drop))

    def _give_back(self, mode: Mode, detail: str, drop: bool) -> str:
        sessions = self._sessions
        drop = drop and sessions is not None
        home = sessions is not None and sessions.only_here
        reply = persist(lambda: self._queue.release(self._hold, mode, drop=drop, home=home, detail=clip_text(detail)))
        if reply.word is Released.FENCED:
            return self._fenced()
        if drop and sessions is not None:
            faults.reach("dropped")
            sessions.dropped(reply.dropped)
            sessions.settle(SETTLE_S)
        faults.reach("released")
        released = reply.word is Released.RELEASED
        if released:
            self._tally.add(metrics.BATCHES_RELEASED, mode.value)
        else:
            self._count_answer(fill="internal")
        event = logs.BATCH_RELEASED if released else logs.BATCH_PUBLISHED
        logs.emit(event, **self._name, reason=mode.value, detail=detail)
        return OK

    def _tick(self) -> None:
        """In the keeper's thread, every now and then."""
        self._host.tick()
        if self._work_on is not None:
            self._work_on.write_due()

    def _close(self, closing: Callable[[], str]) -> str:
        with self._closing:
            if self._closed is None and self._ended is not None:
                self._closed = self._published(self._ended, flagged=0)
            if self._closed is None:
                self._closed = closing() if self._rest_is_written() else self._fenced()
            return self._closed

    def _rest_is_written(self) -> bool:
        """Whether no verdict waits to be written any more; False when fenced."""
        if self._work_on is None:
            return True
        try:
            self._work_on.write_rest()
        except Fenced:
            return False
        except RedisUnavailable:
            raise
        except (QueueError, RuntimeError):  # what the queue will not have; its candidate is one without a verdict
            logs.emit(logs.BATCH_ERROR, logging.ERROR, **self._name, exc_info=True)
        return True

    def _end(self, ending: Callable[[], PublishReply | None]) -> bool:
        """The last verdict and the answer at once; in that candidate's thread, while nobody else closes the batch."""
        with self._closing:
            if self._closed is not None:
                return False
            reply = ending()
            if reply is not None and reply.word in (Published.OK, Published.ALREADY):
                self._ended, self._judged = reply.word, range(self._size or 0)
            return True

    def _fenced(self) -> str:
        if self._closed is not None:  # by the keeper, while the last exec was still under way
            return self._closed
        self._tally.add(metrics.BATCHES_FENCED)
        logs.emit(logs.BATCH_FENCED, logging.WARNING, **self._name)
        return FENCED

    def _published(
        self, word: Published, *, failed: Mapping[int, str] | None = None, fill: str | None = None, **fields: Any
    ) -> str:
        if word is Published.ALREADY:  # by whoever took the batch over, or by this call when its reply was lost
            logs.emit(logs.BATCH_SKIPPED, **self._name, reply="answered")
            return DONE
        faults.reach("published")
        seconds = round(time.monotonic() - self._started, 3)
        self._tally.observe(metrics.BATCH_SECONDS, seconds)
        self._count_answer(failed=failed, fill=fill)
        logs.emit(logs.BATCH_PUBLISHED, **self._name, seconds=seconds, **fields)
        return OK

    def _count_answer(self, *, failed: Mapping[int, str] | None = None, fill: str | None = None) -> None:
        judged, quarantined = set(self._judged), self._grant.quarantined
        answer_counts.count(
            self._tally,
            *answer_counts.flags_of(self._size, judged=judged, quarantined=quarantined, failed=failed, fill=fill),
        )
