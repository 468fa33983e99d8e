"""What an answer says that the deadline came before: where the candidate stood, and the last error that it met."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from collimate_rl.errors import CollimateError, UnreachableError
from collimate_rl.grading.execute import ExecRequest, Role
from collimate_rl.protocol.bounds import MAX_LINE_BYTES
from collimate_rl.sandbox import ExecResult
from worker.executor import NodeExecutor, RetryPolicy
from worker.progress import Progress, Stage
from worker.slots import Slots

REFUSED = UnreachableError("unix:/run/x.sock: cannot connect: refused")
FULL = CollimateError("32 execs run already", 503, "at_capacity")
AWAY = "the sandbox daemon of node n1 could not be reached: unix:/run/x.sock: cannot connect: refused"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Daemon:
    """Meets each exec with the next error, and looks at what an answer would say while the last one runs."""

    def __init__(self, progress: Progress, *errors: CollimateError) -> None:
        self.progress = progress
        self.errors = list(errors)
        self.seen: list[str] = []

    def run(self, request: ExecRequest, *, role: Role, index: int | None) -> ExecResult:
        self.seen.append(self.progress.told(index or 0))
        raise self.errors.pop(0)


def test_every_step_of_a_candidate_is_told(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress("n1", clock=clock)
    daemon = Daemon(progress, REFUSED, FULL)
    pauses: list[str] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(progress.told(0))
            return False

    slots = Slots(tmp_path, 1, clock=clock)
    execute = NodeExecutor(
        daemon,
        slots,
        RetryPolicy(retries=1),
        until=1000.0,
        stop=Stop(),
        on_retry=lambda *_: None,
        on_wait=lambda _seconds: daemon.seen.append(progress.told(0)),
        progress=progress,
        clock=clock,
    )
    assert progress.told(0) == "while others of its batch were being graded on node n1"
    with pytest.raises(CollimateError):
        execute.run(ExecRequest(code="pass"), role="runner", index=0)
    slots.close()
    waits, runs = (
        "while it waited for a sandbox slot of node n1",
        "while it was being run on node n1, for 0.0 s by then",
    )
    before = f"; before that: {AWAY} (unreachable, 1 try)"
    assert daemon.seen == [waits, runs, waits + before, runs + before]
    assert pauses == [f"while node n1 tried it again: {AWAY} (unreachable, 1 try)"]
    assert progress.told(0) == "after node n1 had given it up: 32 execs run already (at_capacity, 2 tries)"
    assert progress.failure(0, FULL) == "32 execs run already (at_capacity, 2 tries)"


def test_the_specs_own_code_is_what_others_wait_for_until_it_has_ended() -> None:
    progress = Progress("n1")
    progress.failed(None, FULL)
    progress.reach(None, Stage.RUN)
    assert progress.told(3) == (
        "while the spec's own code had yet to end on node n1; before that: 32 execs run already (at_capacity, 1 try)"
    )
    progress.reach(None, Stage.JUDGE)
    assert progress.told(3) == "while others of its batch were being graded on node n1"


def test_what_a_daemon_says_is_cut_and_put_on_one_line() -> None:
    progress = Progress("n1")
    progress.failed(0, CollimateError("line\n" * 1000, 500))
    progress.reach(0, Stage.PAUSE)
    told = progress.told(0)
    assert told.startswith("while node n1 tried it again: line line ")
    assert len(told) <= MAX_LINE_BYTES + 80
    assert "\n" not in told
