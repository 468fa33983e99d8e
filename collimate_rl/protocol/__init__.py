"""The protocol that producers and workers share: messages, names, identity. Neither redis nor msgpack in here."""

from __future__ import annotations

from collimate_rl.protocol.bounds import check_name, clip_tail, clip_text
from collimate_rl.protocol.codes import MISCONFIGURED, OUTCOMES, OWN_INFRA_CODES, ResultStatus
from collimate_rl.protocol.identity import batch_key, content_hash, resubmission_id
from collimate_rl.protocol.messages import CaseReport, GradeBatch, Verdict, infra_verdict
from collimate_rl.protocol.results import BatchResult
from collimate_rl.protocol.states import BatchStatus
from collimate_rl.protocol.timing import Timing

__all__ = [
    "MISCONFIGURED",
    "OUTCOMES",
    "OWN_INFRA_CODES",
    "BatchResult",
    "BatchStatus",
    "CaseReport",
    "GradeBatch",
    "ResultStatus",
    "Timing",
    "Verdict",
    "batch_key",
    "check_name",
    "clip_tail",
    "clip_text",
    "content_hash",
    "infra_verdict",
    "resubmission_id",
]
