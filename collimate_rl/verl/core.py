"""verl's `compute_score`, written once: it takes a `Grader`, and is the same for inline and for queued grading.

verl calls it by keyword, one sample a call, on a loop that holds many of them, without a timeout; every sample's dict
must have the same keys. Samples of one row that come together are graded as one group (`collimate_rl.verl.siblings`).
verl has no word for "no verdict": infra trouble is retried until its budget is spent, and then
raised, or under `COLLIMATE_ON_INFRA_ERROR=neutral` scored with the neutral reward, flagged by `infra_error` 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from collimate_rl.grading.grader import Grader
from collimate_rl.hooks.pacing import Pace
from collimate_rl.hooks.policy import code_of, settle
from collimate_rl.hooks.rows import find_ground_truth, seed_for, text_of
from collimate_rl.hooks.scoring import GroupScorer, Member
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.verl.siblings import Siblings

_PREFIX: Final = "collimate_"
_ROW_KEYS: Final = ("uid", "index")
"""What of extra_info tells rows with the same ground truth apart."""


class VerlHook:
    """Turns verl's samples into scores over the grader that `grader_for(settings)` hands out."""

    def __init__(
        self,
        grader_for: Callable[[HookSettings], Grader],
        *,
        groups_in_flight: Callable[[HookSettings], int] = lambda settings: settings.concurrency,
    ) -> None:
        self._pace = Pace()
        self._siblings = Siblings(GroupScorer(grader_for, groups_in_flight=groups_in_flight))

    async def score(
        self, data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any, kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """`score`, `passed` (1.0 where every test passed), `infra_error` (1.0 or 0.0), `outcome`, `error_code`.

        kwargs -- `collimate_*` ones are settings (verl's `reward_kwargs`) and win over the environment; the rest is
                  verl's own.

        Raises ValueError for a ground truth that can't be graded by, RunMisconfigured for what no retry heals,
        CollimateError when the budget for infra trouble is spent and the policy is to raise.
        """
        await self._pace.turn()
        given = {name[len(_PREFIX) :]: value for name, value in kwargs.items() if name.startswith(_PREFIX)}
        settings = HookSettings.read(given, run="verl")
        info = extra_info if isinstance(extra_info, Mapping) else {}
        name = f"the sample with index {info.get('index')} of {data_source}"
        # As it came: siblings mostly share it, and reading it may take long, which a thread does for the whole group.
        found = find_ground_truth({"ground_truth": ground_truth})
        truth = found if found is not None else find_ground_truth(info)
        if truth is None:
            raise ValueError(f"{name} has no ground truth: neither in reward_model.ground_truth nor in extra_info")
        member = Member(completion=text_of(solution_str), seed=seed_for(settings, [info], truth, name), name=name)
        row = (str(data_source), *(repr(info.get(name)) for name in _ROW_KEYS))
        score = await self._siblings.score(settings, row, truth, member, infra_budget_s=settings.infra_budget_s)
        (reward,) = settle("verl", settings, [(name, score)], no_verdict=settings.neutral_reward)
        failure = score.failure
        return {
            "score": reward,
            "passed": float(score.outcome == "passed"),
            "infra_error": float(failure is not None),
            "outcome": score.outcome or "",
            "error_code": code_of(failure) if failure is not None else "",
        }
