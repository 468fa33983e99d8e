"""Log events: one JSON line per event for machines, one readable line for people.

An event is a name from `EVENTS` with fields. Everything goes to stderr, a line at a time, so that the lines of
several processes don't mix.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any, TextIO

from worker.log_lines import JsonFormatter, Seldom, TextFormatter, may_colour

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

EVENTS: dict[str, str] = {}
"""Event name -> what it says; the reference documents exactly these."""

CARRIES: dict[str, frozenset[str]] = {}
"""Event name -> fields that every such event has; `k` is the batch, `index` the candidate. Where a candidate runs in no
session, its `session` is None."""

PARTS = ("collimate_rl", "worker.dashboard", "uvicorn")
"""Loggers whose warnings stand among the events, under their own names."""

_logger = logging.getLogger("collimate.worker")


def configure(
    log_format: str, log_level: str, *, stream: TextIO | None = None, rq: bool = True, **context: Any
) -> None:
    """Set up this process's log; `context` (node, worker) stands in every line.

    Warnings of the SDK and of the dashboard's server join it.

    rq -- rq's, too; False leaves rq's log as it is.
    """
    out = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        JsonFormatter(context) if log_format == "json" else TextFormatter(context, colours=may_colour(out))
    )
    others = (*PARTS, "rq") if rq else PARTS
    levels = {"collimate.worker": LEVELS[log_level], **dict.fromkeys(others, logging.WARNING)}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
    if rq:
        worker = logging.getLogger("rq.worker")
        worker.filters[:] = [Seldom()]


def _declare(name: str, meaning: str, *carries: str) -> str:
    EVENTS[name] = meaning
    CARRIES[name] = frozenset(carries)
    return name


def take_uncaught() -> None:
    """Have an exception that ends this process, or a thread of it, told as an event instead of a bare traceback."""

    def told(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        emit(UNCAUGHT, logging.ERROR, exc_info=kind() if error is None else error.with_traceback(trace))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:  # how a thread is left in order
            told(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = told
    threading.excepthook = in_thread


def emit(event: str, level: int = logging.INFO, *, exc_info: bool | BaseException = False, **fields: Any) -> None:
    """Log one declared event; an undeclared name is a programming error and raises `KeyError`."""
    if event not in EVENTS:
        raise KeyError(event)
    if _logger.isEnabledFor(level):
        _logger.log(level, event, exc_info=exc_info, extra={"event": event, "event_fields": fields})


SUPERVISOR_READY = _declare("supervisor_ready", "the node's worker processes are being started")
SUPERVISOR_STOPPING = _declare("supervisor_stopping", "a signal came; running batches have the grace time to finish")
SUPERVISOR_STOPPED = _declare("supervisor_stopped", "every worker process is gone")
REFUSED = _declare("refused", "the worker will not start; `reason` says why and what to do", "reason")
METRICS_SERVED = _declare(
    "metrics_served", "/metrics, /healthz and /readyz are served on `host` and `port`", "host", "port"
)
DASHBOARD_SERVED = _declare("dashboard_served", "the dashboard is served at `url`", "url")
NUMBERS_FAILED = _declare("numbers_failed", "what the metrics say of the queue could not be read; trying again")
PROCESS_STARTED = _declare("process_started", "a worker process was started", "started", "pid")
PROCESS_ENDED = _declare(
    "process_ended", "a worker process is gone; `restart_in` seconds until the next one", "ended", "pid", "code"
)
PROCESS_KILLED = _declare("process_killed", "a worker process had to be killed; `reason` says why", "killed", "reason")
BURIED = _declare("buried", "what a dead worker owned went back to the queue", "buried", "reply")
ORPHAN_KILLED = _declare(
    "orphan_killed", "a worker process of an earlier supervisor was still alive and was killed", "orphan", "pid"
)
NODE_TAKEN = _declare("node_taken", "another live supervisor has this node's name; waiting for it to go")
REDIS_DOWN = _declare("redis_down", "the server cannot be reached; trying again", "error")
REDIS_BACK = _declare("redis_back", "the server answers again")
BACKEND_DOWN = _declare(
    "backend_down", "the sandbox daemon cannot take work; no job is taken until a probe works", "reason"
)
BACKEND_UP = _declare("backend_up", "the sandbox daemon takes work")
PAUSE_UNSHARED = _declare(
    "pause_unshared", "the node's pause cannot be kept in its state directory: each process pauses by itself"
)
WORKER_READY = _declare("worker_ready", "a worker process is about to take jobs")
WORKER_STOPPED = _declare("worker_stopped", "a worker process ended its loop")
BATCH_CLAIMED = _declare("batch_claimed", "a batch is this worker's, under fence `fence`", "k", "fence")
BATCH_SKIPPED = _declare(
    "batch_skipped", "a bell rang for a batch that needs nothing here; `reply` says why", "k", "reply"
)
CANDIDATE_GRADED = _declare(
    "candidate_graded", "one candidate has its verdict (debug)", "k", "index", "session", "outcome"
)
CANDIDATE_SUSPECT = _declare(
    "candidate_suspect",
    "a verdict that says that the candidate attacked what ran it; `outcome` says how",
    "k",
    "index",
    "session",
    "outcome",
)
CANDIDATE_RETRIED = _declare(
    "candidate_retried",
    "an infrastructure error; the candidate is tried again here",
    "k",
    "index",
    "session",
    "code",
    "error",
)
CANDIDATE_INFRA = _declare(
    "candidate_infra", "the tries on this node are used up for a candidate", "k", "index", "session", "code", "error"
)
SANDBOX_LOST = _declare(
    "sandbox_lost",
    "a candidate's sandbox went away under it; `control`: the node works, `counted` against the candidate",
    "k",
    "index",
    "session",
    "control",
    "counted",
)
SESSION_FOUND = _declare(
    "session_found",
    "the ledger named a session: attached to it, or lost; `reply` says which",
    "k",
    "index",
    "session",
    "reply",
)
SESSION_DELETED = _declare("session_deleted", "a session was deleted by its owner's right (debug)", "k", "session")
SESSION_LEFT = _declare("session_left", "a session could not be deleted now; the janitor will", "k", "session", "error")
SESSION_REAPED = _declare(
    "session_reaped", "the session janitor deleted a session; `reason` says why", "k", "index", "session", "reason"
)
BATCH_PUBLISHED = _declare("batch_published", "a batch's result was published", "k", "fence")
BATCH_RELEASED = _declare("batch_released", "a batch went back to the queue; `reason` says why", "k", "fence", "reason")
BATCH_FENCED = _declare("batch_fenced", "somebody else owns the batch now; nothing more is written here", "k", "fence")
BATCH_STOPPED = _declare(
    "batch_stopped", "a batch was cancelled or is past its deadline; its grading stopped", "k", "fence", "reason"
)
BATCH_MISCONFIGURED = _declare(
    "batch_misconfigured", "the batch itself is off; every open candidate is flagged", "k", "fence", "code", "detail"
)
BATCH_ERROR = _declare("batch_error", "an exception in the worker's own code", "k")
SEAT_FAILED = _declare(
    "seat_failed", "a place under the gateway key's cap could not be renewed or given back; it ends by itself (debug)"
)
RENEW_FAILED = _declare("renew_failed", "the lease could not be renewed just now; trying again", "k", "error")
STUCK_EXIT = _declare("stuck_exit", "a batch that had to stop did not: the process ends itself", "k", "reason")
UNCAUGHT = _declare("uncaught", "an exception that nothing took ended a thread of this process, or the process")
LOOP_FAILED = _declare("loop_failed", "one round of a background loop broke off; the next one comes")
JANITOR_LEADS = _declare("janitor_leads", "this node's janitor leads the queue")
JANITOR_ACTED = _declare("janitor_acted", "the janitor did something for a batch or an entry; `action` says what")
JANITOR_FAILED = _declare("janitor_failed", "a janitor's round broke off; the next one tries again")
