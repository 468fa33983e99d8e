"""TRL's reward function over the queue: `collimate_rl.trl`'s core, graded by the workers. Needs COLLIMATE_REDIS_URL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collimate_rl.hooks.blocking import wait_for
from collimate_rl.trl.core import TrlHook
from producer.wiring import groups_in_flight, queued_grader

_hook = TrlHook(queued_grader, groups_in_flight=groups_in_flight)


def reward_func(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Any = None,  # noqa: ARG001 - the text is enough
    **columns: Any,
) -> list[float | None]:
    """As `collimate_rl.trl.reward_func`."""
    return wait_for(_hook.rewards(prompts, completions, columns))


async def async_reward_func(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Any = None,  # noqa: ARG001 - as above
    **columns: Any,
) -> list[float | None]:
    """As `reward_func`; TRL runs it beside its other asynchronous reward functions."""
    return await _hook.rewards(prompts, completions, columns)


make_reward_func = _hook.make
"""`reward_func` with settings of its own, for trainers that share a process: `make_reward_func(seed_mode="crn")`;
`is_async=True` gives a coroutine function. ValueError for settings that do not fit."""
