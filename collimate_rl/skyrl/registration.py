"""Making the environment known to skyrl_gym, in every process that makes one."""

from __future__ import annotations

from typing import Any, Final

from collimate_rl.hooks.forks import ForkLock

INLINE: Final = "collimate_rl.skyrl.collimate_code_env:CollimateCodeEnv"
QUEUED: Final = "producer.skyrl:CollimateCodeEnv"

_lock = ForkLock()


def register(env_id: str = "collimate_code", *, entry_point: str = INLINE, **defaults: Any) -> None:
    """Registers the environment as `env_id`; `defaults` are settings that a row's and the generator's env_config beat.

    Calling it again is safe: our own entry of that name is replaced, so that the last call counts. Another package's
    environment of that name is left alone: skyrl_gym's RegistrationError. ImportError without skyrl-gym.
    """
    try:
        import skyrl_gym
        from skyrl_gym.envs.registration import registry
    except ImportError as error:
        raise ImportError("SkyRL's environments need skyrl-gym: pip install 'collimate-rl[skyrl]'") from error
    with _lock:
        known = registry.get(env_id)
        if known is not None and known.entry_point in (INLINE, QUEUED):
            del registry[env_id]
        skyrl_gym.register(id=env_id, entry_point=entry_point, kwargs={"defaults": defaults} if defaults else {})
