"""What a slime run configures: `args.collimate_*`, else the environment's `COLLIMATE_*`, else a default.

args                            environment                default
collimate_template              COLLIMATE_TEMPLATE         "py"
collimate_timeout_seconds       COLLIMATE_TIMEOUT_SECONDS  30       one candidate's run
collimate_seed_mode             COLLIMATE_SEED_MODE        vanilla  vanilla, crn, deterministic
collimate_base_seed             COLLIMATE_BASE_SEED        none     64 hex characters
collimate_entry                 COLLIMATE_ENTRY            "solve"
collimate_concurrency           COLLIMATE_CONCURRENCY      24       execs in flight (inline)
collimate_on_infra_error        COLLIMATE_ON_INFRA_ERROR   raise    raise, filter
collimate_deadline_s            COLLIMATE_DEADLINE_S       3600     one group, from the start of work on it
collimate_base_url, _api_key    as `connect` reads them    as `connect` finds it
collimate_redis_url             COLLIMATE_REDIS_URL        none     queued grading only, and needed there
collimate_run, collimate_queue  COLLIMATE_RUN, _QUEUE      "slime", "grade"  queued grading only
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from collimate_rl.seeds import is_valid_seed

SEED_MODES = ("vanilla", "crn", "deterministic")
ON_INFRA_ERROR = ("raise", "filter")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SlimeSettings:
    """One call's configuration, validated. Hashable: graders are kept by it."""

    template: str = "py"
    timeout_seconds: int = 30
    seed_mode: str = "vanilla"
    base_seed: str | None = None
    entry: str = "solve"
    concurrency: int = 24
    on_infra_error: str = "raise"
    deadline_s: float = 3600.0
    base_url: str | None = None
    api_key: str | None = None
    redis_url: str | None = None
    run: str = "slime"
    queue: str = "grade"
    reward_key: str | None = None

    def __post_init__(self) -> None:
        if not self.template:
            raise ValueError("collimate_template is empty: name the template to grade in")
        if not self.entry.isidentifier():
            raise ValueError(f"collimate_entry is a function's name, not {self.entry!r}")
        if not 1 <= self.timeout_seconds <= 3600:
            raise ValueError(f"collimate_timeout_seconds is 1 to 3600, not {self.timeout_seconds}")
        if self.concurrency < 1:
            raise ValueError(f"collimate_concurrency is at least 1, not {self.concurrency}")
        if not (math.isfinite(self.deadline_s) and self.deadline_s > 0):
            raise ValueError(f"collimate_deadline_s is a positive number of seconds, not {self.deadline_s}")
        if self.seed_mode not in SEED_MODES:
            raise ValueError(f"collimate_seed_mode is one of {', '.join(SEED_MODES)}, not {self.seed_mode!r}")
        if self.on_infra_error not in ON_INFRA_ERROR:
            raise ValueError(
                f"collimate_on_infra_error is one of {', '.join(ON_INFRA_ERROR)}, not {self.on_infra_error!r}"
            )
        if self.base_seed is not None and not is_valid_seed(self.base_seed):
            raise ValueError(f"collimate_base_seed is 64 hex characters, not {self.base_seed!r}")

    @classmethod
    def read(cls, args: object, environ: Mapping[str, str] = os.environ) -> SlimeSettings:
        """From slime's `args` and the environment; a value that does not fit is a ValueError naming the setting."""

        def setting(name: str, convert: Callable[[str], T], default: T) -> T:
            given = getattr(args, f"collimate_{name}", None)
            source = f"args.collimate_{name}"
            if given is None:
                source = f"COLLIMATE_{name.upper()}"
                given = environ.get(source) or None
            if given is None:
                return default
            try:
                return convert(given)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{source} is {given!r}: {error}") from error

        return cls(
            template=setting("template", str, "py"),
            timeout_seconds=setting("timeout_seconds", int, 30),
            seed_mode=setting("seed_mode", str, "vanilla"),
            base_seed=setting("base_seed", _text, None),
            entry=setting("entry", str, "solve"),
            concurrency=setting("concurrency", int, 24),
            on_infra_error=setting("on_infra_error", str, "raise"),
            deadline_s=setting("deadline_s", float, 3600.0),
            # `connect` reads the environment for these two: only what args give is passed on
            base_url=getattr(args, "collimate_base_url", None),
            api_key=getattr(args, "collimate_api_key", None),
            redis_url=setting("redis_url", _text, None),
            run=setting("run", str, "slime"),
            queue=setting("queue", str, "grade"),
            reward_key=getattr(args, "reward_key", None) or None,
        )


def _text(value: str) -> str | None:
    return str(value)
