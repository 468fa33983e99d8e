"""What a run configures for its reward hook: given in code, else the environment's `COLLIMATE_*`, else a default.

template            COLLIMATE_TEMPLATE         "py"
timeout_seconds     COLLIMATE_TIMEOUT_SECONDS  30       one candidate's run
seed_mode           COLLIMATE_SEED_MODE        vanilla  vanilla, crn, deterministic
base_seed           COLLIMATE_BASE_SEED        none     64 hex characters
entry               COLLIMATE_ENTRY            "solve"
concurrency         COLLIMATE_CONCURRENCY      24       execs in flight (inline)
on_infra_error      COLLIMATE_ON_INFRA_ERROR   raise    raise, neutral, in slime also filter (TRL's default: neutral)
neutral_reward      COLLIMATE_NEUTRAL_REWARD   0.0      what neutral stands for (TRL: None, always)
infra_budget_s      COLLIMATE_INFRA_BUDGET_S   600      how long infra trouble is retried (TRL, slime: 0)
deadline_s          COLLIMATE_DEADLINE_S       3600     one group, all its retries included
base_url, api_key   as `connect` reads them    as `connect` finds it
redis_url           COLLIMATE_REDIS_URL        none     queued grading only, and needed there
run, queue          COLLIMATE_RUN, _QUEUE      the framework's name, "grade"  queued grading only
grader_version      COLLIMATE_GRADER_VERSION   none     queued only: pin, or the version that verdicts must carry
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeVar

from collimate_rl.protocol.bounds import MAX_DEADLINE_S, MAX_TIMEOUT_S
from collimate_rl.seeds import is_valid_seed

SEED_MODES: Final = ("vanilla", "crn", "deterministic")

S = TypeVar("S", bound="HookSettings")


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
    grader_version: str | None = None

    POLICIES: ClassVar[tuple[str, ...]] = ("raise", "neutral")
    """What `on_infra_error` may be."""
    GIVEN_AS: ClassVar[str] = "{}"
    """What a setting that is given in code is called there."""
    CODE_ONLY: ClassVar[frozenset[str]] = frozenset({"base_url", "api_key"})
    """Not read from the environment here: `connect` reads it for these, with an order of its own."""

    def __post_init__(self) -> None:
        for name, is_right, rule in (
            ("template", bool(self.template), "the name of the template to grade in"),
            ("entry", self.entry.isidentifier(), "a function's name"),
            ("timeout_seconds", 1 <= self.timeout_seconds <= MAX_TIMEOUT_S, f"1 to {MAX_TIMEOUT_S}"),
            ("concurrency", self.concurrency >= 1, "at least 1"),
            (
                "deadline_s",
                0 < self.deadline_s <= MAX_DEADLINE_S,
                f"a positive number of seconds to {MAX_DEADLINE_S:g}",
            ),
            ("infra_budget_s", 0 <= self.infra_budget_s < math.inf, "a number of seconds, 0 for no retry"),
            ("neutral_reward", math.isfinite(self.neutral_reward), "a finite number"),
            ("seed_mode", self.seed_mode in SEED_MODES, f"one of {', '.join(SEED_MODES)}"),
            ("on_infra_error", self.on_infra_error in self.POLICIES, f"one of {', '.join(self.POLICIES)}"),
            ("base_seed", self.base_seed is None or is_valid_seed(self.base_seed), "64 hex characters"),
        ):
            if not is_right:
                raise ValueError(f"{self.GIVEN_AS.format(name)} is {rule}, not {getattr(self, name)!r}")

    @classmethod
    def read(cls: type[S], *given: Mapping[str, Any], environ: Mapping[str, str] = os.environ, **defaults: Any) -> S:
        """Each setting from the first of `given` that has it and not None, else the environment, else `defaults`, else
        the class' own default. A value that does not fit, and a key of `given` that is no setting, is a ValueError."""
        kind: Any = cls
        known = _known(kind)
        for one in given:
            if not one.keys() <= known.keys():
                strange = sorted(map(str, one.keys() - known.keys()))
                raise ValueError(f"{', '.join(strange)}: no such setting; there are {', '.join(known)}")
        values = tuple([_first(given, name) for name in known])
        found = tuple([environ.get(variable) if variable else None for variable, _ in known.values()])
        try:
            built: S = _built(kind, values, found, tuple(defaults.items()))
        except TypeError:  # a list, say, which can't be hashed; no setting takes it, and the error must say which
            built = _build(kind, values, found, tuple(defaults.items()))
        return built


def _first(given: tuple[Mapping[str, Any], ...], name: str) -> Any:
    for one in given:
        value = one.get(name)
        if value is not None:
            return value
    return None


@lru_cache(maxsize=8)
def _known(cls: Any) -> dict[str, tuple[str | None, str]]:
    """By setting: its environment variable, where it has one, and its type."""
    return {
        field.name: (None if field.name in cls.CODE_ONLY else f"COLLIMATE_{field.name.upper()}", str(field.type))
        for field in fields(cls)
    }


def _build(
    cls: Any, given: tuple[Any, ...], found: tuple[str | None, ...], defaults: tuple[tuple[str, Any], ...]
) -> Any:
    values = dict(defaults)
    for (name, (variable, kind)), value, text in zip(_known(cls).items(), given, found, strict=True):
        source = cls.GIVEN_AS.format(name)
        if value is None and text:
            source, value = variable, text
        if value is not None:
            try:
                values[name] = _CONVERT.get(kind, str)(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{source} is {value!r}: {error}") from error
    return cls(**values)


_built = lru_cache(maxsize=256)(_build)
"""Hooks read their settings at every call, on the trainer's loop: the same ones are built once."""


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("not a whole number")
    return int(value)


_CONVERT: Final[Mapping[str, Callable[[Any], Any]]] = {"int": _whole, "float": float}
