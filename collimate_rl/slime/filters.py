"""slime's dynamic sampling filter that replaces groups which infra trouble left without a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collimate_rl.slime.samples import META_KEY, flatten, metadata_of


@dataclass(frozen=True)
class FilterOutput:
    """What slime reads off a dynamic sampling filter: whether the group stays, and why not."""

    keep: bool
    reason: str | None = None


def drop_infra_groups(args: Any, samples: Any, **_kwargs: Any) -> FilterOutput:
    """slime's `--dynamic-sampling-filter-path collimate_rl.slime.drop_infra_groups`, with on_infra_error "filter".

    Drops a group in which a sample has no reward: slime generates another in its place. `samples` is a list of Samples,
    or a list of lists of them.
    """
    for sample in flatten(samples):
        account = metadata_of(sample).get(META_KEY)
        if isinstance(account, dict) and account.get("infra_error"):
            return FilterOutput(keep=False, reason=f"infra_error_{account.get('error_code') or 'unknown'}")
        if _unrewarded(getattr(sample, "reward", None), getattr(args, "reward_key", None)):
            return FilterOutput(keep=False, reason="no_reward")
    return FilterOutput(keep=True)


def _unrewarded(reward: Any, reward_key: str | None) -> bool:
    if reward_key and isinstance(reward, dict):
        return reward.get(reward_key) is None
    return reward is None
