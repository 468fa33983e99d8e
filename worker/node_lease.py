"""One supervisor per node name: a lease on the server, seized at once from a holder that is seen to be dead."""

from __future__ import annotations

import time
from collections.abc import Callable

from collimate_rl.errors import CollimateError
from collimate_rl.protocol import keys
from collimate_rl.queue._raw import text
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from worker.process import ProcessId

LEASE_MS = 15_000
WAIT_S = 20.0
"""Longer than the lease: a holder that is dead but cannot be seen has lost it by then."""


class NodeTaken(CollimateError):
    """Another living supervisor has this node's name."""


class NodeLease:
    """The right to supervise node `node`. Calls raise `RedisUnavailable` when the server is away."""

    def __init__(self, queue: BatchQueue, node: str, identity: ProcessId) -> None:
        self._queue = queue
        self._node = node
        self._token = str(identity)
        self._name = f"node:{node}"

    def renew(self) -> bool:
        """Take or prolong the lease; False while it is another's."""
        return self._queue.lease(self._name, self._token, LEASE_MS).mine

    def release(self, queue: BatchQueue | None = None) -> None:
        """Give it back, so that a next supervisor needn't wait; `queue` is the same one over another connection."""
        (queue or self._queue).lease(self._name, self._token, 0)

    def take(self, pause: Callable[[], bool], *, clock: Callable[[], float] = time.monotonic) -> bool:
        """Take the lease, waiting for a holder that may be dead. Raises `NodeTaken` when it is seen to live.

        `pause` waits between tries and returns True to give up; then this returns False.
        """
        until = clock() + WAIT_S
        while not self.renew():
            holder = self._holder()
            alive = None if holder is None else holder.alive()
            if alive is False and holder is not None:
                self._queue.lease(self._name, str(holder), 0)
                continue
            if alive or clock() >= until:
                raise NodeTaken(
                    f"a supervisor of node {self._node!r} is running already"
                    + (f" (pid {holder.pid})" if alive and holder is not None else " on another machine or container")
                    + ": give each its own --node name"
                )
            if pause():
                return False
        return True

    def _holder(self) -> ProcessId | None:
        with translate_errors("read who holds the node's lease"):
            raw = self._queue.client.get(keys.lease(self._name))
        return None if raw is None else ProcessId.parse(text(raw))
