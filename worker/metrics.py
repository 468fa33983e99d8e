"""Every number that a node tells Prometheus: its name, kind, label and what the label's values may be.

Labels are closed sets, one label per family at most: no run, batch, candidate or text from outside ever becomes one, so
the number of series is bounded by what is written here. How the numbers are kept: `worker.tally`; how they are shown:
`worker.metrics_page`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from collimate_rl.errors import BACKPRESSURE, MISCONFIGURED, RETRYABLE_BEFORE_WORK
from collimate_rl.protocol.codes import OUTCOMES, OWN_INFRA_CODES, RECOVERED, ResultStatus
from collimate_rl.queue.replies import Buried, Mended, Mode

Kind = Literal["counter", "gauge", "histogram"]

ABSENT: Final = math.nan
"""A gauge that says nothing now: it is left out of the page."""

CODES: Final = (
    *sorted(
        OWN_INFRA_CODES
        | MISCONFIGURED
        | BACKPRESSURE
        | RETRYABLE_BEFORE_WORK
        | {"session_gone", "no_such_session", "template_failed", "upstream_error"}
    ),
    "other",
)
"""The codes that have a series of their own; any other code counts as `other`."""

SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One metric with all its series. `values` are the label's; a family without a label has the one value ''."""

    name: str
    kind: Kind
    help: str
    label: str = ""
    values: tuple[str, ...] = ("",)
    buckets: tuple[float, ...] = ()
    """Upper bounds in seconds; the one beyond them is implied."""


FAMILIES: dict[str, Family] = {}
"""By name, in the order of the page; the reference lists exactly these and `INFOS`."""

INFOS: Final = {
    "collimate_build_info": "1, with the worker's version and Python as labels.",
    "collimate_node_info": "1, with the names of the node and of its queue as labels.",
}
"""Families whose labels are constants of the process."""


def _declare(name: str, kind: Kind, text: str, label: str = "", values: tuple[str, ...] = ("",)) -> Family:
    FAMILIES[name] = Family(name=name, kind=kind, help=text, label=label, values=values)
    return FAMILIES[name]


def _seconds(name: str, text: str, buckets: tuple[float, ...]) -> Family:
    FAMILIES[name] = Family(name=name, kind="histogram", help=text, buckets=buckets)
    return FAMILIES[name]


# What worker processes count

BATCHES_CLAIMED = _declare("collimate_batches_claimed_total", "counter", "Batches that this node's workers took.")
BATCHES_TAKEN_OVER = _declare(
    "collimate_batches_taken_over_total", "counter", "Of those, batches that had lost an owner before."
)
BATCHES_PUBLISHED = _declare(
    "collimate_batches_published_total",
    "counter",
    "Batches that this node's workers answered, by the result's status.",
    "status",
    tuple(status.value for status in ResultStatus),
)
BATCHES_RELEASED = _declare(
    "collimate_batches_released_total",
    "counter",
    "Batches given back: clean (a stop or a drain), pass (the infrastructure failed here), later, error.",
    "reason",
    tuple(mode.value for mode in Mode),
)
BATCHES_FENCED = _declare(
    "collimate_batches_fenced_total", "counter", "Batches that somebody else had taken over, so that work was dropped."
)
BATCH_ERRORS = _declare("collimate_batch_errors_total", "counter", "Exceptions in the worker's own code.")
CANDIDATES_GRADED = _declare(
    "collimate_candidates_graded_total",
    "counter",
    "Candidates whose verdict the queue took from this node, by outcome.",
    "outcome",
    tuple(sorted(OUTCOMES)),
)
CANDIDATES_FLAGGED = _declare(
    "collimate_candidates_flagged_total",
    "counter",
    "Candidates that this node answered without a verdict, by code.",
    "code",
    CODES,
)
CANDIDATES_RECOVERED = _declare(
    "collimate_candidates_recovered_total",
    "counter",
    "Graded candidates whose batch had lost an owner, by what became of the earlier run.",
    "how",
    tuple(sorted(RECOVERED - {"none"})),
)
INFRA_ERRORS = _declare(
    "collimate_infra_errors_total",
    "counter",
    "Execs that the infrastructure failed, each try by itself, by code.",
    "code",
    CODES,
)
SANDBOXES_LOST = _declare(
    "collimate_sandboxes_lost_total",
    "counter",
    "Sandboxes that went away under a candidate, by how a control exec on the node did then.",
    "control",
    ("worked", "failed"),
)
SESSIONS_FOUND = _declare(
    "collimate_sessions_found_total",
    "counter",
    "Sessions of an earlier owner that the ledger named: attached to, or lost.",
    "reply",
    ("attached", "lost"),
)
BATCH_SECONDS = _seconds("collimate_batch_seconds", "From a batch's claim to its answer.", LONG)
QUEUE_SECONDS = _seconds("collimate_batch_queue_seconds", "From a batch's submission to its first claim.", LONG)
SLOT_WAIT_SECONDS = _seconds(
    "collimate_slot_wait_seconds", "How long an exec waited for one of the node's slots.", LONG
)
FORK_SECONDS = _seconds("collimate_fork_seconds", "How long forking a candidate's sandbox took.", SHORT)
EXEC_SECONDS = _seconds("collimate_exec_seconds", "How long a graded candidate ran.", LONG)
JUDGE_SECONDS = _seconds("collimate_judge_seconds", "How long judging a candidate took.", SHORT)
SLOTS_IN_USE = _declare("collimate_slots_in_use", "gauge", "Sandbox slots that this node's workers hold.")
BATCHES_RUNNING = _declare("collimate_batches_running", "gauge", "Batches that this node's workers are at.")
PROCESSES_READY = _declare("collimate_worker_processes_ready", "gauge", "Worker processes that take jobs.")

