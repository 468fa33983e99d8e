"""Fault points: the instants between two steps at which a crash, or a long pause, would be worst.

Tests switch them on by environment, and have a process stop exactly there. Without COLLIMATE_FAULTS, `reach` does
nothing. Never set it where work is done.

COLLIMATE_FAULTS -- `point=action` pairs with commas between them, read once, at import: `noted=kill,published=stop`.
    `kill` is SIGKILL, `stop` SIGSTOP, both sent to the own process. `point=action@3` acts when the process reaches the
    point for the third time.
COLLIMATE_FAULTS_ONCE -- a directory. A point acts once over all processes that share it: whoever makes the file with
    the point's name acts, and has written its pid there. A file that is there before switches the point off.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

POINTS: Mapping[str, str] = {
    # a worker, up to its claim
    "bell_popped": "a bell is on rq's intermediate list, and no execution says who is at it",
    "job_started": "the job is started, and its batch not claimed",
    "claimed": "the batch is claimed, and nothing of it begun",
    "execution_entered": "rq is told who is at the bell, whose batch runs",
    # a candidate's session
    "session_created": "a session is made, and no ledger names it",
    "noted": "a session is noted, and nothing has run in it",
    "attached": "an earlier owner's session was found, and nothing sent to it",
    "replaced": "a session is noted in another's place, and that one not deleted",
    # a candidate's answer
    "marked": "a start is marked in a cautious batch, and no exec sent",
    "cases_made": "a judge's fork has made the cases, and they are not stored",
    "cases_stored": "the cases are stored, and no candidate ran on them",
    "graded": "a candidate is graded, and its verdict not written",
    "verdict_waits": "a verdict waits for others, to be written with them",
    "verdict_written": "a verdict was accepted, and its session not deleted",
    # the end of a batch
    "all_judged": "every verdict is written, and the batch not published",
    "published": "the batch is published, and rq not told",
    "dropped": "a release took sessions out of the ledger, and they are not deleted",
    "released": "the batch is given back, and rq not told",
    # a supervisor
    "death_seen": "a worker's death is seen, and its batch not given back",
    "buried": "a dead worker's batch is given back, and rq not told",
    "earlier_life": "a worker of an earlier supervisor is about to be buried",
    # janitors
    "mending": "a round of the queue's janitor is about to mend a batch",
    "sweeping": "a bell is off the intermediate list, and its job's hash not deleted",
    "tallying": "a round of the queue's janitor has looked at answers, and not counted them",
    "tallied": "answers are counted, and the janitor's process does not know it yet",
    "reaping": "a session was found to be nobody's, and not deleted",
    # a trainer
    "submitted": "a batch is submitted, and the reply not looked at",
    "result_taken": "a result is in its handle, and the cursor not moved on",
}
"""Every fault point, and what is so when it is reached."""

ACTIONS: Mapping[str, signal.Signals] = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens at a point, and at which time of reaching it."""

    action: str
    turn: int = 1


def parse(text: str) -> dict[str, Fault]:
    """What COLLIMATE_FAULTS says, by point. `ValueError` for a point or an action that there isn't."""
    plan: dict[str, Fault] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        point, _, rest = pair.partition("=")
        action, counted, turn = rest.partition("@")
        if point not in POINTS:
            raise ValueError(
                f"COLLIMATE_FAULTS names {point!r}, which is no fault point; there are {', '.join(POINTS)}"
            )
        if action not in ACTIONS or (counted and not (turn.isdecimal() and int(turn) > 0)):
            raise ValueError(f"COLLIMATE_FAULTS has {pair!r}: after the point comes =kill or =stop, and perhaps @turn")
        plan[point] = Fault(action=action, turn=int(turn or 1))
    return plan


_plan = parse(os.environ.get("COLLIMATE_FAULTS", ""))
_once = os.environ.get("COLLIMATE_FAULTS_ONCE")
_guard = threading.Lock()
_reached: dict[str, int] = {}


def reach(point: str) -> None:
    """The process is at `point` now. Does nothing unless COLLIMATE_FAULTS names it."""
    if _plan:
        _reach(point)


def _reach(point: str) -> None:
    fault = _plan.get(point)
    if fault is None:
        return
    with _guard:
        _reached[point] = _reached.get(point, 0) + 1
        if _reached[point] != fault.turn or not _first(point):
            return
    # To this thread, which so doesn't run on until another has taken the signal.
    signal.pthread_kill(threading.get_ident(), ACTIONS[fault.action])


def _first(point: str) -> bool:
    if _once is None:
        return True
    try:
        fd = os.open(Path(_once) / point, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(fd, f"{os.getpid()}\n".encode())
    finally:
        os.close(fd)
    return True
