"""How answers and verdicts count: of an answer its status and its flagged candidates, as the queue's script makes them
of what it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from collimate_rl.protocol import Verdict
from collimate_rl.protocol.codes import ResultStatus
from worker import metrics
from worker.tally import Tally


def flags_of(
    size: int | None,
    *,
    judged: Collection[int],
    quarantined: Collection[int],
    failed: Mapping[int, str] | None = None,
    fill: str | None = None,
) -> tuple[ResultStatus, Counter[str]]:
    """How a published batch is answered, and its flagged candidates by code.

    size -- candidates of the batch; None where its payload cannot be read: then only the status is known.
    failed -- index to code of the infra-flagged answers that are given; what has neither verdict nor such an answer
    gets `fill`. One that is quarantined is answered so, whatever was given for it.
    """
    if size is None:
        return _filled(fill), Counter()
    codes: Counter[str] = Counter()
    for index in range(size):
        if index not in judged:
            code = "quarantined" if index in quarantined else (failed or {}).get(index, fill)
            codes[code or "internal"] += 1
    if fill is not None and codes.total() > sum(index not in judged for index in quarantined):
        return _filled(fill), codes
    if not codes:
        return ResultStatus.GRADED, codes
    return ResultStatus.QUARANTINED if set(codes) == {"quarantined"} else ResultStatus.PARTIAL, codes


def _filled(fill: str | None) -> ResultStatus:
    return ResultStatus(fill) if fill in ("expired", "cancelled", "quarantined") else ResultStatus.FAILED


def count(tally: Tally, status: ResultStatus, codes: Mapping[str, int]) -> None:
    tally.add(metrics.BATCHES_PUBLISHED, status.value)
    for code, number in codes.items():
        tally.add(metrics.CANDIDATES_FLAGGED, code, number)


def count_verdict(tally: Tally, verdict: Verdict) -> None:
    """For a verdict that the queue took from this process; then nobody else counts it."""
    tally.add(metrics.CANDIDATES_GRADED, str(verdict.outcome))
    if verdict.recovered != "none":
        tally.add(metrics.CANDIDATES_RECOVERED, verdict.recovered)
    for family, ms in (
        (metrics.FORK_SECONDS, verdict.fork_time_ms),
        (metrics.EXEC_SECONDS, verdict.exec_time_ms),
        (metrics.JUDGE_SECONDS, verdict.judge_time_ms),
    ):
        if ms:  # else there was nothing to fork, to run or to judge
            tally.observe(family, ms / 1000)
