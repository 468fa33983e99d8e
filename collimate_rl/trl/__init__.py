"""TRL: the reward function, graded inline. `producer.trl` is the same function over the queue."""

from __future__ import annotations

from collimate_rl.trl.reward import async_reward_func, make_reward_func, reward_func

__all__ = ["async_reward_func", "make_reward_func", "reward_func"]
