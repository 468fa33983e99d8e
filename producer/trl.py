"""TRL's reward function over the queue: `collimate_rl.trl`'s core, graded by the workers. Needs COLLIMATE_REDIS_URL."""

from __future__ import annotations

from collimate_rl.trl.core import TrlHook
from producer.wiring import groups_in_flight, queued_grader

_hook = TrlHook(queued_grader, groups_in_flight=groups_in_flight)

reward_func = _hook.function()
async_reward_func = _hook.async_function()
make_reward_func = _hook.make
