"""The timeline of one batch: what happened when, by whose clock, and how long it took.

Three clocks are in it. The server's counts what the queue does. The producer's counts submit and receipt, and may be
off by any amount: between it and the server's nothing is subtracted. A worker's counts only from its own claim on, so
its instants are put on the server's clock at that claim. Durations are of one clock each, and never negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from collimate_rl.protocol.messages import Verdict
from collimate_rl.protocol.results import BatchResult
from collimate_rl.protocol.story import TURNS, Turn

PRODUCER, SERVER, WORKER = "producer", "server", "worker"
_TAKEN = "taken by its producer; when is known by the trainer only: received_at of its result"
"""What a look at the queue tells of a receipt. A producer acknowledges all that it has read by one cursor, with no
instant for each batch: that would be a further write for every one of them."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One thing that happened."""

    what: str
    """`submitted`, `queued`, `claimed`, a word of `story.TURNS`, `published`, `received`; of a candidate `started`,
    `forked`, `executed`, `judged`."""
    at: float | None
    """Unix seconds; None when it is only known that it happened."""
    clock: str
    """Whose: `producer`, `server`, or `worker` (counted from its claim, and put on the server's)."""
    took_ms: float | None
    """Since the moment before it by the same clock; None when there is none, or it is not known."""
    attempt: int | None = None
    node: str = ""
    worker: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class CandidateTimeline:
    """One candidate's part."""

    index: int
    attempt: int
    """Under which its verdict was made."""
    node: str
    ended: str
    """Its outcome, or its error code."""
    recovered: str
    why: str
    """What an infra-flagged answer says of its cause, on one line; empty for a verdict."""
    moments: tuple[Moment, ...]
    """Empty when nothing ran for it, or its worker did not say when."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What happened to a batch, and to each candidate."""

    moments: tuple[Moment, ...]
    """In their order; the producer's are first and last whatever its clock says."""
    candidates: tuple[CandidateTimeline, ...]
    queue_ms: float | None
    """From submit to the first claim, by the server's clock."""
    work_ms: float | None
    """From the last claim to the answer, by the server's clock."""
    total_ms: float | None
    """From submit to the answer, by the server's clock."""
    round_trip_ms: float | None
    """From submit to receipt, by the producer's clock; None where it is not known."""

    def as_json_data(self) -> dict[str, Any]:
        return asdict(self)


def timeline_of(result: BatchResult) -> Timeline:
    """The timeline of a result, as whoever submitted the batch has it."""
    return make_timeline(
        submitted_at=result.submitted_at or None,
        queued_at=result.queued_at,
        claimed_at=result.claimed_at,
        finished_at=result.finished_at,
        received_at=result.received_at,
        received=True if result.received_at is not None else None,
        status=result.status.value,
        story=result.story,
        verdicts={verdict.index: verdict for verdict in result.results},
    )


def make_timeline(
    *,
    submitted_at: float | None,
    queued_at: float | None,
    claimed_at: float | None,
    finished_at: float | None,
    received_at: float | None,
    received: bool | None,
    status: str,
    story: Iterable[Turn],
    verdicts: Mapping[int, Verdict],
) -> Timeline:
    """From the parts as they are known; None is what is not. `received`: whether its producer has taken the answer."""
    turns = sorted(story, key=lambda turn: turn.at)
    moments = [] if submitted_at is None else [_moment("submitted", submitted_at, PRODUCER, None)]
    before = queued_at
    if queued_at is not None:
        moments.append(_moment("queued", queued_at, SERVER, None))
    if claimed_at is not None and not any(turn.what == "claimed" for turn in turns):
        moments.append(_moment("claimed", claimed_at, SERVER, before))
        before = claimed_at
    for turn in turns:
        if turn.what != "answered":  # `published` says that
            who = {"attempt": turn.attempt, "node": turn.node, "worker": turn.worker}
            moments.append(_moment(turn.what, turn.at, SERVER, before, detail=TURNS.get(turn.what, ""), **who))
            before = turn.at
    if finished_at is not None:
        moments.append(_moment("published", finished_at, SERVER, before, detail=status))
    round_trip = _ms(submitted_at, received_at)
    if received_at is not None or received:
        told = "" if received_at is not None else _TAKEN
        moments.append(Moment(what="received", at=received_at, clock=PRODUCER, took_ms=round_trip, detail=told))
    claims = {turn.attempt: turn.at for turn in turns if turn.what == "claimed"}
    first = claimed_at if claimed_at is not None else min(claims.values(), default=None)
    last = max(claims.values(), default=claimed_at)
    return Timeline(
        moments=tuple(moments),
        candidates=tuple(
            _candidate(verdict, claims.get(verdict.attempt, claimed_at if len(claims) < 2 else None))
            for _, verdict in sorted(verdicts.items())
        ),
        queue_ms=_ms(queued_at, first),
        work_ms=_ms(last, finished_at),
        total_ms=_ms(queued_at, finished_at),
        round_trip_ms=round_trip,
    )


def _candidate(verdict: Verdict, claimed_at: float | None) -> CandidateTimeline:
    moments: list[Moment] = []
    who = {"attempt": verdict.attempt, "node": verdict.node}
    if claimed_at is not None and verdict.judged_ms is not None:
        judged = claimed_at + max(0.0, verdict.judged_ms) / 1000
        before = claimed_at
        if verdict.started_ms is not None:
            started = min(claimed_at + max(0.0, verdict.started_ms) / 1000, judged)
            moments.append(_moment("started", started, WORKER, before, **who))
            forked = min(started + max(0.0, verdict.fork_time_ms) / 1000, judged)
            moments.append(_moment("forked", forked, WORKER, started, **who))
            executed = min(forked + max(0.0, verdict.exec_time_ms) / 1000, judged)
            moments.append(_moment("executed", executed, WORKER, forked, **who))
            before = executed
        moments.append(_moment("judged", judged, WORKER, before, **who))
    return CandidateTimeline(
        index=verdict.index,
        attempt=verdict.attempt,
        node=verdict.node,
        ended=str(verdict.error_code if verdict.infra_error else verdict.outcome),
        recovered=verdict.recovered,
        why=" ".join((verdict.detail or "").split()) if verdict.infra_error else "",
        moments=tuple(moments),
    )


def _moment(what: str, at: float, clock: str, before: float | None, **more: Any) -> Moment:
    return Moment(what=what, at=at, clock=clock, took_ms=_ms(before, at), **more)


def _ms(before: float | None, after: float | None) -> float | None:
    """From one instant to another of the same clock; a clock that was set back between counts as no time."""
    return None if before is None or after is None else round(max(0.0, after - before) * 1000, 1)
