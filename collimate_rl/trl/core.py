"""TRL's reward function, written once: it takes a `Grader`, and is the same for inline and for queued grading.

TRL calls it with one batch per rank, `prompts`, `completions`, `completion_ids` and every other column of the data set,
all of one length, and wants a list of that length. None abstains there, and is what infra trouble becomes. (Where this
is the only reward function, TRL makes an advantage from 0 of a row on which all abstain: see docs/howto/trl.md.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from collimate_rl.grading.grader import Grader, GroupScore
from collimate_rl.hooks.blocking import wait_for
from collimate_rl.hooks.policy import settle
from collimate_rl.hooks.rows import ground_truth_of, same_truth, seed_for, text_of
from collimate_rl.hooks.scoring import GroupScorer, Member, pieces
from collimate_rl.hooks.settings import HookSettings

RewardFunc = Callable[..., "list[float | None]"]
AsyncRewardFunc = Callable[..., "Coroutine[Any, Any, list[float | None]]"]

_DEFAULTS: Final[Mapping[str, Any]] = {"run": "trl", "on_infra_error": "neutral", "infra_budget_s": 0.0}
"""An abstention is TRL's own word for no verdict, so that holding the step up with retries needs to be asked for."""


class TrlHook:
    """Turns TRL's columns into rewards over the grader that `grader_for(settings)` hands out."""

    def __init__(
        self,
        grader_for: Callable[[HookSettings], Grader],
        *,
        groups_in_flight: Callable[[HookSettings], int] = lambda settings: settings.concurrency,
    ) -> None:
        self._scorer = GroupScorer(grader_for, groups_in_flight=groups_in_flight)

    def make(self, *, is_async: bool = False, **settings: Any) -> RewardFunc | AsyncRewardFunc:
        """A reward function, or a coroutine function, with `settings` (the fields of `HookSettings`), which win over
        the environment. ValueError for settings that do not fit."""
        HookSettings.read(settings, **_DEFAULTS)

        def reward_func(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
            return wait_for(self.rewards(prompts, completions, columns, settings))

        async def async_reward_func(
            prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
        ) -> list[float | None]:
            return await self.rewards(prompts, completions, columns, settings)

        return async_reward_func if is_async else reward_func

    async def rewards(
        self,
        prompts: Sequence[Any] | None,
        completions: Sequence[Any],
        columns: Mapping[str, Any],
        given: Mapping[str, Any] | None = None,
    ) -> list[float | None]:
        """One reward or None per completion, in order."""
        settings = HookSettings.read(given or {}, **_DEFAULTS)
        for name, given_texts in (("prompts", prompts), ("completions", completions)):
            if isinstance(given_texts, (str, bytes)):
                raise ValueError(f"{name} is one text: give a list of them")
        rows = rows_of(columns, len(completions))
        asked = list(prompts) if prompts is not None else [""] * len(completions)
        if len(asked) != len(completions):
            raise ValueError(f"{len(asked)} prompts for {len(completions)} completions: one each")
        groups = partition(rows, asked)
        tasks = [
            asyncio.ensure_future(self._group(settings, truth, positions, rows, asked, completions))
            for truth, whole in groups
            for positions in pieces(whole)
        ]
        try:
            graded = dict(pair for group in await asyncio.gather(*tasks) for pair in group)
        finally:
            for task in tasks:
                task.cancel()
        scores = [graded[position] for position in range(len(completions))]
        _tell(scores, columns)
        return settle(
            "trl", settings, [(_name(position), score) for position, score in enumerate(scores)], no_verdict=None
        )

    async def _group(
        self,
        settings: HookSettings,
        truth: Any,
        positions: Sequence[int],
        rows: Sequence[Mapping[str, Any]],
        prompts: Sequence[Any],
        completions: Sequence[Any],
    ) -> list[tuple[int, GroupScore]]:
        members = [
            Member(
                completion=text_of(completions[position]),
                seed=seed_for(settings, _key_rows(rows[position]), prompts[position], _name(position)),
                name=_name(position),
            )
            for position in positions
        ]
        scores = await self._scorer.scores(
            settings, truth, members, about=_name(positions[0]), infra_budget_s=settings.infra_budget_s
        )
        return list(zip(positions, scores, strict=True))


def rows_of(columns: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """The data set's rows again, from its columns; all but what is no column of `size` values (trainer_state)."""
    named = {name: values for name, values in columns.items() if _is_column(values) and len(values) == size}
    return [{name: values[index] for name, values in named.items()} for index in range(size)]


def _is_column(values: Any) -> bool:
    """Lists, tuples, arrays and a data set's own columns."""
    indexed = hasattr(values, "__len__") and hasattr(values, "__getitem__")
    return indexed and not isinstance(values, (str, bytes, Mapping))


def partition(rows: Sequence[Mapping[str, Any]], prompts: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Groups of rows that share prompt and ground truth: (ground truth, positions), in order. ValueError for a row
    without ground truth."""
    groups: list[tuple[Any, Any, list[int]]] = []
    for position, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        # HumanEval's completions continue their prompt, which TRL hands over beside the columns
        whole = {"prompt": prompt, **row} if isinstance(prompt, str) else row
        truth = ground_truth_of(whole)
        if truth is None:
            raise ValueError(
                f"{_name(position)} has no ground truth: neither a column ground_truth, reward_model or reward_spec, "
                f"nor those of a known data set; its columns are {', '.join(row) or 'none'}"
            )
        for known_prompt, known_truth, positions in groups:
            if known_prompt == prompt and same_truth(known_truth, truth):
                positions.append(position)
                break
        else:
            groups.append((prompt, truth, [position]))
    return [(truth, positions) for _, truth, positions in groups]


def _key_rows(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    info = row.get("extra_info")
    return [row, info] if isinstance(info, Mapping) else [row]


def _name(position: int) -> str:
    return f"the completion at place {position} of the batch"


def _tell(scores: Sequence[GroupScore], columns: Mapping[str, Any]) -> None:
    """Hands the number of ungraded completions to the trainer's log, where its version lets reward functions log."""
    failed = sum(score.failure is not None for score in scores)
    log_metric = columns.get("log_metric")
    if callable(log_metric):
        log_metric("collimate/infra_errors", float(failed))
