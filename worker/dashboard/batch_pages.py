"""One batch and one candidate for the page: what is shown of them, bounded."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collimate_rl.protocol import BatchStatus, Verdict
from collimate_rl.protocol.codes import SUSPECT_OUTCOMES
from collimate_rl.queue.batch_view import BatchView, CandidateView
from worker.dashboard import texts
from worker.dashboard.views import Level

ROWS = 100
UNANSWERED = frozenset({BatchStatus.OPEN.value, BatchStatus.RUNNING.value})


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A status or an outcome as it is shown."""

    level: Level
    word: str


def status_mark(status: str) -> Mark:
    """How a batch stands."""
    words = {"open": "waiting", "running": "being graded"}
    level = {"graded": Level.GOOD, "open": Level.CALM, "running": Level.CALM, "cancelled": Level.CALM}
    return Mark(level=level.get(status, Level.WARN), word=words.get(status, status or "unknown"))


def verdict_mark(candidate: CandidateView, answered: bool) -> Mark:
    """What a candidate got. An infra error is shown as one, never as a zero."""
    verdict = candidate.verdict
    if verdict is None:
        word = "no verdict" if answered else "started" if candidate.marked_at is not None else "waits"
        return Mark(level=Level.CALM, word=word)
    if verdict.infra_error:
        return Mark(level=Level.WARN, word=f"infra: {verdict.error_code}")
    return Mark(level=outcome_level(str(verdict.outcome)), word=str(verdict.outcome))


def outcome_level(outcome: str) -> Level:
    """Of a candidate or a case: to fail is ordinary, to attack what runs it is not."""
    if outcome == "passed":
        return Level.GOOD
    return Level.BAD if outcome in SUSPECT_OUTCOMES else Level.MISS


def batch_values(batch: BatchView, start: int) -> Mapping[str, Any]:
    """For `batch.html`: the batch and a page of its candidates, from `start`."""
    verdicts = [one.verdict for one in batch.candidates if one.verdict is not None]
    rewards = [verdict.reward for verdict in verdicts if verdict.reward is not None]
    answered = batch.status not in UNANSWERED
    start = min(start // ROWS * ROWS, max(0, (batch.n - 1) // ROWS * ROWS))
    rows = batch.candidates[start : start + ROWS]
    return {
        "batch": batch,
        "mark": status_mark(batch.status),
        "answered": answered,
        "rows": [(one, verdict_mark(one, answered)) for one in rows],
        "start": start,
        "rows_per_page": ROWS,
        "rewards": rewards,
        "mean": sum(rewards) / len(rewards) if rewards else None,
        "infra": sum(verdict.infra_error for verdict in verdicts),
        "zeros": sum(reward == 0 for reward in rewards),
        "outcomes": Counter(_named(verdict) for verdict in verdicts).most_common(),
        "tags": sorted(batch.tags.items()),
    }


def candidate_values(batch: BatchView, index: int) -> Mapping[str, Any]:
    """For `candidate.html`."""
    candidate = batch.candidates[index]
    verdict = candidate.verdict
    answered = batch.status not in UNANSWERED
    return {
        "batch": batch,
        "answered": answered,
        "candidate": candidate,
        "verdict": verdict,
        "mark": verdict_mark(candidate, answered),
        "code": None if candidate.code is None else texts.cap(candidate.code),
        "output": None if verdict is None else texts.cap(texts.decode(verdict.output_tail)),
        "detail": None if verdict is None or not verdict.detail else texts.cap(verdict.detail),
        "cases": [(case, outcome_level(case.outcome).value) for case in (verdict.cases if verdict else None) or ()],
        "command": replay_command(batch.run, batch.id, batch.epoch, index),
    }


def _named(verdict: Verdict) -> str:
    return f"infra: {verdict.error_code}" if verdict.infra_error else str(verdict.outcome)


def replay_command(run: str, identity: str, epoch: int, index: int) -> str:
    """The command that runs this candidate again."""
    command = f"collimate replay {shlex.quote(f'{run}/{identity}')} --index {index}"
    return f"{command} --epoch {epoch}" if epoch else command
