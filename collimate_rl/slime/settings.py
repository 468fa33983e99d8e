"""What a slime run configures: `args.collimate_*`, else the environment, else a default.

The settings are those of every hook (`collimate_rl.hooks.settings`), with the prefix `collimate_`, and slime's own
`args.reward_key`. `on_infra_error` may be "filter", too; nothing is retried beyond the grader's own rounds unless
`collimate_infra_budget_s` says so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Final

from collimate_rl.hooks.settings import HookSettings


@dataclass(frozen=True, kw_only=True)
class SlimeSettings(HookSettings):
    """One call's configuration, validated. Hashable: graders are kept by it."""

    infra_budget_s: float = 0.0
    run: str = "slime"
    reward_key: str | None = None

    POLICIES: ClassVar[tuple[str, ...]] = ("raise", "filter", "neutral")
    GIVEN_AS: ClassVar[str] = "collimate_{}"
    CODE_ONLY: ClassVar[frozenset[str]] = HookSettings.CODE_ONLY | {"reward_key"}

    @classmethod
    def of(cls, args: object, environ: Mapping[str, str] = os.environ) -> SlimeSettings:
        """From slime's `args` and the environment; a value that does not fit is a ValueError naming the setting."""
        given = {name: getattr(args, attribute, None) for name, attribute in _ATTRIBUTES.items()}
        return cls.read(given, environ=environ)


_ATTRIBUTES: Final = {
    field.name: field.name if field.name == "reward_key" else f"collimate_{field.name}"
    for field in fields(SlimeSettings)
}
