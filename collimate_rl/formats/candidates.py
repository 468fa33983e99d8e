"""What of a model's completion is graded, by the kind of spec that grades it."""

from __future__ import annotations

from typing import Final

from collimate_rl.formats.extract import extract_code
from collimate_rl.specs import CommandReward, RewardSpec

_THINK_OPEN: Final = "<think>"
_THINK_CLOSE: Final = "</think>"


def candidate_of(spec: RewardSpec, completion: str, entry: str = "solve") -> str:
    """The candidate in a completion: code, as `extract_code` finds it on the spec's entry, else on `entry`.

    For a `CommandReward` it is the text behind the last thought, whose patch or files grading takes out of it.
    """
    if not isinstance(spec, CommandReward):
        called = getattr(spec, "entry", None)
        return extract_code(completion, entry=called if isinstance(called, str) and called else entry)
    answer = completion.rpartition(_THINK_CLOSE)[2]
    return "" if answer.lstrip().startswith(_THINK_OPEN) else answer
