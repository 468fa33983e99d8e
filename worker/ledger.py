"""What recovery knows: which batches run in sessions, what the ledger says of one, and what a session's label says.

All values here; who acts on them is `worker.batch_sessions` (the owner of a batch) and `worker.session_janitor`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgpack

from collimate_rl.protocol import GradeBatch

ENTRY_VERSION = 1
ONE_SHOT_S = 10
"""Up to this time limit, `auto` runs a candidate again after a crash: cheaper than remembering where it ran."""
ONE_SHOT_BYTES = 64 * 1024
"""Up to this, a candidate and its spec surely fit into one exec, with the runner and the framing."""
_LABEL = re.compile(r"collimate/([0-9a-f]{32})/(\d{1,4}|judge)/(\d{1,15})")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def runs_in_sessions(batch: GradeBatch, *, one_shot: bool = True) -> bool:
    """Whether the batch's candidates run in sessions with the ledger, so that another owner can attach to them.

    `one_shot`: the backend runs once in one request, so that running again is cheaper than remembering.
    """
    if batch.recovery != "auto":
        return batch.recovery == "attach"
    if not one_shot:
        return True
    size = max(len(code.encode("utf-8", "surrogatepass")) for code in batch.candidates) + len(batch.spec)
    return batch.timeout_seconds > ONE_SHOT_S or batch.egress is not None or size > ONE_SHOT_BYTES


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """Where a candidate's session is: its id on the daemon at `endpoint` of `node`, and the first exec sent to it.

    `seed` is what an exec there runs under whose batch names none: sent again, it must not come back with another's.
    """

    session: str
    node: str
    endpoint: str
    exec_id: str
    seed: str

    def pack(self) -> bytes:
        fields = {"v": ENTRY_VERSION, **vars(self)}
        return bytes(msgpack.packb(fields, use_bin_type=True, unicode_errors="surrogatepass"))

    @classmethod
    def unpack(cls, blob: bytes) -> LedgerEntry | None:
        """None for what this version cannot read: then its session is as good as out of reach."""
        try:
            fields: Any = msgpack.unpackb(blob, raw=False, unicode_errors="surrogatepass")
            if fields["v"] != ENTRY_VERSION:
                return None
            texts = {name: fields[name] for name in ("session", "node", "endpoint", "exec_id", "seed")}
        except (ValueError, TypeError, KeyError, msgpack.UnpackException):
            return None
        return cls(**texts) if all(isinstance(text, str) and text for text in texts.values()) else None

    def reachable_from(self, node: str, endpoint: str) -> bool:
        """Whether the daemon at `endpoint`, as `node` sees it, is the one that has the session.

        A socket's path and a loopback address name another daemon on every node.
        """
        return self.endpoint == endpoint and (self.node == node or not is_node_local(endpoint))


def is_node_local(endpoint: str) -> bool:
    """Whether an endpoint means something on its own node only."""
    return endpoint.startswith("unix:") or urlsplit(endpoint).hostname in _LOOPBACK


@dataclass(frozen=True, kw_only=True)
class SessionLabel:
    """What a session of ours is called where its daemon takes labels. `index` None: it serves the judge, not a
    candidate, belongs to the owner under `fence` alone, and is in no ledger."""

    k: str
    index: int | None
    fence: int

    def __str__(self) -> str:
        return f"collimate/{self.k}/{'judge' if self.index is None else self.index}/{self.fence}"

    @classmethod
    def parse(cls, label: object) -> SessionLabel | None:
        """None for a session that is not ours."""
        found = _LABEL.fullmatch(label) if isinstance(label, str) else None
        if found is None:
            return None
        k, index, fence = found.groups()
        return cls(k=k, index=None if index == "judge" else int(index), fence=int(fence))
