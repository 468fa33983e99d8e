"""CollimateCodeEnv under the real skyrl_gym, over a fake Grader."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import collimate_rl.skyrl
import producer.skyrl
from collimate_rl.errors import CollimateError, DemoTierLimit, RunMisconfigured
from collimate_rl.grading.grader import GroupRequest, GroupScore
from collimate_rl.hooks.scoring import GroupScorer
from collimate_rl.hooks.settings import HookSettings
from collimate_rl.seeds import seed_from_key
from collimate_rl.skyrl.collimate_code_env import CollimateCodeEnv
from collimate_rl.testing import FakeGrader
from tests.fixtures.adapters import CASES, RIGHT, WRONG
from tests.fixtures.fences import ROOT

skyrl_gym = pytest.importorskip("skyrl_gym", reason="needs the extra [skyrl]")

ROW = {"reward_spec": {"method": "rule", "ground_truth": CASES}, "data_source": "ours/squares"}
CHAT = [{"role": "user", "content": "Square x."}]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in HookSettings.__dataclass_fields__:
        monkeypatch.delenv(f"COLLIMATE_{name.upper()}", raising=False)
    known = dict(skyrl_gym.registry)
    yield
    skyrl_gym.registry.clear()
    skyrl_gym.registry.update(known)


class CasesGrader:
    """Judges by the text; a wrong answer passes the first case of as many as the spec has."""

    def __init__(self) -> None:
        self.requests: list[GroupRequest] = []

    async def grade_group(self, request: GroupRequest) -> list[GroupScore]:
        self.requests.append(request)
        total = len(request.spec.tests)  # type: ignore[attr-defined]
        return [self._score("x * x" in candidate, total) for candidate in request.candidates]

    def _score(self, right: bool, total: int) -> GroupScore:
        if right:
            cases = ("passed",) * total
            return GroupScore(reward=1.0, outcome="passed", cases=cases, cases_total=total, cases_passed=total)
        cases = ("passed", *["wrong_answer"] * (total - 1))
        return GroupScore(
            reward=1 / total,
            outcome="wrong_answer",
            detail="case 2 of 2: wrong_answer: returned 123457",
            cases=cases,
            cases_total=total,
            cases_passed=1,
        )


def graded_by(grader: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(CollimateCodeEnv, "scorer", GroupScorer(lambda _settings: grader))
    return grader


def make(row: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> Any:
    collimate_rl.skyrl.register()
    return skyrl_gym.make("collimate_code", env_config=config or {}, extras={**ROW, **(row or {})})


def test_one_turn_as_the_generator_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graded_by(CasesGrader(), monkeypatch)
    env = make()
    prompt, info = env.init(CHAT)
    assert (prompt, info) == (CHAT, {})
    answer = env.step(RIGHT)
    assert (answer["observations"], answer["reward"], answer["done"]) == ([], 1.0, True)
    assert answer["metadata"]["collimate"]["outcome"] == "passed"
    env.close()
    env.close()
    metrics = env.get_metrics()
    assert metrics == {"reward": 1.0, "passed": 1.0, "turns": 1, "infra_errors": 0, "infra_retries": 0}


def test_register_is_safe_to_call_twice_and_the_last_call_counts() -> None:
    collimate_rl.skyrl.register("collimate_code")
    collimate_rl.skyrl.register("collimate_code")
    assert type(make()) is CollimateCodeEnv
    producer.skyrl.register("collimate_code", queue="other")
    env = skyrl_gym.make("collimate_code", env_config={}, extras=ROW)
    assert type(env) is producer.skyrl.CollimateCodeEnv
    assert env._episode._settings.queue == "other"


def test_another_packages_environment_is_left_alone() -> None:
    with pytest.raises(skyrl_gym.error.RegistrationError):
        collimate_rl.skyrl.register("gsm8k")


def test_without_skyrl_gym_the_message_names_the_extra() -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport collimate_rl.skyrl\n"
        "for use in (collimate_rl.skyrl.register, lambda: collimate_rl.skyrl.CollimateCodeEnv):\n"
        "    try: use()\n    except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.count("collimate-rl[skyrl]") == 2


def test_constructing_touches_no_network_and_reads_no_ground_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_settings: object) -> Any:
        raise AssertionError("a constructor looked for its grader")

    monkeypatch.setattr(CollimateCodeEnv, "scorer", GroupScorer(never))
    malformed = {"reward_spec": {"ground_truth": "{no json"}}
    envs = [make(malformed, {"base_url": "http://192.0.2.1:1"}) for _ in range(50)]
    envs[0].init(CHAT)
    with pytest.raises(ValueError, match=r"the ground truth of the row .* no JSON"):
        envs[0].step(RIGHT)


@pytest.mark.parametrize("row", [{"reward_spec": {}}, {"reward_spec": None}, {"reward_spec": {"ground_truth": ""}}])
def test_a_missing_ground_truth_is_a_value_error_of_the_constructor(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no ground truth"):
        make(row)
    with pytest.raises(ValueError, match="no ground truth"):
        CollimateCodeEnv()


def test_a_turn_that_fails_shows_its_failing_cases_and_hidden_tests_stay_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graded_by(CasesGrader(), monkeypatch)
    secret = [{"input": [11], "expected": 121}, {"input": [123457], "expected": 987654321}]
    env = make({"reward_spec": {"ground_truth": secret}, "max_turns": 3})
    env.init(CHAT)
    answer = env.step(WRONG)
    assert (answer["done"], answer["reward"]) == (False, 0.0)
    assert answer["metadata"]["collimate"]["turn_reward"] == 0.5
    (message,) = answer["observations"]
    assert message["role"] == "user"
    assert "passed 1 of 2 tests" in message["content"]
    assert "test 2: wrong_answer" in message["content"]
    assert "987654321" not in message["content"]
    assert "123457" not in message["content"]
    answer = env.step(RIGHT)
    assert (answer["observations"], answer["reward"], answer["done"]) == ([], 1.0, True)
    assert env.get_metrics()["turns"] == 2


def test_the_last_turn_ends_the_episode_with_what_it_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    graded_by(CasesGrader(), monkeypatch)
    env = make({"max_turns": 2})
    env.init(CHAT)
    answers = [env.step(WRONG), env.step(WRONG)]
    assert [(answer["reward"], answer["done"]) for answer in answers] == [(0.0, False), (0.5, True)]
    assert env.max_turns == 2


def test_public_tests_that_fail_are_shown_with_what_they_want(monkeypatch: pytest.MonkeyPatch) -> None:
    graded_by(CasesGrader(), monkeypatch)
    public = [{"input": [0], "expected": 0}, {"input": [6], "expected": 36}]
    env = make({"max_turns": 2, "extra_info": {"public_tests": public}})
    env.init(CHAT)
    content = env.step(WRONG)["observations"][0]["content"]
    assert "solve(6) should return 36: wrong_answer" in content
    assert "solve(0)" not in content


def test_a_syntax_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graded_by(CasesGrader(), monkeypatch)
    env = make({"max_turns": 2})
    env.init(CHAT)
    content = env.step("```python\ndef solve(x)\n    return x\n```")["observations"][0]["content"]
    assert "SyntaxError: expected ':': def solve(x)" in content


def test_a_bare_body_is_no_syntax_error(monkeypatch: pytest.MonkeyPatch) -> None:
    graded_by(FakeGrader(lambda _candidate: 0.0), monkeypatch)
    truth = {"prompt": "def f(x):\n", "test": "def check(f):\n    assert f(1) == 2\n", "entry_point": "f"}
    env = make({"reward_spec": {"ground_truth": truth}, "max_turns": 2})
    env.init(CHAT)
    content = env.step("    return x\n")["observations"][0]["content"]
    assert content == "Your answer failed: wrong_answer.\nCorrect it, and answer with the whole program."


@pytest.mark.parametrize(
    ("code", "kind"), [("no_template", RunMisconfigured), ("unauthorized", RunMisconfigured), ("demo", DemoTierLimit)]
)
def test_fatal_codes_are_raised_and_no_further_step_is_scored(
    code: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = DemoTierLimit("3 at most") if code == "demo" else CollimateError("no", 403, code)
    graded_by(FakeGrader(lambda _candidate: failure), monkeypatch)
    env = make(config={"on_infra_error": "neutral"})
    env.init(CHAT)
    with pytest.raises(kind):
        env.step(RIGHT)
    assert "reward" not in env.get_metrics()


def test_neutral_ends_the_episode_flagged_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    graded_by(FakeGrader(lambda _candidate: CollimateError("no room", 503, "at_capacity")), monkeypatch)
    env = make({"max_turns": 3}, {"on_infra_error": "neutral", "neutral_reward": 0.25, "infra_budget_s": 0})
    env.init(CHAT)
    answer = env.step(RIGHT)
    assert (answer["reward"], answer["done"]) == (0.25, True)
    assert answer["metadata"]["collimate"]["error_code"] == "at_capacity"
    assert env.get_metrics() == {"turns": 1, "infra_errors": 1, "infra_retries": 0}


def test_configuration_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLIMATE_TEMPLATE", "from-env")
    monkeypatch.setenv("COLLIMATE_ENTRY", "area")
    grader = graded_by(CasesGrader(), monkeypatch)
    collimate_rl.skyrl.register("collimate_code", template_id="registered", timeout_seconds=7)
    row = {**ROW, "collimate": {"timeout_seconds": 8, "seed_mode": "crn"}, "extra_info": {"index": 4}}
    env = skyrl_gym.make("collimate_code", env_config={"timeout_seconds": 9, "seed_mode": None}, extras=row)
    env.init(CHAT)
    env.step(RIGHT)
    request = grader.requests[0]
    assert (request.template, request.timeout_seconds) == ("registered", 9)
    assert request.seeds == (seed_from_key("4"),)
    assert request.spec.entry == "area"


def test_steps_from_32_threads_and_from_a_running_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    grader = graded_by(CasesGrader(), monkeypatch)

    def episode(index: int) -> float:
        env = make()
        env.init(CHAT)
        return float(env.step(RIGHT if index % 2 else WRONG)["reward"])

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(episode, range(64))) == [0.5, 1.0] * 32
    assert len(grader.requests) == 64

    async def on_the_loop() -> float:
        return episode(1)

    assert asyncio.run(on_the_loop()) == 1.0


def test_metrics_over_episodes_leave_the_ungraded_out() -> None:
    graded = {"reward": 0.5, "passed": 0.0, "turns": 3, "infra_errors": 0, "infra_retries": 2}
    passed = {"reward": 1.0, "passed": 1.0, "turns": 1, "infra_errors": 0, "infra_retries": 0}
    lost = {"turns": 1, "infra_errors": 1, "infra_retries": 5}
    assert CollimateCodeEnv.aggregate_metrics([graded, passed, lost]) == {
        "episodes": 3,
        "reward": 0.75,
        "passed": 0.5,
        "turns": 5 / 3,
        "infra_errors": 1,
        "infra_retries": 7,
    }
    assert CollimateCodeEnv.aggregate_metrics([])["episodes"] == 0
    collimate_rl.skyrl.register()
    from skyrl_gym.metrics import aggregate_for_environment

    assert aggregate_for_environment("collimate_code", [graded])["reward"] == 0.5
