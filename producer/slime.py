"""slime's reward hook over the queue: `collimate_rl.slime`'s core, graded by the workers.

`args.collimate_redis_url` or `COLLIMATE_REDIS_URL` names the server; see docs/howto/slime.md.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from collimate_rl.slime.core import RewardHook
from collimate_rl.slime.settings import SlimeSettings
from producer.grader import QueuedGrader
from producer.producer import Producer

WINDOW = 256
"""Groups in flight per process: the producer's own window."""

_graders: dict[tuple[int, str, str, str], QueuedGrader] = {}
_lock = threading.Lock()


def queued_grader(settings: SlimeSettings) -> QueuedGrader:
    """One producer per process, server, run and queue; ValueError where no server is named."""
    if settings.redis_url is None:
        raise ValueError("no Redis server is named: set args.collimate_redis_url or COLLIMATE_REDIS_URL")
    key = (os.getpid(), settings.redis_url, settings.run, settings.queue)
    with _lock:
        if key not in _graders:
            producer = Producer(settings.redis_url, run=settings.run, queue=settings.queue, window=WINDOW)
            _graders[key] = QueuedGrader(producer)
        return _graders[key]


_hook = RewardHook(queued_grader, groups_in_flight=lambda _settings: WINDOW)


async def reward_func(args: Any, sample: Any, **_kwargs: Any) -> Any:
    """The reward of `sample`, as `collimate_rl.slime.reward.reward_func`."""
    return await _hook.rewards(args, sample)


async def group_reward_func(args: Any, samples: Any, **_kwargs: Any) -> Any:
    """The rewards of a group's `samples`, as `collimate_rl.slime.reward.group_reward_func`."""
    return await _hook.rewards(args, samples)
