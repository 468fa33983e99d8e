"""slime: the reward hook, graded inline. `producer.slime` is the same hook over the queue."""

from __future__ import annotations

from collimate_rl.slime.filters import FilterOutput, drop_infra_groups
from collimate_rl.slime.reward import group_reward_func, reward_func

__all__ = ["FilterOutput", "drop_infra_groups", "group_reward_func", "reward_func"]
