"""What a run configures for its reward hook: given in code, else the environment's `COLLIMATE_*`, else a default.

template            COLLIMATE_TEMPLATE         "py"
timeout_seconds     COLLIMATE_TIMEOUT_SECONDS  30       one candidate's run
seed_mode           COLLIMATE_SEED_MODE        vanilla  vanilla, crn, deterministic
base_seed           COLLIMATE_BASE_SEED        none     64 hex characters
entry               COLLIMATE_ENTRY            "solve"
concurrency         COLLIMATE_CONCURRENCY      24       execs in flight (inline)
on_infra_error      COLLIMATE_ON_INFRA_ERROR   raise    raise, neutral (TRL: neutral is the default)
neutral_reward      COLLIMATE_NEUTRAL_REWARD   0.0      what neutral stands for (TRL: None, always)
infra_budget_s      COLLIMATE_INFRA_BUDGET_S   600      how long infra trouble is retried (TRL: 0)
deadline_s          COLLIMATE_DEADLINE_S       3600     one group, all its retries included
base_url, api_key   as `connect` reads them    as `connect` finds it
redis_url           COLLIMATE_REDIS_URL        none     queued grading only, and needed there
run, queue          COLLIMATE_RUN, _QUEUE      the framework's name, "grade"  queued grading only
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from collimate_rl.seeds import is_valid_seed

SEED_MODES: Final = ("vanilla", "crn", "deterministic")
ON_INFRA_ERROR: Final = ("raise", "neutral")
_OF_CONNECT: Final = frozenset({"base_url", "api_key"})
"""`connect` reads the environment for these, with an order of its own."""


@dataclass(frozen=True, kw_only=True)
class HookSettings:
    """One hook's configuration, validated. Hashable: graders are kept by it. ValueError names the setting at fault."""

    template: str = "py"
    timeout_seconds: int = 30
    seed_mode: str = "vanilla"
    base_seed: str | None = None
    entry: str = "solve"
    concurrency: int = 24
    on_infra_error: str = "raise"
    neutral_reward: float = 0.0
    infra_budget_s: float = 600.0
    deadline_s: float = 3600.0
    base_url: str | None = None
    api_key: str | None = None
    redis_url: str | None = None
    run: str = "grade"
    queue: str = "grade"

    def __post_init__(self) -> None:
        if not self.template:
            raise ValueError("template is empty: name the template to grade in")
        if not self.entry.isidentifier():
            raise ValueError(f"entry is a function's name, not {self.entry!r}")
        if not 1 <= self.timeout_seconds <= 3600:
            raise ValueError(f"timeout_seconds is 1 to 3600, not {self.timeout_seconds}")
        if self.concurrency < 1:
            raise ValueError(f"concurrency is at least 1, not {self.concurrency}")
        if not (math.isfinite(self.deadline_s) and self.deadline_s > 0):
            raise ValueError(f"deadline_s is a positive number of seconds, not {self.deadline_s}")
        if not (math.isfinite(self.infra_budget_s) and self.infra_budget_s >= 0):
            raise ValueError(f"infra_budget_s is a number of seconds, 0 for no retry, not {self.infra_budget_s}")
        if not math.isfinite(self.neutral_reward):
            raise ValueError(f"neutral_reward is a finite number, not {self.neutral_reward}")
        if self.seed_mode not in SEED_MODES:
            raise ValueError(f"seed_mode is one of {', '.join(SEED_MODES)}, not {self.seed_mode!r}")
        if self.on_infra_error not in ON_INFRA_ERROR:
            raise ValueError(f"on_infra_error is one of {', '.join(ON_INFRA_ERROR)}, not {self.on_infra_error!r}")
        if self.base_seed is not None and not is_valid_seed(self.base_seed):
            raise ValueError(f"base_seed is 64 hex characters, not {self.base_seed!r}")

    @classmethod
    def read(cls, *given: Mapping[str, Any], environ: Mapping[str, str] = os.environ, **defaults: Any) -> HookSettings:
        """Each setting from the first of `given` that has it and not None, else the environment, else `defaults`, else
        the class' own default. A value that does not fit, and a key of `given` that is no setting, is a ValueError."""
        known = {field.name: field for field in fields(cls)}
        for one in given:
            strange = sorted(set(one) - set(known))
            if strange:
                raise ValueError(f"{', '.join(strange)}: no such setting; there are {', '.join(known)}")
        values = dict(defaults)
        for name, field in known.items():
            value = next((one[name] for one in given if one.get(name) is not None), None)
            source = name
            if value is None and name not in _OF_CONNECT:
                source = f"COLLIMATE_{name.upper()}"
                value = environ.get(source) or None
            if value is not None:
                try:
                    values[name] = _CONVERT.get(str(field.type), str)(value)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{source} is {value!r}: {error}") from error
        return cls(**values)


_CONVERT: Final[Mapping[str, Callable[[Any], Any]]] = {"int": int, "float": float}
