"""Whose doing a lost sandbox is: twice, with a control and a bystander that live; in doubt it is nobody's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collimate_rl import UnitTestReward
from collimate_rl.errors import (
    AmbiguousError,
    CollimateDrainingError,
    CollimateError,
    MalformedAnswer,
    SandboxKilled,
    UnreachableError,
)
from collimate_rl.grading.execute import ExecRequest, Executor, OneShotExecutor
from collimate_rl.grading.grader import GroupRequest
from collimate_rl.grading.inline import InlineGrader
from collimate_rl.grading.losses import Loss, LossWitness, sandbox_lost, session_lost
from collimate_rl.queue.replies import Hold, NoteReply
from collimate_rl.rewards import grade, grade_batch
from tests.fixtures.losing_node import GENUINE, INNOCENT, LosingNode
from worker.batch_sessions import BatchSessions, Daemon
from worker.session_executor import SessionExecutor

SPEC = UnitTestReward([{"input": [1], "expected": 2}])
CANDIDATE = "def solve(x):\n    return x + 1\n"
RETRIES = 3
WAYS = ("one_shot", "sessions")


class Ledger:
    """A queue that takes every note, and hands back what it replaces."""

    def __init__(self) -> None:
        self._stands: bytes | None = None

    def note(self, _hold: Hold, _index: int, entry: bytes, *_where: str) -> NoteReply:
        before, self._stands = self._stands, entry
        return NoteReply(True, before)


class Case:
    """One candidate on a node, in forks of their own or in a batch's sessions, tried as often as a worker would."""

    def __init__(self, way: str, *script: str) -> None:
        self.node = LosingNode(*script)
        self.losses: list[Loss] = []
        self.stop = threading.Event()
        self.request = ExecRequest(code=CANDIDATE, exec_id="k-0-0" if way == "sessions" else None)
        inner: Executor = OneShotExecutor(self.node, "py")
        if way == "sessions":
            daemon = Daemon(client=self.node, tidy=self.node, node="n1", endpoint="unix:/s.sock")
            sessions = BatchSessions(daemon, Ledger(), Hold(k="0" * 32, owner="o", fence=1), {}, template="py")  # type: ignore[arg-type]
            inner = SessionExecutor(sessions, inner, stop=self.stop, uniform=lambda low, _high: low)
        self.witness = LossWitness(inner, self.node, "py", stop=self.stop, on_loss=self.losses.append)

    def run(self) -> str:
        """`fine`, `killed` or `infra`."""
        for _ in range(1 + RETRIES):
            try:
                self.witness.run(self.request, role="runner", index=0)
            except SandboxKilled:
                return "killed"
            except CollimateError:
                continue
            return "fine"
        return "infra"


@pytest.fixture(params=WAYS)
def case(request: pytest.FixtureRequest) -> Callable[..., Case]:
    return lambda *script: Case(request.param, *script)


def test_two_fresh_forks_and_two_controls_convict(case: Callable[..., Case]) -> None:
    found = case("told", "told", "told")
    assert found.run() == "killed"
    assert (found.node.forks, found.node.controls, found.node.watched) == (2, 2, 1)
    assert [(loss.index, loss.control, loss.counted) for loss in found.losses] == [(0, True, 1), (0, True, 2)]
    assert "unused" not in found.node.sessions.values()


def test_one_loss_is_forgiven_and_forgotten(case: Callable[..., Case]) -> None:
    found = case("told", "fine", "told", "fine")
    assert found.run() == "fine"
    assert (found.node.forks, found.node.controls) == (2, 1)
    if found.request.exec_id is None:
        assert found.run() == "fine"
        assert [loss.counted for loss in found.losses] == [1, 1]


def test_a_loss_that_was_not_told_counts_only_before_a_bystander(case: Callable[..., Case]) -> None:
    found = case("unknown", "unknown", "unknown")
    assert found.run() == "killed"
    assert (found.node.forks, found.node.controls, found.node.watched) == (3, 3, 2)
    assert [loss.counted for loss in found.losses] == [0, 1, 2]


def test_a_broken_connection_counts_like_it_when_it_breaks_each_time(case: Callable[..., Case]) -> None:
    assert case("cut", "cut", "cut").run() == "killed"


@pytest.mark.parametrize("script", [("restart", "restart"), ("wipe", "wipe"), ("restart", "wipe", "restart")])
def test_what_ends_all_sandboxes_is_not_the_candidates_doing(
    case: Callable[..., Case], script: tuple[str, ...]
) -> None:
    found = case(*script)
    assert found.run() == "fine"
    assert found.node.happened[-1] == "fine"


def test_without_a_control_that_works_it_is_infra(case: Callable[..., Case]) -> None:
    found = case(*["told"] * 9)
    found.node.working = False
    if found.request.exec_id is None:
        assert found.run() == "infra"
        assert {loss.control for loss in found.losses} == {False}
        assert {loss.counted for loss in found.losses} == {0}
    else:
        assert found.run() == "infra"
        assert found.losses == []


