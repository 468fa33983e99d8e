"""A result as rewards: what infra-flagged candidates become, and what always raises."""

from __future__ import annotations

from typing import Any

import pytest

from collimate_rl.errors import RunMisconfigured, Ungraded
from collimate_rl.protocol import BatchResult, ResultStatus, Verdict, infra_verdict
from tests.fixtures.queue_batches import passed


def result(*verdicts: Verdict) -> BatchResult:
    return BatchResult(
        run="r",
        id="i",
        epoch=0,
        status="partial",  # type: ignore[arg-type]
        results=verdicts,
        submitted_at=1.0,
        claimed_at=None,
        finished_at=2.0,
        attempts=1,
        worker="w",
    )


def test_rewards_in_order() -> None:
    assert result(passed(0, 1.0), passed(1, 0.25)).rewards() == [1.0, 0.25]


def test_infra_errors_by_policy() -> None:
    mixed = result(passed(0), infra_verdict(1, "at_capacity"), passed(2, 0.0))
    assert mixed.rewards("none") == [1.0, None, 0.0]
    assert mixed.rewards("drop") == [1.0, 0.0]
    with pytest.raises(Ungraded, match="1 of 3 candidates") as caught:
        mixed.rewards()
    assert caught.value.error_code == "at_capacity"
    assert caught.value.is_infra


@pytest.mark.parametrize("policy", ["raise", "drop", "none"])
def test_min_valid_and_misconfiguration_raise_under_every_policy(policy: Any) -> None:
    mixed = result(passed(0), infra_verdict(1, "at_capacity"))
    with pytest.raises(Ungraded):
        mixed.rewards(policy, min_valid=2)
    wrong = result(passed(0), infra_verdict(1, "no_template", "no such template: foo"))
    with pytest.raises(RunMisconfigured, match="no such template: foo") as caught:
        wrong.rewards(policy)
    assert caught.value.error_code == "no_template"


def test_min_valid_counts_real_rewards() -> None:
    assert result(passed(0), infra_verdict(1, "draining")).rewards("drop", min_valid=1) == [1.0]
    with pytest.raises(Ungraded, match="fewer than min_valid=3"):
        result(passed(0), passed(1)).rewards(min_valid=3)


def test_an_unknown_policy_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="on_infra 'zero'"):
        result(passed(0)).rewards("zero")  # type: ignore[arg-type]


def test_results_are_one_per_candidate_in_order() -> None:
    for verdicts in ((), (passed(1),), (passed(0), passed(0)), (passed(1), passed(0))):
        with pytest.raises(ValueError, match="one verdict per candidate, in order"):
            result(*verdicts)


def test_the_status_is_typed() -> None:
    assert result(passed(0)).status is ResultStatus.PARTIAL
    with pytest.raises(ValueError, match="whatever"):
        BatchResult(**{**vars(result(passed(0))), "status": "whatever"})
