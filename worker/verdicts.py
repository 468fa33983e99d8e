"""From what grading says about a candidate to what travels: a `Verdict`, or an infra-flagged answer."""

from __future__ import annotations

from dataclasses import dataclass

from collimate_rl.errors import CollimateError
from collimate_rl.grading.result import GradeResult
from collimate_rl.grading.version import sdk_version
from collimate_rl.protocol import CaseReport, Verdict, clip_tail, clip_text, infra_verdict
from collimate_rl.protocol.bounds import MAX_CASES, MAX_FLAGS

MESSAGES = {
    "unreachable": "the sandbox daemon of node {node} could not be reached: {message}",
    "ambiguous": "the sandbox daemon of node {node} took the exec and its answer was lost ({message})",
    "expired": "the deadline passed on node {node}: {message}",
}


def infra_words(error: CollimateError, node: str) -> str:
    """What an error of a node's daemon says, for people."""
    return MESSAGES.get(error.error_code or "", "{message}").format(node=node, message=error.message)


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Writes answers for one execution of a batch: who judged, under which fence, how long it queued."""

    node: str
    fence: int
    queue_ms: float
    """From submit to the first claim; a candidate's wait for its slot is added."""
    recovered: str

    def verdict(
        self,
        index: int,
        result: GradeResult,
        slot_wait_ms: float,
        *,
        recovered: str | None = None,
        session_id: str | None = None,
        started_ms: float | None = None,
        judged_ms: float | None = None,
    ) -> Verdict:
        """The verdict for a graded candidate. `ValueError` when `result` carries no reward.

        `recovered` and `session_id` are of the session that it ran in, where it ran in one;
        `started_ms` and `judged_ms` are counted from the claim.
        """
        tail, cut = clip_tail(result.output_tail)
        return Verdict(
            index=index,
            reward=result.reward,
            outcome=result.outcome or ("passed" if result.reward == 1.0 else "wrong_answer"),
            cases=tuple(CaseReport(outcome=case.outcome, ms=case.ms) for case in result.cases[:MAX_CASES]),
            cases_total=result.cases_total,
            cases_passed=result.cases_passed,
            integrity=result.integrity,
            detail=None if result.detail is None else clip_text(result.detail),
            output_tail=tail,
            truncated=result.truncated or cut,
            seed=result.seed or "",
            seed_ack=result.seed_ack or "",
            session_id=session_id or result.session_id,
            node=self.node,
            attempt=self.fence,
            fork_time_ms=result.fork_time_ms,
            exec_time_ms=result.exec_time_ms,
            judge_time_ms=result.judge_time_ms,
            queue_ms=self.queue_ms + slot_wait_ms,
            started_ms=started_ms,
            judged_ms=judged_ms,
            recovered=recovered or self.recovered,
            grader_version=result.grader_version,
            flags=result.flags[:MAX_FLAGS],
            sdk=sdk_version(),
            python=result.python,
        )

    def flagged(self, index: int, error: CollimateError) -> Verdict:
        """The infra-flagged answer for a candidate that could not be graded."""
        return self._infra(index, error.error_code or "internal", infra_words(error, self.node))

    def expired(self, index: int, told: str) -> Verdict:
        """The infra-flagged answer for a candidate without a verdict at the deadline; `told` says what it was at."""
        return self._infra(index, "expired", told)

    def _infra(self, index: int, code: str, told: str) -> Verdict:
        return infra_verdict(index, code, told, node=self.node, attempt=self.fence, queue_ms=self.queue_ms)