def test_a_control_that_drains_says_so(case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    found = case("told")

    def drains(*_: Any, **__: Any) -> None:
        raise CollimateDrainingError("going away")

    real = found.node.exec_once
    monkeypatch.setattr(
        found.node,
        "exec_once",
        lambda template, **asked: drains() if "print" in asked["code"] else real(template, **asked),
    )
    with pytest.raises(CollimateDrainingError):
        found.witness.run(found.request, role="runner", index=0)


def test_once_stopped_nothing_is_concluded(case: Callable[..., Case]) -> None:
    found = case("told", "told", "told")
    found.witness._on_loss = lambda loss: found.stop.set() if loss.counted == 2 else None
    with pytest.raises(CollimateError) as caught:
        found.witness.run(found.request, role="runner", index=0)
    assert not isinstance(caught.value, SandboxKilled)


def test_candidates_are_told_apart_and_judges_let_be() -> None:
    found = Case("one_shot", "told", "fine", "told", "fine", "told")
    for index in (0, 1):
        found.witness.run(found.request, role="runner", index=index)
    assert [(loss.index, loss.counted) for loss in found.losses] == [(0, 1), (1, 1)]
    with pytest.raises(CollimateError):
        found.witness.run(found.request, role="judge", index=None)
    assert len(found.losses) == 2


@given(way=st.sampled_from(WAYS), script=st.lists(st.sampled_from([*GENUINE, *INNOCENT, "fine"]), max_size=8))
@settings(max_examples=300, deadline=None)
def test_nobody_is_convicted_but_for_a_loss_of_his_own(way: str, script: list[str]) -> None:
    found = Case(way, *script)
    end = found.run()
    happened = found.node.happened
    if end == "killed":
        assert happened[-1] in GENUINE
        assert len([fate for fate in happened if fate != "fine"]) >= 2
    if not set(happened) & set(GENUINE):
        assert end != "killed"
    assert found.node.forks <= 3 * (1 + RETRIES)
    assert [session for session, use in found.node.sessions.items() if use == "unused"] == []


@given(way=st.sampled_from(WAYS), script=st.lists(st.sampled_from(GENUINE), min_size=12, max_size=12))
@settings(max_examples=100, deadline=None)
def test_who_does_it_each_time_never_escapes(way: str, script: list[str]) -> None:
    found = Case(way, *script)
    assert found.run() == "killed"
    assert found.node.forks <= 3


def test_a_session_in_which_something_else_ran_is_replaced_and_no_witness() -> None:
    found = Case("sessions")
    assert found.run() == "fine"
    [session] = found.node.sessions
    del found.node.sessions[session]
    found.node.lost[session] = (410, "session_gone")
    found.request = replace(found.request, exec_id="k-0-1")
    assert found.run() == "fine"
    assert (found.losses, found.node.forks, found.node.controls) == ([], 2, 0)


def _timed_out() -> AmbiguousError:
    error = AmbiguousError("not answered")
    error.__cause__ = TimeoutError()
    return error


@pytest.mark.parametrize(
    ("error", "alone", "in_session"),
    [
        (CollimateError("gone", 410, "session_gone"), True, True),
        (CollimateError("gone", 404, "no_such_session"), True, True),
        (CollimateError("vsock", 500, "exec_failed"), True, False),
        (CollimateError("odd", 500), True, False),
        (AmbiguousError("reset"), True, False),
        (_timed_out(), False, False),
        (MalformedAnswer("no JSON"), False, False),
        (UnreachableError("refused"), False, False),
        (CollimateDrainingError("going"), False, False),
        (CollimateError("full", 503, "at_capacity"), False, False),
        (CollimateError("no fork", 500, "session_bringup_failed"), False, False),
        (CollimateError("a fault of the daemon", 500, "internal_error"), False, False),
        (CollimateError("bad gateway", 502), False, False),
        (CollimateError("what template", 404, "no_template"), False, False),
        (CollimateError("off", 400, "bad_request"), False, False),
    ],
)
def test_what_says_that_a_sandbox_was_lost(error: CollimateError, alone: bool, in_session: bool) -> None:
    assert (sandbox_lost(error), session_lost(error)) == (alone, in_session)


def test_grade_and_grade_batch_make_an_outcome_of_it() -> None:
    node = LosingNode("told", "told")
    result = grade(node, "py", CANDIDATE, SPEC, seed="ab" * 32)
    assert (result.reward, result.outcome, result.infra_error, result.seed) == (0.0, "sandbox_killed", False, "ab" * 32)
    assert result.detail is not None
    assert "fresh forks" in result.detail
    [result] = grade_batch(LosingNode("told", "told"), "py", [CANDIDATE], SPEC, on_infra_error="zero")
    assert (result.outcome, result.infra_error) == ("sandbox_killed", False)


def test_the_inline_grader_does_too_and_tries_no_second_round() -> None:
    node = LosingNode("told", "told")
    grader = InlineGrader(node, pause=lambda _attempt: 0.0)
    request = GroupRequest(template="py", spec=SPEC, candidates=(CANDIDATE,), seeds=(None,), deadline_s=60.0)
    [score] = asyncio.run(grader.grade_group(request))
    grader.close()
    assert (score.reward, score.outcome, score.failure) == (0.0, "sandbox_killed", None)
    assert node.forks == 2


def test_a_callers_own_session_is_no_witness() -> None:
    node = LosingNode("told", "told")
    session = node.create_session("py")["session_id"]
    with pytest.raises(CollimateError) as caught:
        grade(node, "py", CANDIDATE, SPEC, session_id=session)
    assert (caught.value.error_code, node.forks) == ("session_gone", 1)
