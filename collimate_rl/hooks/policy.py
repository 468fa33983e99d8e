"""What infra trouble becomes in a hook: raised, or left to the framework's word for no verdict; counted either way.

A hook whose framework has no such word gives the neutral reward that the run asked for. Nothing here makes up a 0.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from collimate_rl.errors import CollimateError, DemoTierLimit, RunMisconfigured, UnsuitableServer
from collimate_rl.grading.grader import GroupScore
from collimate_rl.hooks.forks import ForkLock


class Policy(Protocol):
    """What of the settings says what infra trouble becomes."""

    @property
    def on_infra_error(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class HookCounts:
    """What a framework's hooks made of completions in this process, since it began.

    `graded` have a verdict; `infra_errors` counts, by code, those that have none; `neutral` of them got a neutral
    reward, which is made up, and `retries` is how often graders were asked once more.
    """

    graded: int = 0
    infra_errors: Mapping[str, int] = field(default_factory=dict)
    neutral: int = 0
    retries: int = 0


_counts: dict[str, HookCounts] = {}
_lock = ForkLock()


def hook_counts(framework: str) -> HookCounts:
    """The counts of "slime", "skyrl", "trl" or "verl"."""
    with _lock:
        return _counts.get(framework, HookCounts())


def settle(
    framework: str, policy: Policy, scored: Sequence[tuple[str, GroupScore]], *, no_verdict: float | None
) -> list[float | None]:
    """The rewards of named completions, in order: what was graded has its own, what was not has `no_verdict`.

    Raises what no retry heals whatever the policy says, and under "raise" the first infra error.
    """
    log = logging.getLogger(f"collimate_rl.{framework}")
    failed = [(name, score.failure) for name, score in scored if score.failure is not None]
    _count(framework, [score for _, score in scored], 0 if no_verdict is None else len(failed), policy)
    for name, failure in failed:
        raise_what_cannot_heal(name, failure)
    for name, failure in failed:
        if policy.on_infra_error == "raise":
            raise failure
        what = "has no reward" if no_verdict is None else f"gets the neutral reward {no_verdict:g}"
        log.warning("%s was not graded and %s: %s", name, what, failure.message)
    return [no_verdict if score.failure is not None else score.reward for _, score in scored]


def _count(framework: str, scores: Sequence[GroupScore], neutral: int, policy: Policy) -> None:
    codes = Counter(code_of(score.failure) for score in scores if score.failure is not None)
    raised = policy.on_infra_error == "raise" or any(score.failure and cannot_heal(score.failure) for score in scores)
    with _lock:
        before = _counts.get(framework, HookCounts())
        _counts[framework] = HookCounts(
            graded=before.graded + len(scores) - codes.total(),
            infra_errors=dict(Counter(before.infra_errors) + codes),
            neutral=before.neutral + (0 if raised else neutral),
            retries=before.retries + sum(score.attempts - 1 for score in scores),
        )


def code_of(failure: CollimateError) -> str:
    """The failure's code; where it came without one, its class' name as a code (QueueFull: "queue_full")."""
    if failure.error_code:
        return failure.error_code
    name = type(failure).__name__
    return "unknown" if name == "CollimateError" else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def cannot_heal(failure: CollimateError) -> bool:
    """Whether the run itself is at fault: raised whatever the policy, never scored and never tried again."""
    return failure.is_misconfigured or isinstance(failure, UnsuitableServer) or is_demo_limit(failure)


def is_demo_limit(failure: CollimateError) -> bool:
    """Whether a limit of the demo tier refused the work; its message is for the user, word for word."""
    return isinstance(failure, DemoTierLimit) or failure.error_code == "demo_tier_limit"


def raise_what_cannot_heal(name: str, failure: CollimateError) -> None:
    """Raises RunMisconfigured for codes that no retry heals, and a tier's or server's refusal as it came."""
    if failure.is_misconfigured:
        raise RunMisconfigured(
            f"{name} was not graded and no retry heals it: {failure.message} ({failure.error_code}). "
            "The run is set up wrongly; nothing was scored.",
            failure.status,
            failure.error_code,
        ) from failure
    if cannot_heal(failure):
        raise failure