# What the supervisor counts

PROCESSES_STARTED = _declare("collimate_worker_processes_started_total", "counter", "Worker processes started.")
PROCESSES_ENDED = _declare(
    "collimate_worker_processes_ended_total",
    "counter",
    "Worker processes that ended: stopped in order, killed by a signal, cut_off from the server, and so on.",
    "how",
    ("stopped", "killed", "cut_off", "stuck", "refused", "error"),
)
BATCHES_BURIED = _declare(
    "collimate_batches_buried_total",
    "counter",
    "Batches of dead workers that were given back at once, or answered.",
    "reply",
    (Buried.RELEASED.value.lower(), Buried.ANSWERED.value.lower()),
)
JANITOR_ACTIONS = _declare(
    "collimate_janitor_actions_total",
    "counter",
    "What the queue's janitor did to batches, while this node's led.",
    "action",
    (*(word.value.lower() for word in Mended), "bumped", "swept", "broken"),
)
SESSIONS_REAPED = _declare("collimate_sessions_reaped_total", "counter", "Sessions that the session janitor deleted.")
SLOTS = _declare("collimate_slots", "gauge", "Sandbox slots that this node has.")
PROCESSES = _declare("collimate_worker_processes", "gauge", "Worker processes alive.")
PROCESSES_WANTED = _declare("collimate_worker_processes_wanted", "gauge", "Worker processes that there should be.")
REDIS_UP = _declare("collimate_redis_up", "gauge", "1 when the server took the last heartbeat.")
BACKEND_UP = _declare("collimate_backend_up", "gauge", "1 when a sandbox could be forked, or the daemon was just full.")
PAUSED = _declare(
    "collimate_node_paused",
    "gauge",
    "1 while the node takes nothing, because its daemon drains or is away.",
    "why",
    ("draining", "away"),
)
PAUSED_SINCE = _declare(
    "collimate_node_paused_since_timestamp_seconds", "gauge", "When that pause began; absent without one."
)
STOPPING = _declare("collimate_supervisor_stopping", "gauge", "1 after a stop signal.")
STARTED_AT = _declare("collimate_supervisor_start_timestamp_seconds", "gauge", "When the supervisor started.")
HEARTBEAT_AT = _declare(
    "collimate_last_heartbeat_timestamp_seconds", "gauge", "When the server took a heartbeat last; absent before."
)
JANITOR_LEADING = _declare("collimate_janitor_leading", "gauge", "1 while this node's janitor leads the queue.")

# What the leading supervisor reads of the whole queue; absent on the others

QUEUE_UNANSWERED = _declare("collimate_queue_unanswered_batches", "gauge", "Batches submitted and not answered.")
QUEUE_WAITING = _declare("collimate_queue_waiting_batches", "gauge", "Of those, batches that nobody owns.")
QUEUE_RUNNING = _declare("collimate_queue_running_batches", "gauge", "Of those, batches that a worker owns.")
QUEUE_LOSSY = _declare("collimate_queue_lossy_batches", "gauge", "Of those, batches that lost an owner.")
QUEUE_OLDEST = _declare(
    "collimate_queue_oldest_batch_seconds", "gauge", "Since the oldest unanswered batch was submitted; 0 without one."
)
QUEUE_SETTLED = _declare("collimate_queue_settled", "gauge", "1 when lost owners are replaced: beats come steadily.")
QUEUE_NODES = _declare("collimate_queue_nodes", "gauge", "Nodes with a heartbeat.")
QUEUE_NODES_UP = _declare("collimate_queue_nodes_up", "gauge", "Of those, nodes whose sandbox daemon takes work.")
QUARANTINED = _declare("collimate_quarantined_candidates", "gauge", "Candidates in quarantine, of all queues.")
READ_SECONDS = _declare("collimate_queue_read_seconds", "gauge", "How long reading these took.")

OF_THE_QUEUE: Final = (
    QUEUE_UNANSWERED,
    QUEUE_WAITING,
    QUEUE_RUNNING,
    QUEUE_LOSSY,
    QUEUE_OLDEST,
    QUEUE_SETTLED,
    QUEUE_NODES,
    QUEUE_NODES_UP,
    QUARANTINED,
    READ_SECONDS,
)
