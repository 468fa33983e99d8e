"""Log events: one JSON line per event for machines, one readable line for people.

An event is a name from `EVENTS` with fields. Everything goes to stderr, a line at a time, so that the lines of
several processes don't mix.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

EVENTS: dict[str, str] = {}
"""Event name -> what it says; the reference documents exactly these."""

_logger = logging.getLogger("collimate.worker")
_context: dict[str, Any] = {}


class _Formatter(logging.Formatter):
    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields: dict[str, Any] = dict(getattr(record, "event_fields", {}))
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = self.formatException(record.exc_info)
        return fields

    def event(self, record: logging.LogRecord) -> str:
        return str(getattr(record, "event", "") or record.name)


class JsonFormatter(_Formatter):
    """One object per line: `at` (seconds since 1970), `level`, `event`, `node`, `worker`, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": self.event(record),
            **_context,
            **self.fields(record),
        }
        if not hasattr(record, "event"):
            line["message"] = record.getMessage()
        return json.dumps(line, default=str)


class TextFormatter(_Formatter):
    """`12:00:00 info  batch_graded  worker=n1-0-ab12 k=… seconds=0.4`; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        trace = fields.pop("traceback", None)
        words = [f"{key}={value}" for key, value in {**_context, **fields}.items() if key != "node" and value != ""]
        if not hasattr(record, "event"):
            words.append(record.getMessage())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock} {record.levelname.lower():7} {self.event(record)}  {' '.join(words)}".rstrip()
        return f"{line}\n{trace}" if trace else line


def configure(
    log_format: str, log_level: str, *, stream: TextIO | None = None, rq: bool = True, **context: Any
) -> None:
    """Set up this process's log; `context` (node, worker) stands in every line.

    rq -- rq's own warnings join it; False leaves rq's log as it is.
    """
    _context.clear()
    _context.update(context)
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    levels = {"collimate.worker": LEVELS[log_level], **({"rq": logging.WARNING} if rq else {})}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


def _declare(name: str, meaning: str) -> str:
    EVENTS[name] = meaning
    return name


def emit(event: str, level: int = logging.INFO, *, exc_info: bool = False, **fields: Any) -> None:
    """Log one declared event; an undeclared name is a programming error and raises `KeyError`."""
    if event not in EVENTS:
        raise KeyError(event)
    if _logger.isEnabledFor(level):
        _logger.log(level, event, exc_info=exc_info, extra={"event": event, "event_fields": fields})


SUPERVISOR_READY = _declare("supervisor_ready", "the node's worker processes are being started")
SUPERVISOR_STOPPING = _declare("supervisor_stopping", "a signal came; running batches have the grace time to finish")
SUPERVISOR_STOPPED = _declare("supervisor_stopped", "every worker process is gone")
REFUSED = _declare("refused", "the worker will not start; `reason` says why and what to do")
METRICS_SERVED = _declare("metrics_served", "/metrics, /healthz and /readyz are served on `host` and `port`")
NUMBERS_FAILED = _declare("numbers_failed", "what the metrics say of the queue could not be read; trying again")
PROCESS_STARTED = _declare("process_started", "a worker process was started")
PROCESS_ENDED = _declare("process_ended", "a worker process is gone; `restart_in` seconds until the next one")
PROCESS_KILLED = _declare("process_killed", "a worker process had to be killed; `reason` says why")
BURIED = _declare("buried", "what a dead worker owned went back to the queue")
ORPHAN_KILLED = _declare("orphan_killed", "a worker process of an earlier supervisor was still alive and was killed")
NODE_TAKEN = _declare("node_taken", "another live supervisor has this node's name; waiting for it to go")
REDIS_DOWN = _declare("redis_down", "the server cannot be reached; trying again")
REDIS_BACK = _declare("redis_back", "the server answers again")
BACKEND_DOWN = _declare("backend_down", "the sandbox daemon cannot take work; no job is taken until a probe works")
BACKEND_UP = _declare("backend_up", "the sandbox daemon takes work")
PAUSE_UNSHARED = _declare(
    "pause_unshared", "the node's pause cannot be kept in its state directory: each process pauses by itself"
)
WORKER_READY = _declare("worker_ready", "a worker process is about to take jobs")
WORKER_STOPPED = _declare("worker_stopped", "a worker process ended its loop")
BATCH_CLAIMED = _declare("batch_claimed", "a batch is this worker's, under fence `fence`")
BATCH_SKIPPED = _declare("batch_skipped", "a bell rang for a batch that needs nothing here; `reply` says why")
CANDIDATE_GRADED = _declare("candidate_graded", "one candidate has its verdict (debug)")
CANDIDATE_SUSPECT = _declare(
    "candidate_suspect", "a verdict that says that the candidate attacked what ran it; `outcome` says how"
)
CANDIDATE_RETRIED = _declare("candidate_retried", "an infrastructure error; the candidate is tried again here")
CANDIDATE_INFRA = _declare("candidate_infra", "the tries on this node are used up for a candidate")
SANDBOX_LOST = _declare(
    "sandbox_lost",
    "a candidate's sandbox went away under it; `control`: the node works, `counted` against the candidate",
)
SESSION_FOUND = _declare("session_found", "the ledger named a session: attached to it, or lost; `reply` says which")
SESSION_DELETED = _declare("session_deleted", "a session was deleted by its owner's right (debug)")
SESSION_LEFT = _declare("session_left", "a session could not be deleted now; the janitor will")
SESSION_REAPED = _declare("session_reaped", "the session janitor deleted a session; `reason` says why")
BATCH_PUBLISHED = _declare("batch_published", "a batch's result was published")
BATCH_RELEASED = _declare("batch_released", "a batch went back to the queue; `reason` says why")
BATCH_FENCED = _declare("batch_fenced", "somebody else owns the batch now; nothing more is written here")
BATCH_STOPPED = _declare("batch_stopped", "a batch was cancelled or is past its deadline; its grading stopped")
BATCH_MISCONFIGURED = _declare("batch_misconfigured", "the batch itself is off; every open candidate is flagged")
BATCH_ERROR = _declare("batch_error", "an exception in the worker's own code")
SEAT_FAILED = _declare(
    "seat_failed", "a place under the gateway key's cap could not be renewed or given back; it ends by itself (debug)"
)
RENEW_FAILED = _declare("renew_failed", "the lease could not be renewed just now; trying again")
STUCK_EXIT = _declare("stuck_exit", "a batch that had to stop did not: the process ends itself")
LOOP_FAILED = _declare("loop_failed", "one round of a background loop broke off; the next one comes")
JANITOR_LEADS = _declare("janitor_leads", "this node's janitor leads the queue")
JANITOR_ACTED = _declare("janitor_acted", "the janitor did something for a batch or an entry; `action` says what")
JANITOR_FAILED = _declare("janitor_failed", "a janitor's round broke off; the next one tries again")
