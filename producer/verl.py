"""verl's `compute_score` over the queue: `collimate_rl.verl`'s core, graded by the workers. See docs/howto/verl.md."""

from __future__ import annotations

from typing import Any

from collimate_rl.verl.core import VerlHook
from producer.wiring import groups_in_flight, queued_grader

_hook = VerlHook(queued_grader, groups_in_flight=groups_in_flight)


async def compute_score(
    data_source: Any, solution_str: str, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    """As `collimate_rl.verl.compute_score`."""
    return await _hook.score(data_source, solution_str, ground_truth, extra_info, kwargs)
