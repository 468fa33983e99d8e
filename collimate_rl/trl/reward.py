"""The reward functions that a TRL trainer's `reward_funcs` takes, graded inline: this process against a daemon.

GRPOTrainer(reward_funcs=[collimate_rl.trl.reward_func], …)
"""

from __future__ import annotations

from collimate_rl.hooks.wiring import inline_grader
from collimate_rl.trl.core import TrlHook

_hook = TrlHook(inline_grader)

reward_func = _hook.function()
async_reward_func = _hook.async_function()
make_reward_func = _hook.make
