"""The verdict cache of a batch that asked for it: what was graded in the run once is not graded in it again.

Only what a loaded machine cannot have brought about is kept. In doubt a candidate is graded: that costs time, while a
wrong entry would cost a reward wherever it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from collimate_rl.grading.version import grader_version
from collimate_rl.protocol import GradeBatch, Verdict
from collimate_rl.protocol.identity import canonical_json
from collimate_rl.queue import codec
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.replies import Grant, Hold
from worker.persist import persist

SPECS: Final = frozenset({"unit_test", "property", "stdio", "assert", "test_file"})
"""Spec types whose verdicts follow from what the digest covers, where the candidate was apart from its tests.
Registered ones and commands may ask the world."""
STEADY: Final = frozenset({"passed", "wrong_answer", "runtime_error", "no_code", "no_entry_point", "unencodable"})
"""Outcomes, overall and of a case, that neither time limits nor memory nor a lost process lead to."""
HARMLESS: Final = frozenset(
    {"exited_early", "result_like_output", "opaque_result", "nan", "ends_iteration", "skips", "replanned"}
    | {"checker_missing"}
)
"""Flags that don't speak of load, signals or tampering."""
ROOM: Final = 64 << 20
"""Bytes that a run's cache holds."""
MAX_ENTRY: Final = 32 << 10
"""Bytes of one verdict in it."""


class VerdictCache:
    """What of one batch is known already, and which of its candidates are the same.

    Made by `for_batch`. It writes only under `hold`, the owner's. `digests` has every candidate that can be told from
    others: by code and pinned seed.
    """

    def __init__(self, queue: BatchQueue, batch: GradeBatch, desk: Addressee, hold: Hold) -> None:
        self._queue = queue
        self._run = batch.run
        self._desk = desk
        self._hold = hold
        self.digests: Mapping[int, str] = digests_of(batch)

    @classmethod
    def for_batch(cls, queue: BatchQueue, batch: GradeBatch, grant: Grant, node: str) -> VerdictCache | None:
        """None where the batch didn't ask, or nothing of it may be kept, or it has cost a worker its life."""
        if not batch.cache or grant.cautious or not is_closed(batch):
            return None
        address = Addressee(node=node, fence=grant.hold.fence, queue_ms=grant.queue_ms)
        return cls(queue, batch, address, grant.hold)

    def known(self, indices: Iterable[int]) -> dict[int, Verdict]:
        """Verdicts that stand in the run for some of these candidates, as theirs."""
        asked = {index: self.digests[index] for index in indices if index in self.digests}
        found = persist(lambda: self._queue.remembered(self._run, asked.values()))
        return {
            index: self._desk.readdressed(found[digest], index)
            for index, digest in asked.items()
            if digest in found and is_steady(found[digest])
        }

    def twins(self, indices: Iterable[int]) -> dict[int, list[int]]:
        """First of its kind to the others of these that are the same, where there are any."""
        kinds: dict[str, list[int]] = {}
        for index in sorted(indices):
            if index in self.digests:
                kinds.setdefault(self.digests[index], []).append(index)
        return {first: others for first, *others in kinds.values() if others}

    def shared(self, verdict: Verdict, twins: Collection[int]) -> list[Verdict]:
        """The verdict as that of each of the twins; none where it may not be shared."""
        return [self._desk.readdressed(verdict, twin) for twin in twins] if is_steady(verdict) else []

    def keep(self, verdict: Verdict) -> None:
        """Keep a verdict that the queue took, where it may be kept and there is room."""
        digest = self.digests.get(verdict.index)
        if digest is not None and is_steady(verdict) and len(codec.pack_verdict(verdict)) <= MAX_ENTRY:
            persist(lambda: self._queue.remember(self._hold, digest, verdict, room=ROOM))


@dataclass(frozen=True, kw_only=True)
class Addressee:
    """Who answers with a verdict that was made elsewhere."""

    node: str
    fence: int
    queue_ms: float

    def readdressed(self, verdict: Verdict, index: int) -> Verdict:
        """The verdict as candidate `index`'s: nothing was forked, run or judged for it."""
        return replace(
            verdict,
            index=index,
            node=self.node,
            attempt=self.fence,
            session_id=None,
            recovered="none",
            queue_ms=self.queue_ms,
            fork_time_ms=0.0,
            exec_time_ms=0.0,
            judge_time_ms=0.0,
            started_ms=None,
            judged_ms=None,
            flags=tuple(sorted({*verdict.flags, "cached"})),
        )


def is_steady(verdict: Verdict) -> bool:
    """Whether another run of the same candidate, on whatever machine, would come to this verdict."""
    return (
        not verdict.infra_error
        and verdict.integrity == "split"
        and verdict.outcome in STEADY
        and verdict.cases is not None
        and len(verdict.cases) == verdict.cases_total
        and all(case.outcome in STEADY for case in verdict.cases)
        and set(verdict.flags) <= HARMLESS
    )


def is_closed(batch: GradeBatch) -> bool:
    """Whether its verdicts follow from what a digest covers: a spec of ours, and no network."""
    no_network = batch.egress is None or batch.egress.get("mode") == "none"
    return no_network and json.loads(batch.spec).get("type") in SPECS


def digests_of(batch: GradeBatch) -> dict[int, str]:
    """Candidate index to 64 hex digits over all that its verdict follows from; without those of no pinned seed."""
    head = {
        "grader": grader_version(),
        "template": batch.template,
        "spec": json.loads(batch.spec),
        "timeout_seconds": batch.timeout_seconds,
        "case_timeout_s": batch.case_timeout_s,
        "egress": batch.egress,
    }
    common = hashlib.sha256(canonical_json(head).encode()).digest()
    return {
        index: hashlib.sha256(common + seed.lower().encode() + code.encode("utf-8", "surrogatepass")).hexdigest()
        for index, (code, seed) in enumerate(zip(batch.candidates, batch.seeds, strict=True))
        if seed is not None
    }
