"""Names of worker processes."""

from __future__ import annotations

import re
import secrets

NODE_PART = 100
"""A name on the queue has 128 characters at most; the node's part leaves room for the rest."""


def worker_name(node: str, place: str) -> str:
    """A name for one start of one worker process: `node-place-random`. No name is used twice."""
    return f"{node[:NODE_PART]}-{place}-{secrets.token_hex(4)}"


def place_of(worker: str) -> int:
    """Which place of its supervisor a worker has, by its name. `ValueError` for a name that no supervisor gave."""
    return int(worker.rsplit("-", 2)[1])


def is_supervised(node: str, worker: str) -> bool:
    """Whether a supervisor of this node gave this name: its places are numbers."""
    return re.fullmatch(rf"{re.escape(node[:NODE_PART])}-\d+-[0-9a-f]{{8}}", worker) is not None
