"""The closed vocabularies of messages: outcomes, statuses, and the codes of infra-flagged results."""

from __future__ import annotations

from enum import Enum
from typing import Final

from collimate_rl.errors import MISCONFIGURED as MISCONFIGURED

OUTCOMES: Final = frozenset(
    {
        "passed",
        "wrong_answer",
        "runtime_error",
        "timeout",
        "memory_limit",
        "output_limit",
        "no_code",
        "no_entry_point",
        "unencodable",
        "tampered",
        "sandbox_killed",
        "off_plan",
    }
)
"""What became of a candidate, or of one case. None of these is an infra error."""

SUSPECT_OUTCOMES: Final = ("tampered", "sandbox_killed")
"""Outcomes that say that a candidate attacked what ran it; they are counted per run."""

OWN_INFRA_CODES: Final = frozenset(
    {
        "unreachable",
        "ambiguous",
        "expired",
        "cancelled",
        "quarantined",
        "sandbox_lost",
        "judge_failed",
        "internal",
    }
)
"""Infra codes that the product gives itself; a daemon's and a gateway's codes pass as they came."""

INTEGRITIES: Final = frozenset({"split", "shared"})
RECOVERIES: Final = frozenset({"auto", "attach", "rerun"})
RECOVERED: Final = frozenset({"none", "read", "waited", "rerun"})
SEED_MODES: Final = frozenset({"vanilla", "crn", "deterministic"})


class ResultStatus(str, Enum):
    """How a whole batch was answered."""

    GRADED = "graded"
    """Every candidate has a verdict."""
    PARTIAL = "partial"
    """Some candidates are infra-flagged."""
    EXPIRED = "expired"
    """The deadline passed first."""
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"
    """What was left had cost its workers their lives three times."""
    FAILED = "failed"
    """It could not be graded at all; the candidates' codes say why."""
