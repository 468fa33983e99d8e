"""The reward functions that a TRL trainer's `reward_funcs` takes, graded inline: this process against a daemon.

GRPOTrainer(reward_funcs=[collimate_rl.trl.reward_func], …)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collimate_rl.hooks.blocking import wait_for
from collimate_rl.hooks.wiring import inline_grader
from collimate_rl.trl.core import TrlHook

_hook = TrlHook(inline_grader)


def reward_func(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Any = None,  # noqa: ARG001 - the text is enough
    **columns: Any,
) -> list[float | None]:
    """A reward from 0.0 to 1.0 per completion, in order; None where infra trouble left one ungraded.

    `columns` are the data set's other columns, of which one or several hold the ground truth, and TRL's own
    (trainer_state, log_metric, …). Raises ValueError for rows without usable ground truth, RunMisconfigured and
    DemoTierLimit for what no retry heals, and other CollimateErrors only under on_infra_error "raise".
    """
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
