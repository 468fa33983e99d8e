"""A `Grader` that judges by a function of the candidate's text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from collimate_rl.errors import CollimateError
from collimate_rl.grading.grader import GroupRequest, GroupScore


class FakeGrader:
    """Answers `judge(candidate)` for each candidate: a reward, or a CollimateError for infra trouble.

    `requests` holds every request in order. With a `gate`, groups wait until it is set; `waiting` counts those inside.
    """

    def __init__(
        self,
        judge: Callable[[str], float | CollimateError] = lambda _candidate: 1.0,
        *,
        gate: asyncio.Event | None = None,
    ) -> None:
        self._judge = judge
        self._gate = gate
        self.requests: list[GroupRequest] = []
        self.waiting = 0
        self.most_waiting = 0

    async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
        """Note the request, wait for `gate` if there is one, and give what `judge` says of each candidate."""
        self.requests.append(request)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            if self._gate is not None:
                await self._gate.wait()
        finally:
            self.waiting -= 1
        return [self._score(candidate, seed) for candidate, seed in zip(request.candidates, request.seeds, strict=True)]

    def _score(self, candidate: str, seed: str | None) -> GroupScore:
        answer = self._judge(candidate)
        if isinstance(answer, CollimateError):
            return GroupScore(failure=answer, seed=seed)
        outcome = "passed" if answer == 1.0 else "wrong_answer" if candidate.strip() else "no_code"
        return GroupScore(reward=answer, outcome=outcome, seed=seed, integrity="split")
