"""The node side: a supervisor, its worker processes, the batch job and the queue's janitor.

`worker.NodeWorker` is the rq worker class, for `python -m worker` and for plain `rq worker --worker-class`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.node_worker import NodeWorker

__all__ = ["NodeWorker"]


def __getattr__(name: str) -> Any:
    # rq and redis are heavy, and `python -m worker config` needs neither.
    if name == "NodeWorker":
        from worker.node_worker import NodeWorker
        from worker.plain import lend_url

        lend_url()
        return NodeWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
