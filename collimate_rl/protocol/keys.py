"""Names of everything in Redis. The scripts build the same names from the same parts (`scripts/prelude.lua`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchKeys:
    """The keys of one batch; `k` is its identity (`identity.batch_key`)."""

    k: str

    @property
    def payload(self) -> str:
        """String: the packed `GradeBatch`."""
        return f"col:batch:{self.k}"

    @property
    def state(self) -> str:
        """Hash: status, owner, fence, lease, deadline, counts (docs/reference/queue.md lists the fields)."""
        return f"col:state:{self.k}"

    @property
    def verdicts(self) -> str:
        """Hash: candidate index to packed `Verdict`, each written once."""
        return f"col:verdicts:{self.k}"

    @property
    def ledger(self) -> str:
        """Hash: candidate index to where its session lives."""
        return f"col:ledger:{self.k}"

    @property
    def flight(self) -> str:
        """Hash: candidate index to the time of a marked start, in a cautious batch."""
        return f"col:flight:{self.k}"

    @property
    def cases(self) -> str:
        """String: cases that a judge fork made, written once."""
        return f"col:cases:{self.k}"

    @property
    def askers(self) -> str:
        """Set: producers that wait for the result."""
        return f"col:askers:{self.k}"

    @property
    def done(self) -> str:
        """String: the packed `BatchResult`; the authority."""
        return f"col:done:{self.k}"


QUARANTINE = "col:quarantine"
"""Stream: one entry per quarantined candidate (k, index, run, id, queue, node, worker), the last 1,000."""


def pending(queue: str) -> str:
    """Sorted set: every unanswered k by the time (ms) of its next check. Its size is the queue's depth."""
    return f"col:pending:{queue}"


def inflight(run: str) -> str:
    """Sorted set: the run's unanswered k by the time (ms) they would expire. Its size is the window's count."""
    return f"col:inflight:{run}"


def results(run: str, producer: str) -> str:
    """Stream: one entry per finished batch that the producer asked for: k, id, epoch, status."""
    return f"col:results:{run}:{producer}"


def cursor(run: str, producer: str) -> str:
    """String: the last stream id that the producer acknowledged."""
    return f"col:cursor:{run}:{producer}"


def turn(queue: str, run: str) -> str:
    """String: the round of the bell that the run rang last at the back of the queue's list; the next comes later."""
    return f"col:turn:{queue}:{run}"


def rounds(queue: str) -> str:
    """Hash: `now` and `top`, the first and last round of bells on the queue's list, and each round's first and last."""
    return f"col:turn:{queue}"


def suspects(run: str, outcome: str) -> str:
    """HyperLogLog: which of the run's candidates came to an outcome that says that they attacked their sandbox."""
    return f"col:suspects:{run}:{outcome}"


def answers(queue: str) -> str:
    """Stream: one entry per answer, written with it: k, run, id, status, n, flagged, wait, took; to be counted from."""
    return f"col:answers:{queue}"


def tally(queue: str) -> str:
    """Hash: what was counted of the queue's answers altogether, and `cursor`, the answer up to which it was."""
    return f"col:tally:{queue}"


def tally_slot(queue: str, slot: int) -> str:
    """Hash: what was counted of the answers of one slot of time (`counts.SLOT_S` long)."""
    return f"col:tally:{queue}:{slot}"


def recent(queue: str) -> str:
    """Stream: one entry per counted answer, with its summary; what lists of batches are read from."""
    return f"col:recent:{queue}"


def runs(queue: str) -> str:
    """Sorted set: runs that submitted to the queue, by the time (ms) they last did."""
    return f"col:runs:{queue}"


def run(queue: str, name: str) -> str:
    """Hash: `submitted`, and what was counted of the run's answers."""
    return f"col:run:{queue}:{name}"


def series(queue: str, run: str, step_s: int | str, block: int | str) -> str:
    """Hash: a run's rewards over time, some steps of `step_s` seconds together."""
    return f"col:series:{queue}:{run}:{step_s}:{block}"


def cache(run: str) -> str:
    """Hash: digest to a packed verdict of the run, for candidates like that one; and `bytes`, how many these have."""
    return f"col:cache:{run}"


def grader(run: str, epoch: int) -> str:
    """String: the grader's version that the run is held to, written once."""
    return f"col:grader:{run}:{epoch}"


def homed(queue: str, node: str) -> str:
    """List: bells that the node's workers take first, of batches whose sessions are on its daemon; front first."""
    return f"col:homed:{queue}:{node}"


def owned(node: str) -> str:
    """Hash: worker name to the k that it works on."""
    return f"col:owned:{node}"


def sessions(node: str) -> str:
    """Sorted set: ids of the node's sessions that some ledger named once, by the time (ms) of that."""
    return f"col:sessions:{node}"


def alive(worker: str) -> str:
    """String with a short expiry: there while the worker's process is."""
    return f"col:alive:{worker}"


def clock(queue: str) -> str:
    """Hash: `last` beat and `since` when they have come without a gap (ms)."""
    return f"col:clock:{queue}"


def node(name: str) -> str:
    """String with a short expiry: the node's heartbeat, JSON."""
    return f"col:node:{name}"


def nodes(queue: str) -> str:
    """Sorted set: node names that serve the queue, by the time (ms) their heartbeat ends."""
    return f"col:nodes:{queue}"


def lease(name: str) -> str:
    """String: the token of whoever holds the lease of that name."""
    return f"col:lease:{name}"


def seats(gate: str) -> str:
    """Sorted set: sandboxes under a gateway key's cap, by the time (ms) their place ends; `gate` is the key's hash."""
    return f"col:seats:{gate}"


def rq_queue(queue: str) -> str:
    """rq's own list of job ids."""
    return f"rq:queue:{queue}"


def rq_intermediate(queue: str) -> str:
    """rq's list of job ids between pop and start."""
    return f"rq:queue:{queue}:intermediate"


def rq_job(job_id: str) -> str:
    """rq's hash of one job; ours are named `k-n`."""
    return f"rq:job:{job_id}"


def k_of_job(job_id: str) -> str | None:
    """The batch of a bell named `k-n`, or None when the job is not one of ours."""
    k, dash, n = job_id.rpartition("-")
    ours = bool(dash) and n.isdigit() and len(k) == 32 and all(c in "0123456789abcdef" for c in k)
    return k if ours else None
