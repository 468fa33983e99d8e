"""The hook that slime's `--custom-rm-path` points at, graded inline: this process against a sandbox daemon.

    --custom-rm-path collimate_rl.slime.reward.reward_func
    --custom-rm-path collimate_rl.slime.reward.group_reward_func --group-rm

Both accept all three shapes in which slime calls a path: a Sample, a list of Samples (custom generate fans out, also
without `--group-rm`), a list of lists (with both).
"""

from __future__ import annotations

from typing import Any

from collimate_rl.hooks.wiring import inline_grader
from collimate_rl.slime.core import RewardHook

_hook = RewardHook(inline_grader)


async def reward_func(args: Any, sample: Any, **_kwargs: Any) -> Any:
    """The reward of `sample`: a float from 0.0 to 1.0 (a list for a list); a dict under slime's `--reward-key`."""
    return await _hook.rewards(args, sample)


async def group_reward_func(args: Any, samples: Any, **_kwargs: Any) -> Any:
    """The rewards of a group's `samples`, in order: samples with one ground truth are graded as one group."""
    return await _hook.rewards(args, samples)
