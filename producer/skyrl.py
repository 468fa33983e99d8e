"""SkyRL's environment over the queue: `collimate_rl.skyrl`'s core, graded by the workers. Needs COLLIMATE_REDIS_URL."""

from __future__ import annotations

from typing import Any

from collimate_rl.hooks.scoring import GroupScorer
from collimate_rl.skyrl import collimate_code_env, registration
from producer.wiring import groups_in_flight, queued_grader


class CollimateCodeEnv(collimate_code_env.CollimateCodeEnv):
    """As `collimate_rl.skyrl.CollimateCodeEnv`, with the settings redis_url, run and queue.

    `reuse_session` has no meaning here: a worker may be on any node.
    """

    scorer = GroupScorer(queued_grader, groups_in_flight=groups_in_flight)
    session_grader = None


def register(env_id: str = "collimate_code", **defaults: Any) -> None:
    """As `collimate_rl.skyrl.register`, for the queued environment."""
    registration.register(env_id, entry_point=registration.QUEUED, **defaults)
