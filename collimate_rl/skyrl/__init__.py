"""SkyRL: an environment for code, graded inline. `producer.skyrl` is the same environment over the queue.

`CollimateCodeEnv` needs the extra `[skyrl]`, and is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collimate_rl.skyrl.registration import register

if TYPE_CHECKING:
    from collimate_rl.skyrl.collimate_code_env import CollimateCodeEnv

__all__ = ["CollimateCodeEnv", "register"]


def __getattr__(name: str) -> Any:
    if name == "CollimateCodeEnv":
        from collimate_rl.skyrl.collimate_code_env import CollimateCodeEnv

        return CollimateCodeEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
