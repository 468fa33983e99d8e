"""What a batch job is given: the bench that all batches of a process share, and the worker that hosts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from collimate_rl.errors import CollimateError
from collimate_rl.grading.execute import Executor
from collimate_rl.protocol import GradeBatch
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Hold
from worker.batch_sessions import Daemon
from worker.executor import RetryPolicy
from worker.slots import Slots
from worker.tally import Tally


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the batches of one worker process share."""

    queue: BatchQueue
    worker: str
    node: str
    executor_for: Callable[[GradeBatch, Hold], Executor]
    """How a batch's execs reach a sandbox of their own; slots, retries and the deadline are put around it."""
    daemon: Daemon | None = None
    """Where batches that ask for it have their sessions; None: every exec has a sandbox of its own."""
    slots: Slots
    retry: RetryPolicy
    hops: int
    """How often a batch may be released to others before its infrastructure errors are answered."""
    concurrency: int
    grace_s: float
    """How long after the worker was asked to stop a batch may still take to finish."""
    drains: Callable[[], bool] = lambda: False
    """Whether the node is known to be paused because its daemon drains."""
    tally: Tally = field(default_factory=Tally)
    """Where this process counts what it does."""
    all_begun: Callable[[], None] = lambda: None
    """Called, by any thread, once every candidate of a batch has begun: what is idle is for another process' batch."""
    drop_on_stop: bool = True
    """Whether a stopping worker deletes the sessions of what it releases; else they wait for whoever attaches."""


class Host(Protocol):
    """What the batch job asks of the worker that runs it."""

    def stopping_for(self) -> float | None:
        """For how many seconds the worker has been asked to stop; None when it hasn't."""

    def cancel_asked(self) -> bool:
        """Whether somebody asked through rq that this job be stopped."""

    def tick(self) -> None:
        """Called every now and then while a batch runs, from another thread: keeps rq's view of a long job alive."""

    def backend_failed(self, error: CollimateError) -> None:
        """The daemon failed a candidate beyond this node's retries."""

    def leave(self) -> None:
        """The worker is stopping and its batch is closed, but for execs whose answers nobody wants: it may end now."""
