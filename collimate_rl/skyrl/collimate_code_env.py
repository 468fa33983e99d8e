"""`CollimateCodeEnv`, the environment that skyrl_gym makes, graded inline: this process against a sandbox daemon.

collimate_rl.skyrl.register("collimate_code")
env = skyrl_gym.make("collimate_code", env_config={}, extras=row)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv
except ImportError as error:
    raise ImportError("CollimateCodeEnv needs skyrl-gym: pip install 'collimate-rl[skyrl]'") from error

from collimate_rl.hooks.scoring import GroupScorer
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.hooks.wiring import inline_client, inline_grader
from collimate_rl.skyrl.core import CodeEpisode, aggregate
from collimate_rl.skyrl.reuse import SessionGrader


def _session_grader(settings: HookSettings) -> SessionGrader:
    return SessionGrader(inline_client(settings))


class CollimateCodeEnv(BaseTextEnv):  # type: ignore[misc]  # skyrl_gym ships no types
    """Scores the code in the model's answer against the row's tests, in one turn or several.

    env_config -- base_url, api_key, template_id "py", timeout_seconds 30, seed_mode "vanilla", base_seed, reuse_session
                  False, and the other settings of docs/howto/skyrl.md. It beats `extras["collimate"]`, which beats
                  `defaults` (from `register`), which beat the environment's COLLIMATE_*.
    extras -- the row's columns: the ground truth in `reward_spec["ground_truth"]`, `max_turns`, `public_tests`.

    Constructing is cheap and touches no network. ValueError for a row without ground truth, and for settings that do
    not fit; what is wrong in the ground truth is a ValueError of `step`. Every method may be called from any thread.
    """

    scorer: ClassVar[GroupScorer[HookSettings]] = GroupScorer(inline_grader)
    session_grader: ClassVar[Callable[[HookSettings], SessionGrader] | None] = _session_grader

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._episode = CodeEpisode(
            self.scorer, env_config or {}, extras or {}, defaults or {}, type(self).session_grader
        )
        self.max_turns = self._episode.max_turns

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        """Starts an episode: the prompt as it came, and no information."""
        self._episode.start(prompt)
        self.turns = 0
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        """Grades one answer: observations, reward, done, metadata.

        Raises ValueError for a ground truth that can't be graded by, RunMisconfigured and DemoTierLimit for what no
        retry heals, CollimateError when infra trouble outlasted its budget: never a reward of 0 for any of them.
        """
        answer = self._episode.turn(action)
        self.turns = self._episode.turns
        return answer

    def get_metrics(self) -> dict[str, Any]:
        """The episode's: reward, passed, turns, infra_errors, infra_retries."""
        return self._episode.metrics()

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        """Over episodes: means of reward, passed and turns; sums of infra_errors and infra_retries."""
        return aggregate(metrics)

    def close(self) -> None:
        """Lets a reused session go; safe to call again, and not called when a step raised."""
        self._episode.close()
