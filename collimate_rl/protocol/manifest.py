"""What a verdict was made of: enough to say whether making it again would be the same thing.

It is put together where it is wanted, from the batch (said once for all its candidates) and the verdict, so that no
answer carries what its batch holds already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collimate_rl.protocol.bounds import VERSION
from collimate_rl.protocol.identity import canonical_json
from collimate_rl.protocol.messages import GradeBatch, Verdict


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One verdict's circumstances. Times are milliseconds; texts are empty, and numbers 0, where nothing ran."""

    run: str = ""
    """Empty, like `id` and `node`, where no queue took part."""
    id: str = ""
    epoch: int = 0
    index: int = 0
    template: str
    python: str = ""
    """The template's interpreter, as the runner saw it."""
    sdk: str = ""
    grader_version: str = ""
    protocol: int = VERSION
    seed: str = ""
    seed_ack: str = ""
    timeout_seconds: int
    case_timeout_s: float | None = None
    egress: Mapping[str, Any] | None = None
    candidate_sha256: str
    spec_sha256: str
    node: str = ""
    session_id: str | None = None
    attempt: int = 0
    recovered: str = "none"
    cached: bool = False
    fork_time_ms: float = 0.0
    exec_time_ms: float = 0.0
    judge_time_ms: float = 0.0
    queue_ms: float = 0.0

    def as_json_data(self) -> dict[str, Any]:
        """Every field under its name."""
        return asdict(self)


def manifest_of(batch: GradeBatch, verdict: Verdict) -> Manifest:
    """The manifest of one verdict of a batch."""
    return Manifest(
        run=batch.run,
        id=batch.id,
        epoch=batch.epoch,
        index=verdict.index,
        template=batch.template,
        python=verdict.python,
        sdk=verdict.sdk,
        grader_version=verdict.grader_version,
        seed=verdict.seed,
        seed_ack=verdict.seed_ack,
        timeout_seconds=batch.timeout_seconds,
        case_timeout_s=batch.case_timeout_s,
        egress=batch.egress,
        candidate_sha256=text_sha256(batch.candidates[verdict.index]),
        spec_sha256=spec_sha256(batch.spec),
        node=verdict.node,
        session_id=verdict.session_id,
        attempt=verdict.attempt,
        recovered=verdict.recovered,
        cached="cached" in verdict.flags,
        fork_time_ms=verdict.fork_time_ms,
        exec_time_ms=verdict.exec_time_ms,
        judge_time_ms=verdict.judge_time_ms,
        queue_ms=verdict.queue_ms,
    )


def record_of(batch: GradeBatch, *, with_inputs: bool) -> dict[str, Any]:
    """What a line of results says once about its batch, as JSON data: how it was graded, and by their hashes what.

    Not the seeds: a producer that asks again for a batch holds others than those that it was graded under, which each
    verdict has.

    `with_inputs`: the spec and the candidates themselves too, so that `collimate replay` needs nothing else.
    """
    named = {"run": batch.run, "id": batch.id, "epoch": batch.epoch}
    asked = group_record(
        template=batch.template,
        spec=json.loads(batch.spec),
        candidates=batch.candidates,
        timeout_seconds=batch.timeout_seconds,
        case_timeout_s=batch.case_timeout_s,
        egress=batch.egress,
        with_inputs=with_inputs,
    )
    return {**named, **asked}


def group_record(
    *,
    template: str,
    spec: Mapping[str, Any],
    candidates: Sequence[str],
    timeout_seconds: int,
    case_timeout_s: float | None = None,
    egress: Mapping[str, Any] | None = None,
    with_inputs: bool,
) -> dict[str, Any]:
    """The same of a group that no queue knows. `spec` is its wire form."""
    record: dict[str, Any] = {
        "protocol": VERSION,
        "template": template,
        "timeout_seconds": timeout_seconds,
        "case_timeout_s": case_timeout_s,
        "egress": None if egress is None else dict(egress),
        "spec_sha256": text_sha256(canonical_json(dict(spec))),
        "candidates_sha256": [text_sha256(code) for code in candidates],
    }
    if with_inputs:
        record["inputs"] = {"spec": dict(spec), "candidates": list(candidates)}
    return record


def text_sha256(text: str) -> str:
    """64 hex digits over the text's UTF-8, lone surrogates passed."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def spec_sha256(wire: str) -> str:
    """64 hex digits over a spec's wire form (JSON text), whatever the order of its keys."""
    return text_sha256(canonical_json(json.loads(wire)))
