"""One group being graded: its candidates, its threads, and how verdicts leave it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from collimate_rl.errors import CollimateError, SandboxKilled
from collimate_rl.grading.execute import ExecRequest, Executor, Role
from collimate_rl.grading.limits import RETRIED, STARVED, UNCLEAR, Budget
from collimate_rl.grading.result import GradeResult
from collimate_rl.grading.smells import names_harness, together
from collimate_rl.sandbox import ExecResult
from collimate_rl.seeds import is_valid_seed

MAX_CODE: Final = 8 << 20
"""Bytes of a candidate; in a job's JSON they may be six times as many."""

Graded = GradeResult | CollimateError
"""A grade, or the exception object that stands for the infrastructure's failure of that candidate."""


class CaseStore(Protocol):
    """Keeps the cases that a judge fork made, so that a recovery judges the same ones. Write-once."""

    def get(self) -> bytes | None:
        """What stands, if anything does."""
        ...

    def put(self, blob: bytes) -> bytes:
        """Store it unless something stands; returns what stands then."""
        ...


class Stopped(Exception):
    """No further exec is to be started: what is unfinished stays so."""


class GroupRun:
    """The candidates of one group and what became of them. Ways of grading take one and finish its pending indices."""

    def __init__(
        self,
        execute: Executor,
        candidates: Sequence[str],
        *,
        seeds: Sequence[str | None],
        timeout_seconds: int = 30,
        concurrency: int = 24,
        skip: Collection[int] = (),
        on_grade: Callable[[int, Graded], None] | None = None,
        stop: threading.Event | None = None,
        case_store: CaseStore | None = None,
        exec_prefix: str | None = None,
    ) -> None:
        if len(seeds) != len(candidates):
            raise ValueError(f"{len(seeds)} seeds for {len(candidates)} candidates: one each")
        texts: Sequence[object] = candidates
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a candidate is text")
        check_timeout(timeout_seconds)
        if concurrency < 1:
            raise ValueError(f"concurrency is at least 1, not {concurrency}")
        self.candidates = [text.removeprefix("\ufeff") for text in candidates]
        self.seeds = list(seeds)
        self.timeout_seconds = timeout_seconds
        self.concurrency = concurrency
        self.case_store = case_store
        self.exec_prefix = exec_prefix
        self.results: list[Graded | None] = [None] * len(candidates)
        self.pending = [index for index in range(len(candidates)) if index not in skip]
        self._execute = execute
        self._again: dict[int, Graded] = {}
        """Candidates that ran out of time for want of a processor, with that grade: to be run once more."""
        self._quiet: int | None = None
        """The candidate that is being run once more."""
        self._budget = Budget(len(candidates))
        self._on_grade = on_grade
        self._stop = stop
        self._refuse_bad_seeds()
        self._refuse_oversized()

    def _refuse_bad_seeds(self) -> None:
        for index in list(self.pending):
            seed = self.seeds[index]
            if seed is not None and not is_valid_seed(seed):
                self.pending.remove(index)
                self.finish(
                    index, CollimateError(f"a seed is 64 hex digits (32 bytes), not {seed!r:.100}", 400, "invalid_seed")
                )

    def _refuse_oversized(self) -> None:
        """What a sandbox has no room for would fail as if the sandbox did."""
        for index in list(self.pending):
            size = len(self.candidates[index].encode("utf-8", "surrogatepass"))
            if size > MAX_CODE:
                self.pending.remove(index)
                words = f"the code is {size:,} bytes, above {MAX_CODE:,}"
                self.finish(index, GradeResult(0.0, seed=self.seeds[index], outcome="output_limit", detail=words))

    @property
    def stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        """Run a request; raises Stopped instead of starting one after the stop."""
        if self.stopped:
            raise Stopped
        if index is not None and index == self._quiet:
            request = replace(request, quiet=True)
        return self._execute.run(request, role=role, index=index)

    def exec_id(self, index: int | None, turn: int = 0) -> str | None:
        """The name under which a runner's exec may be sent again; None where nobody will, or for no candidate's."""
        if self.exec_prefix is None or index is None:
            return None
        # Under the same name a session would only read what was, once more.
        return f"{self.exec_prefix}-{index}-{turn}" + ("-again" if index == self._quiet else "")

    def finish(self, index: int, graded: Graded) -> None:
        """Enter a candidate's final grade and tell whoever waits for it; or keep it for `once_more`."""
        if isinstance(graded, SandboxKilled):
            graded = GradeResult(0.0, seed=self.seeds[index], outcome="sandbox_killed", detail=graded.message)
        if isinstance(graded, GradeResult) and index == self._quiet:
            graded = replace(graded, flags=together(graded.flags, [RETRIED]))
        elif isinstance(graded, GradeResult) and graded.reward != 1.0 and {STARVED, UNCLEAR} & set(graded.flags):
            self._again[index] = graded
            return
        self._enter(index, graded)

    def _enter(self, index: int, graded: Graded) -> None:
        if isinstance(graded, GradeResult) and names_harness(self.candidates[index]):
            graded = replace(graded, flags=together(graded.flags, ["names_harness"]))
        self.results[index] = graded
        if self._on_grade is not None:
            self._on_grade(index, graded)

    def once_more(self, grade: Callable[[int], None]) -> None:
        """After the rest of the group: have each candidate that was kept graded afresh, one by one, on a quiet slot.

        `grade` ends in `finish`, or raises Stopped. What the budget doesn't allow keeps the grade that it has.
        """
        kept, self._again = sorted(self._again.items()), {}
        for index, graded in kept:
            assert isinstance(graded, GradeResult)
            self._quiet = index
            try:
                if self._budget.take(STARVED if STARVED in graded.flags else UNCLEAR):
                    grade(index)
                else:
                    self._enter(index, graded)
            finally:
                self._quiet = None

    def each(self, grade_one: Callable[[int], Graded]) -> None:
        """Grade every pending candidate, side by side; an infra failure becomes its grade."""

        def finish_one(index: int) -> None:
            try:
                graded = grade_one(index)
            except CollimateError as error:
                graded = error
            self.finish(index, graded)

        side_by_side(finish_one, [i for i in self.pending if self.results[i] is None], self.concurrency)
        try:
            self.once_more(finish_one)
        except Stopped:
            return

    def fail_pending(self, error: CollimateError) -> None:
        """Give every unfinished candidate the same infra failure."""
        for index in self.pending:
            if self.results[index] is None:
                self.finish(index, error)


def check_timeout(timeout_seconds: Any) -> None:
    """ValueError unless it is a whole number of seconds that an exec takes."""
    whole = isinstance(timeout_seconds, int) and not isinstance(timeout_seconds, bool)
    if not whole or not 1 <= timeout_seconds <= 3600:
        raise ValueError(f"timeout_seconds is a whole number from 1 to 3600, not {timeout_seconds!r}")


def side_by_side(work: Callable[[Any], None], items: Sequence[Any], concurrency: int) -> None:
    """Call `work` on every item in up to `concurrency` threads, of which the caller's is one.

    Stopped ends one item quietly. Any other exception keeps further items from starting and is raised at the end.
    """
    todo: Iterator[Any] = iter(items)
    lock = threading.Lock()
    failures: list[BaseException] = []

    def worker() -> None:
        while not failures:
            with lock:
                item = next(todo, failures)
            if item is failures:
                return
            try:
                work(item)
            except Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                failures.append(error)

    threads = [
        threading.Thread(target=worker, name=f"collimate-grade-{n}", daemon=True)
        for n in range(min(concurrency, len(items)) - 1)
    ]
    for thread in threads:
        thread.start()
    worker()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
