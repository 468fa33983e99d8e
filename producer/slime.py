"""slime's reward hook over the queue: `collimate_rl.slime`'s core, graded by the workers.

`args.collimate_redis_url` or `COLLIMATE_REDIS_URL` names the server; see docs/howto/slime.md.
"""

from __future__ import annotations

from typing import Any

from collimate_rl.slime.core import RewardHook
from producer.wiring import groups_in_flight, queued_grader

_hook = RewardHook(queued_grader, groups_in_flight=groups_in_flight)


async def reward_func(args: Any, sample: Any, **_kwargs: Any) -> Any:
    """The reward of `sample`, as `collimate_rl.slime.reward.reward_func`."""
    return await _hook.rewards(args, sample)


async def group_reward_func(args: Any, samples: Any, **_kwargs: Any) -> Any:
    """The rewards of a group's `samples`, as `collimate_rl.slime.reward.group_reward_func`."""
    return await _hook.rewards(args, samples)
