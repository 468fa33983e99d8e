"""The hook that slime's `--custom-rm-path` points at, graded inline: this process against a sandbox daemon.

    --custom-rm-path collimate_rl.slime.reward.reward_func
    --custom-rm-path collimate_rl.slime.reward.group_reward_func --group-rm

Both accept all three shapes in which slime calls a path: a Sample, a list of Samples (custom generate fans out, also
without `--group-rm`), a list of lists (with both).
"""

from __future__ import annotations

import os
import threading
from typing import Any

from collimate_rl.grading.inline import InlineGrader
from collimate_rl.slime.core import RewardHook
from collimate_rl.slime.settings import SlimeSettings
from collimate_rl.transport import connect

_graders: dict[tuple[int, str | None, str | None, int], InlineGrader] = {}
_lock = threading.Lock()


def inline_grader(settings: SlimeSettings) -> InlineGrader:
    """One grader per process, endpoint and concurrency. Its client is a pool of sockets: bound to no loop."""
    key = (os.getpid(), settings.base_url, settings.api_key, settings.concurrency)
    with _lock:
        grader = _graders.get(key)
        if grader is None:
            client = connect(settings.base_url, api_key=settings.api_key)
            grader = _graders[key] = InlineGrader(client, concurrency=settings.concurrency)
        return grader


_hook = RewardHook(inline_grader)


async def reward_func(args: Any, sample: Any, **_kwargs: Any) -> Any:
    """The reward of `sample`: a float from 0.0 to 1.0 (a list for a list); a dict under slime's `--reward-key`."""
    return await _hook.rewards(args, sample)


async def group_reward_func(args: Any, samples: Any, **_kwargs: Any) -> Any:
    """The rewards of a group's `samples`, in order: samples with one ground truth are graded as one group."""
    return await _hook.rewards(args, samples)
