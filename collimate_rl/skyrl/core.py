"""One episode of SkyRL's code environment, written once: it takes a scorer, and is the same inline and queued.

SkyRL makes environments on its event loop (so constructing is cheap and reads no ground truth), and steps them in a
pool of threads. It has no word for "no verdict", and passes NaN through: infra trouble is retried until its budget is
spent, and then raised, or under on_infra_error "neutral" ends the episode with the neutral reward, counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from collimate_rl.errors import CollimateError
from collimate_rl.grading.grader import GroupScore
from collimate_rl.hooks.blocking import wait_for
from collimate_rl.hooks.policy import code_of, raise_what_cannot_heal, settle
from collimate_rl.hooks.rows import find_ground_truth, seed_for, text_of, without_gaps
from collimate_rl.hooks.scoring import GroupScorer, Member
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.skyrl.feedback import feedback, public_tests_of
from collimate_rl.skyrl.reuse import SessionGrader

log = logging.getLogger("collimate_rl.skyrl")

_RENAMED: Final = {"template_id": "template"}
_OF_THE_ENV: Final = frozenset({"reuse_session", "max_turns"})
_FIELDS: Final = frozenset(HookSettings.__dataclass_fields__)


class CodeEpisode:
    """One row's episode. `max_turns` from the row or the configuration, else 1; `turns` are those taken."""

    def __init__(
        self,
        scorer: GroupScorer[HookSettings],
        env_config: Mapping[str, Any],
        extras: Mapping[str, Any],
        defaults: Mapping[str, Any],
        session_grader: Callable[[HookSettings], SessionGrader] | None = None,
    ) -> None:
        """`session_grader` makes the grader of an episode that reuses its session; None where none can."""
        row = extras.get("collimate")
        layers = [dict(env_config), dict(row) if isinstance(row, Mapping) else {}, dict(defaults)]
        self._settings = HookSettings.read(*map(_settings_in, layers), run="skyrl")
        self._scorer = scorer
        reuse = next((one["reuse_session"] for one in layers if one.get("reuse_session") is not None), False)
        self._session_grader = session_grader if reuse else None
        self._sessions: SessionGrader | None = None
        self._extras = extras
        if find_ground_truth(extras) is None:
            raise ValueError(
                f"{self._name()} has no ground truth: neither in reward_spec.ground_truth nor in the columns of a "
                f"known data set; its columns are {', '.join(map(str, extras)) or 'none'}"
            )
        turns = next((one["max_turns"] for one in [extras, *layers] if one.get("max_turns") is not None), 1)
        try:
            self.max_turns = int(turns)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"max_turns of {self._name()} is a whole number, not {turns!r}") from error
        if self.max_turns < 1:
            raise ValueError(f"max_turns is at least 1, not {self.max_turns}")
        self._lock = threading.Lock()
        self.start("")

    def start(self, prompt: Any) -> None:
        """Begins anew."""
        self._prompt = prompt
        self.turns = 0
        self._last: GroupScore | None = None
        self._retries = 0
        self._failed = False

    def turn(self, action: str) -> dict[str, Any]:
        """Grades one answer. Until the last turn a failing one has reward 0.0, so that a sum over turns is the last
        one's score, and its failing cases are the next observation."""
        with self._lock:
            try:
                return self._turn(action)
            except BaseException:
                self.close()  # SkyRL closes no environment whose step raised
                raise

    def _turn(self, action: str) -> dict[str, Any]:
        score = self._score(action, find_ground_truth(self._extras))
        self.turns += 1
        self._last = score
        self._retries += score.attempts - 1
        self._failed = score.failure is not None
        settings = self._settings
        (reward,) = settle("skyrl", settings, [(self._name(), score)], no_verdict=settings.neutral_reward)
        if score.failure is not None:
            return {"observations": [], "reward": reward, "done": True, "metadata": _failure_account(score.failure)}
        done = score.outcome == "passed" or self.turns >= self.max_turns
        observations = [] if done else [{"role": "user", "content": self._feedback(action, score)}]
        return {
            "observations": observations,
            "reward": reward if done else 0.0,
            "done": done,
            "metadata": self._account(score),
        }

    def metrics(self) -> dict[str, Any]:
        """reward (of the last turn), passed, turns, infra_errors, infra_retries."""
        score = self._last
        graded = score is not None and score.failure is None
        return {
            **({"reward": score.reward, "passed": float(score.outcome == "passed")} if score and graded else {}),
            "turns": self.turns,
            "infra_errors": int(self._failed),
            "infra_retries": self._retries,
        }

    def _score(self, action: str, truth: Any) -> GroupScore:
        settings, name = self._settings, self._name()
        info = self._extras.get("extra_info")
        keys = [self._extras, info] if isinstance(info, Mapping) else [self._extras]
        member = Member(completion=text_of(action), seed=seed_for(settings, keys, self._prompt, name), name=name)
        truth = self._with_prompt(without_gaps(truth))
        (score,) = wait_for(
            self._scorer.scores(
                settings,
                truth,
                [member],
                about=name,
                infra_budget_s=settings.infra_budget_s,
                grader=self._own_grader(),
            )
        )
        return score

    def _own_grader(self) -> SessionGrader | None:
        if self._session_grader is not None and self._sessions is None:
            self._sessions = self._session_grader(self._settings)
        return self._sessions

    def close(self) -> None:
        """Lets a reused session go; safe to call again."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.release()

    def _with_prompt(self, truth: Any) -> Any:
        """A row of HumanEval's columns with its prompt, which its completions continue; SkyRL keeps it apart."""
        if isinstance(truth, Mapping) and "test" in truth and "prompt" not in truth and isinstance(self._prompt, str):
            return {**truth, "prompt": self._prompt}
        return truth

    def _feedback(self, action: str, score: GroupScore) -> str:
        """What the model is told. Public tests are graded by themselves, so that they can be shown where they fail."""
        public = without_gaps(public_tests_of(self._extras))
        on_public = self._score(action, public) if public is not None else None
        if on_public is not None and on_public.failure is not None:
            raise_what_cannot_heal(self._name(), on_public.failure)
            log.warning("the public tests of %s were not run: %s", self._name(), on_public.failure.message)
        return feedback(text_of(action), score, public, on_public, self._settings.entry)

    def _account(self, score: GroupScore) -> dict[str, Any]:
        return {
            "collimate": {
                "infra_error": False,
                "error_code": None,
                "outcome": score.outcome,
                "detail": score.detail,
                "turn_reward": score.reward,
                "cases_passed": score.cases_passed,
                "cases_total": score.cases_total,
                "seed": score.seed,
                "integrity": score.integrity,
                "grader_version": score.grader_version,
            }
        }

    def _name(self) -> str:
        info = self._extras.get("extra_info")
        index = info.get("index") if isinstance(info, Mapping) else self._extras.get("index")
        return f"the row with index {index} of {self._extras.get('data_source')}"


def _failure_account(failure: CollimateError) -> dict[str, Any]:
    account = {"infra_error": True, "error_code": code_of(failure), "detail": failure.message}
    return {"collimate": account}


def _settings_in(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration; keys that are none of ours are SkyRL's, or a slip, and told in the log."""
    named = {_RENAMED.get(str(name), str(name)): value for name, value in layer.items()}
    strange = sorted(set(named) - _FIELDS - _OF_THE_ENV)
    if strange:
        log.warning("env_config has keys that are no settings: %s", ", ".join(strange))
    return {name: value for name, value in named.items() if name in _FIELDS}


def aggregate(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over episodes: the means of reward, passed and turns over those that have them; sums of what infra trouble cost.

    Episodes without a verdict count in neither mean of reward and passed.
    """
    result: dict[str, Any] = {"episodes": len(metrics)}
    for name in ("reward", "passed", "turns"):
        values = [float(one[name]) for one in metrics if one.get(name) is not None]
        if values:
            result[name] = sum(values) / len(values)
    for name in ("infra_errors", "infra_retries"):
        result[name] = sum(int(one.get(name) or 0) for one in metrics)
    return result
