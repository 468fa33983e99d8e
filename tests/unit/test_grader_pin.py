"""A run that is held to one grader refuses the answers of another."""

from __future__ import annotations

from typing import Any

import pytest

from collimate_rl.errors import GraderChanged, RunMisconfigured
from collimate_rl.protocol import BatchResult, ResultStatus, Verdict, infra_verdict
from producer.grader_pin import RENEW_S, GraderPin


class Pins:
    """What `BatchQueue.pin_grader` does, and how often it was asked."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], str] = {}
        self.asked = 0

    def pin_grader(self, run: str, epoch: int, version: str) -> str:
        self.asked += 1
        return self.held.setdefault((run, epoch), version)


def result(*versions: str) -> BatchResult:
    verdicts = tuple(
        Verdict(index=n, reward=1.0, outcome="passed", grader_version=version, node="n1")
        if version
        else infra_verdict(n, "expired")
        for n, version in enumerate(versions)
    )
    return BatchResult(
        run="r", id="b", epoch=0, status=ResultStatus.GRADED, results=verdicts, submitted_at=0.0, claimed_at=None,
        finished_at=0.0, attempts=1, worker="",
    )  # fmt: skip


def pin(asked: Any, pins: Pins | None = None, *, run: str = "r", epoch: int = 0, clock: Any = lambda: 0.0) -> GraderPin:
    return GraderPin(pins or Pins(), run, epoch, asked, clock=clock)  # type: ignore[arg-type]


def test_the_first_version_is_the_runs_and_another_is_refused() -> None:
    held = pin("pin")
    assert held.refusal(result("2+a", "2+a")) is None
    assert held.refusal(result("2+a", "")) is None
    error = held.refusal(result("2+a", "2+b"))
    assert isinstance(error, GraderChanged)
    assert isinstance(error, RunMisconfigured)
    assert error.is_misconfigured
    assert [word for word in ("2+b", "2+a", "n1") if word not in error.message] == []


def test_processes_and_lives_of_a_run_share_it_and_epochs_do_not() -> None:
    pins = Pins()
    assert pin("pin", pins).refusal(result("2+a")) is None
    assert pin("pin", pins).refusal(result("2+b")) is not None
    assert pin("pin", pins, epoch=1).refusal(result("2+b")) is None
    assert pin("pin", pins, run="q").refusal(result("2+b")) is None


def test_a_named_version_is_held_without_asking_anybody() -> None:
    pins = Pins()
    assert pin("2+a", pins).refusal(result("2+a")) is None
    assert pin("2+a", pins).refusal(result("2+ab")) is not None
    assert pin("2", pins).refusal(result("2+ab", "2")) is None
    assert pin("2", pins).refusal(result("21+ab")) is not None
    assert pins.asked == 0


def test_answers_that_no_grader_made_pin_nothing() -> None:
    pins = Pins()
    held = pin("pin", pins)
    assert held.refusal(result("", "")) is None
    assert pins.asked == 0
    assert held.refusal(result("3+a")) is None


def test_nothing_is_asked_for_by_default() -> None:
    pins = Pins()
    assert pin(None, pins).refusal(result("2+a", "3")) is None
    assert pins.asked == 0


def test_the_server_is_asked_now_and_then_and_may_have_forgotten() -> None:
    pins, now = Pins(), [0.0]
    held = pin("pin", pins, clock=lambda: now[0])
    for _ in range(5):
        held.refusal(result("2+a"))
    assert pins.asked == 1
    pins.held.clear()
    now[0] = RENEW_S
    assert held.refusal(result("2+b")) is not None
    assert pins.held == {("r", 0): "2+a"}


@pytest.mark.parametrize("asked", ["", "  ", 2, "x" * 201])
def test_versions_that_cannot_be(asked: Any) -> None:
    with pytest.raises(ValueError, match="grader_version"):
        pin(asked)
