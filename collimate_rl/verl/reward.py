"""The function that verl's `custom_reward_function` names, graded inline: this process against a daemon."""

from __future__ import annotations

from typing import Any

from collimate_rl.hooks.wiring import inline_grader
from collimate_rl.verl.core import VerlHook

_hook = VerlHook(inline_grader)


async def compute_score(
    data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    """One sample's `score` from 0.0 to 1.0, with the same further keys for every sample: see `VerlHook.score`."""
    return await _hook.score(data_source, solution_str, ground_truth, extra_info, kwargs)
