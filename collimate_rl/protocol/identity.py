"""What makes two submissions the same batch, and what makes them differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collimate_rl.protocol.messages import GradeBatch


def batch_key(run: str, epoch: int, id: str) -> str:
    """`k`: the first 32 hex digits of sha256(run NUL epoch NUL id). A new epoch is a new life for every id."""
    return hashlib.sha256(f"{run}\0{epoch}\0{id}".encode()).hexdigest()[:32]


def content_hash(batch: GradeBatch, explicit_seeds: Sequence[str | None] | None = None) -> str:
    """sha256 (64 hex digits) over what decides the rewards: template, candidates, spec, seed mode, base seed,
    explicitly given seeds, limits, egress.

    It never covers drawn seeds, deadline, recovery, producer, epoch or tags, so that a submission repeated after a
    crash is the same one. The spec is compared as parsed JSON: the order of its keys does not matter.
    """
    head = {
        "template": batch.template,
        "spec": json.loads(batch.spec),
        "seed_mode": batch.seed_mode,
        "base_seed": batch.base_seed,
        "seeds": None if explicit_seeds is None else list(explicit_seeds),
        "timeout_seconds": batch.timeout_seconds,
        "case_timeout_s": batch.case_timeout_s,
        "egress": batch.egress,
        "k": len(batch.candidates),
    }
    digest = hashlib.sha256()
    for part in (canonical_json(head), *batch.candidates):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()


def resubmission_id(id: str, epoch: int, indices: Sequence[int]) -> str:
    """The id under which these candidates of a finished batch are graded again: the same, whoever asks for that."""
    mark = batch_key(id, epoch, ",".join(map(str, indices)))[:12]
    return f"{id[:110]}.r{mark}"


def canonical_json(value: object) -> str:
    """One text per value: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
