"""Counts of answers: under which names they are kept, and what they say. No Redis here.

What is counted of a lot of answers is a flat map of names to integers, so that a script can add it to hashes exactly:
rewards are summed in millionths, times go into the steps of a histogram.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SLOT_S = 10
"""Length of a slot of time that is counted for itself."""
MICRO = 1_000_000
STEPS_PER_DECADE = 8
MAX_STEP = 8 * STEPS_PER_DECADE
"""The last step of the histogram holds everything above 10**8 ms (about a day)."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def step_of(ms: float) -> int:
    """The histogram's step for a time: 0 is below 1 ms, then 8 steps to each power of ten."""
    if ms < 1:
        return 0
    return min(MAX_STEP, 1 + math.floor(math.log10(ms) * STEPS_PER_DECADE))


def edges(step: int) -> tuple[float, float]:
    """Where a step begins and ends, in ms."""
    if step <= 0:
        return 0.0, 1.0
    return 10 ** ((step - 1) / STEPS_PER_DECADE), 10 ** (step / STEPS_PER_DECADE)


def name_of(text: str) -> str:
    """`text` as a name that is counted under: what could be anything is `other`, so that names stay few."""
    return text if _NAME.fullmatch(text) else "other"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How long something took, from a histogram: percentiles are right to about a seventh of their value."""

    count: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    """None when there was nothing."""

    @classmethod
    def of(cls, steps: Mapping[int, int]) -> Spread:
        return cls(count=sum(steps.values()), p50_ms=percentile(steps, 0.5), p95_ms=percentile(steps, 0.95))


def percentile(steps: Mapping[int, int], share: float) -> float | None:
    """The time in ms below which `share` of the times lie, interpolated within its step; None when there is none."""
    total = sum(steps.values())
    if total <= 0:
        return None
    wanted, seen = share * total, 0
    for step in sorted(steps):
        here = steps[step]
        if here > 0 and seen + here >= wanted:
            low, high = edges(step)
            return round(low + (high - low) * (wanted - seen) / here, 3)
        seen += here
    return edges(max(steps))[1]


@dataclass(frozen=True, kw_only=True)
class NodeCounts:
    """What one node's name stands under in answers."""

    candidates: int = 0
    infra: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What came of answered batches and their candidates."""

    batches: int = 0
    candidates: int = 0
    graded: int = 0
    """Candidates with a verdict."""
    infra: int = 0
    """Candidates that are infra-flagged."""
    infra_share: float | None = None
    """Of all candidates; None when there was none."""
    zeros: int = 0
    """Graded candidates with a reward of 0."""
    mean_reward: float | None = None
    """Over graded candidates whose verdict was read; None when there was none."""
    unread: int = 0
    """Batches whose result was gone or unreadable when it was to be counted: only their sizes and status are here."""
    unread_graded: int = 0
    """Graded candidates of such batches: counted in `graded`, left out of `mean_reward`, `zeros` and the rest."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Batches by status (`graded`, `partial`, `expired`, `cancelled`, `quarantined`, `failed`)."""
    codes: Mapping[str, int] = field(default_factory=dict)
    """Infra-flagged candidates by error code (`quarantined`, `expired` among them)."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Graded candidates by outcome."""
    recovered: Mapping[str, int] = field(default_factory=dict)
    """Candidates that a takeover got, by how: `read`, `waited`, `rerun`."""
    flags: Mapping[str, int] = field(default_factory=dict)
    """Candidates by flag."""
    nodes: Mapping[str, NodeCounts] = field(default_factory=dict)
    """By node; empty in totals and in a run's."""
    wait: Spread = field(default_factory=Spread)
    """Batches' time in queue: from submit to the first claim."""
    took: Spread = field(default_factory=Spread)
    """From submit to the answer."""

    @classmethod
    def of(cls, raw: Mapping[str, int]) -> Counts:
        """Counts from the flat map that they are kept as; names that are not known are ignored."""
        groups: dict[str, dict[str, int]] = {}
        for name, count in raw.items():
            kind, colon, rest = name.partition(":")
            if colon:
                groups.setdefault(kind, {})[rest] = count
        graded, infra, candidates = raw.get("graded", 0), raw.get("infra", 0), raw.get("candidates", 0)
        return cls(
            batches=raw.get("batches", 0),
            candidates=candidates,
            graded=graded,
            infra=infra,
            infra_share=infra / candidates if candidates else None,
            zeros=raw.get("zeros", 0),
            mean_reward=mean_of(raw),
            unread=raw.get("unread", 0),
            unread_graded=raw.get("unread_graded", 0),
            statuses=groups.get("status", {}),
            codes=groups.get("code", {}),
            outcomes=groups.get("outcome", {}),
            recovered=groups.get("recovered", {}),
            flags=groups.get("flag", {}),
            nodes=_nodes(groups.get("node", {}), groups.get("node_code", {})),
            wait=Spread.of(_steps(groups.get("wait", {}))),
            took=Spread.of(_steps(groups.get("took", {}))),
        )

    def as_json_data(self) -> dict[str, Any]:
        return asdict(self)


def mean_of(raw: Mapping[str, int]) -> float | None:
    """The mean reward of a flat map: over graded candidates without those of which nobody could read what they got."""
    read = raw.get("graded", 0) - raw.get("unread_graded", 0)
    return raw.get("reward", 0) / MICRO / read if read > 0 else None


def _steps(raw: Mapping[str, int]) -> dict[int, int]:
    named = ((int(step), count) for step, count in raw.items() if step.isdecimal() and len(step) < 4)
    return {step: count for step, count in named if step <= MAX_STEP}


def _nodes(candidates: Mapping[str, int], codes: Mapping[str, int]) -> dict[str, NodeCounts]:
    by_node: dict[str, dict[str, int]] = {}
    for name, count in codes.items():
        node, _, code = name.partition(":")
        by_node.setdefault(node, {})[code] = count
    return {
        node: NodeCounts(
            candidates=candidates.get(node, 0), infra=sum(by_node.get(node, {}).values()), codes=by_node.get(node, {})
        )
        for node in sorted({*candidates, *by_node})
    }


def added(maps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of flat maps."""
    total: Counter[str] = Counter()
    for one in maps:
        total.update(one)
    return dict(total)
