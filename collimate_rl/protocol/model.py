"""What the server holds of one batch and around it, as immutable values: what the transitions work on.

`Store` mirrors the keys of docs/reference/queue.md. Maps are `Pairs`: sorted tuples of (key, value), so that a store
can be compared, hashed and kept. Times are ms of the server's clock. Not here: expiries (a rule of their own), rq's job
hashes, and what lives outside the server (popped bells, workers, sandboxes).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from collimate_rl.protocol.states import BatchStatus

K = TypeVar("K")
V = TypeVar("V")

Pairs = tuple[tuple[K, V], ...]
"""A small map: (key, value) sorted by key, each key once."""


def pairs(items: dict[K, V]) -> Pairs[K, V]:
    """A dict as `Pairs`."""
    return tuple(sorted(items.items(), key=lambda item: item[0]))  # type: ignore[arg-type,return-value]


def look(held: Pairs[K, V], key: K) -> V | None:
    """The value of `key`, or None."""
    for name, value in held:
        if name == key:
            return value
    return None


def put(held: Pairs[K, V], key: K, value: V) -> Pairs[K, V]:
    """With `key` set to `value`."""
    return pairs({**dict(held), key: value})


def drop(held: Pairs[K, V], key: K) -> Pairs[K, V]:
    """Without `key`."""
    return tuple(item for item in held if item[0] != key)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`col:state:k`. A field that is not there reads as 0 or ''."""

    k: str
    run: str
    id: str
    epoch: int = 0
    producer: str
    queue: str
    hash: str
    n: int
    submitted_at: float = 0.0
    created_at: int
    deadline_at: int
    status: BatchStatus = BatchStatus.OPEN
    owner: str = ""
    worker: str = ""
    node: str = ""
    fence: int = 0
    lease_until: int = 0
    claimed_at: int = 0
    cancel: bool = False
    rings: int = 0
    ring_at: int = 0
    """A bell is to be rung then; 0: none is set."""
    ring_back: bool = False
    home: str = ""
    """The node that it was kept for last: the only one that reaches its sessions."""
    home_until: int = 0
    """Until then, while it is nobody's, no other node may claim it."""
    unlisted: int = 0
    """The count of rings at which it was first seen without a listed bell."""
    unlisted_at: int = 0
    losses: int = 0
    errors: int = 0
    passes: int = 0
    cautious: bool = False
    blame: tuple[int, ...] = ()
    """Per candidate; as long as `n`."""
    released_by: tuple[str, int] | None = None
    """(owner, fence) of the last release, so that it can be sent again."""
    released_out: Pairs[int, bytes] = ()
    answered: str = ""
    finished_at: int = 0
    story: str = field(default="", compare=False)
    """For people: no rule reads it, so states that differ in it alone are the same."""
    obstacle: str = field(default="", compare=False)
    """How its last owner's turn ended, for people."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An infra-flagged answer that the script made itself."""

    index: int
    code: str
    detail: str
    node: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`col:done:k`. Results are packed verdicts, packed flagged answers of a worker, or `Flag`."""

    status: str
    results: tuple[bytes | Flag, ...]
    claimed_at: int
    finished_at: int
    attempts: int
    worker: str


@dataclass(frozen=True, kw_only=True)
class Bell:
    """A job id on rq's list, and whose batch it rings for; `run` is '' where nothing is known of that batch."""

    job: str
    run: str
    round: int = 0
    """Which of the list's rounds it is of; 0 for one that was rung at the front, or by a stranger."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """The server as one batch sees it."""

    now: int
    batch: Batch | None = None
    payload: bytes | None = None
    verdicts: Pairs[int, bytes] = ()
    ledger: Pairs[int, bytes] = ()
    noted: Pairs[tuple[str, str], int] = ()
    """(node, session) to when a ledger last came to name that session."""
    flight: Pairs[int, int] = ()
    cases: bytes | None = None
    askers: frozenset[str] = frozenset()
    done: Answer | None = None
    streams: Pairs[str, tuple[str, ...]] = ()
    """Producer of the run to the statuses of this batch's entries in its stream of results."""
    quarantine: tuple[tuple[str, int], ...] = ()
    """(k, index), oldest first."""
    pending: Pairs[str, int] = ()
    """Of the batch's queue: k to the next check."""
    inflight: Pairs[str, int] = ()
    """Of the batch's run: k to when it would expire."""
    bells: tuple[Bell, ...] = ()
    """The queue's list, front first."""
    homed: Pairs[str, tuple[str, ...]] = ()
    """Node to the job ids on its own list, front first."""
    rounds: Pairs[int, tuple[str, str]] = ()
    """Rounds of bells on the list to the job ids of those that were rung first and last in each."""
    round_now: int = 0
    """The round of the list's first bell, as it was seen last."""
    round_top: int = 0
    """The last round that there is."""
    round_last: int = 0
    """The round of the bell that the batch's run rang last at the back."""
    owned: Pairs[tuple[str, str], str] = ()
    """(node, worker) to k."""
    alive: frozenset[str] = frozenset()
    """Workers whose alive key stands."""
    clock: tuple[int, int] | None = None
    """(last beat, since when without a gap)."""
    obstacle: tuple[int, str, str] | None = None
    """(when, node, what) of the last obstacle that a node named, for people."""
    nodes: Pairs[str, int] = ()
    """Nodes of the queue to when their heartbeat ends."""
    heartbeats: Pairs[str, str] = ()
    leases: Pairs[str, tuple[str, int]] = ()
    """Name to (token, when it ends)."""
    answers: tuple[tuple[str, str, int, int], ...] = ()
    """(k, status, n, how many are flagged) of the queue's answers, oldest first."""
    runs: Pairs[str, int] = ()
    """Of the queue: run to when it last submitted."""
    counted: Pairs[tuple[str, str], int] = ()
    """(the end of a key's name, field) to a count: of the queue's totals, slots, runs and series."""
    recents: tuple[tuple[str, ...], ...] = ()
    """Entries of the queue's recent answers, names and values."""
    tallied: str = ""
    """The answer up to which the queue's were counted."""
    seats: Pairs[tuple[str, str], int] = ()
    """(gate, token) to when that place ends."""
    cache: Pairs[str, bytes] = ()
    """Of the batch's run: digest to the packed verdict that is kept under it."""

    @property
    def known(self) -> Batch:
        """The batch, where the caller knows that there is one."""
        assert self.batch is not None
        return self.batch


Reply = tuple[Any, ...]
"""What the script answers, word first; maps in it are `Pairs`."""
Step = tuple[Store, Reply]
