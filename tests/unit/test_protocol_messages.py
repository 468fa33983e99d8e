"""Messages: what may be built, what may not, and what the field says that is off."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from collimate_rl.protocol import CaseReport, GradeBatch, Verdict, clip_tail, clip_text, infra_verdict
from tests.fixtures.queue_batches import make_batch, passed


def test_a_batch_is_frozen_and_takes_lists() -> None:
    batch = GradeBatch(
        run="r",
        id="i",
        producer="p",
        template="py",
        candidates=["a"],
        spec='{"type": "x"}',
        seeds=[None],  # type: ignore[arg-type]
    )
    assert batch.candidates == ("a",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.run = "s"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"run": ""}, "run ''"),
        ({"run": "a b"}, "run 'a b'"),
        ({"run": "x" * 129}, "is no name"),
        ({"id": "ü"}, "id 'ü'"),
        ({"id": 5}, "is no name"),
        ({"producer": "a/b"}, "producer"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"template": ""}, "template is empty"),
        ({"template": 7}, "template"),
        ({"candidates": ()}, "1 to 1,024 candidates, not 0"),
        ({"candidates": ("",) * 1025, "seeds": (None,) * 1025}, "not 1,025"),
        ({"candidates": ("",) * 10_000, "seeds": (None,) * 10_000}, "not 10,000"),
        ({"candidates": ("a", 5)}, "candidate 1 is a int"),
        ({"candidates": ("a", b"b")}, "candidate 1 is a bytes"),
        ({"candidates": ("a", "b" * (1 << 20) + "b")}, "candidate 1 has 1,048,577 bytes"),
        ({"candidates": ("é" * (1 << 19) + "é", "")}, "candidate 0 has 1,048,578 bytes"),
        ({"candidates": ("x" * (1 << 20),) * 9, "seeds": (None,) * 9}, "more than 8,388,608 bytes"),
        ({"spec": "no"}, "spec is not JSON"),
        ({"spec": "[]"}, '"type" is needed'),
        ({"spec": '{"type": 3}'}, '"type" is needed'),
        ({"spec": {"type": "x"}}, "spec is not a text"),
        ({"spec": "[" * 100_000}, "spec is not JSON"),
        ({"spec": json.dumps({"type": "x", "tests": "y" * (4 << 20)})}, "the spec has more than 4,194,304 bytes"),
        ({"seeds": (None,)}, "1 seeds for 2 candidates"),
        ({"seeds": (None, "ab")}, "seed 1 'ab'"),
        ({"seeds": (None, 5)}, "seed 1 5"),
        ({"seed_mode": "random"}, "seed_mode 'random'"),
        ({"base_seed": "xyz"}, "base_seed 'xyz'"),
        ({"timeout_seconds": 0}, "timeout_seconds 0"),
        ({"timeout_seconds": 1.5}, "timeout_seconds 1.5"),
        ({"case_timeout_s": 0}, "case_timeout_s 0"),
        ({"case_timeout_s": float("nan")}, "case_timeout_s nan"),
        ({"deadline_s": 0}, "deadline_s 0"),
        ({"deadline_s": float("inf")}, "deadline_s inf"),
        ({"deadline_s": 10**9}, "deadline_s 1000000000"),
        ({"submitted_at": float("nan")}, "submitted_at nan"),
        ({"egress": "none"}, "egress is not an object"),
        ({"egress": {"mode": {1, 2}}}, "egress is not plain data"),
        ({"recovery": "never"}, "recovery 'never'"),
        ({"tags": ["a"]}, "tags"),
        ({"tags": {"a": 1}}, "tag 'a'"),
        ({"tags": {str(i): "" for i in range(65)}}, "at most 64"),
    ],
)
def test_a_batch_that_breaks_a_bound_is_refused_by_name(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        make_batch(**fields)
    assert told in str(caught.value)


def test_bounds_are_inclusive() -> None:
    make_batch(k=1024)
    make_batch(candidates=("b" * (1 << 20), ""))
    make_batch(run="x" * 128, id="._-")


def test_a_candidate_may_be_empty_and_hold_a_lone_surrogate() -> None:
    assert make_batch(candidates=("", "x = '\ud800'")).candidates[1].endswith("\ud800'")


@pytest.mark.parametrize("reward", [None, -0.1, 1.1, float("nan"), float("inf"), True, "1"])
def test_a_verdicts_reward_is_a_number_from_zero_to_one(reward: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a number from 0\.0 to 1\.0"):
        Verdict(index=0, reward=reward, outcome="passed")


def test_reward_is_none_exactly_with_an_infra_error() -> None:
    assert infra_verdict(0, "at_capacity").reward is None
    for fields in ({"reward": 0.0}, {"reward": None, "outcome": "passed"}):
        with pytest.raises(ValueError, match="neither reward nor outcome"):
            Verdict(index=0, infra_error=True, error_code="x", **fields)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="error_code"):
        Verdict(index=0, reward=None, infra_error=True)
    with pytest.raises(ValueError, match="error_code goes with infra_error only"):
        Verdict(index=0, reward=1.0, outcome="passed", error_code="x")


@pytest.mark.parametrize(
    "fields",
    [
        {"index": -1},
        {"index": 1024},
        {"outcome": "ok"},
        {"outcome": None},
        {"cases": tuple(CaseReport(outcome="passed", ms=1.0) for _ in range(257))},
        {"cases_total": 1, "cases_passed": 2},
        {"integrity": "none"},
        {"detail": "x" * 4097},
        {"output_tail": b"x" * 4097},
        {"output_tail": "text"},
        {"truncated": 1},
        {"exec_time_ms": float("nan")},
        {"recovered": "maybe"},
        {"flags": ("x",) * 65},
        {"flags": (1,)},
        {"seed": None},
        {"attempt": -1},
    ],
)
def test_a_verdict_out_of_bounds_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        passed(**{"index": 0, **fields})


def test_misconfigured_codes_are_known() -> None:
    assert infra_verdict(0, "no_template").is_misconfigured
    assert not infra_verdict(0, "at_capacity").is_misconfigured
    assert not passed(0).is_misconfigured


def test_clipping_keeps_bounds_and_characters() -> None:
    assert clip_text("short") == "short"
    clipped = clip_text("é" * 5000)
    assert len(clipped.encode()) <= 4096
    assert clipped.endswith("é…")
    assert len(infra_verdict(0, "internal", "x" * 9000).detail or "") <= 4096
    assert clip_tail(b"abc", 2) == (b"bc", True)
    assert clip_tail(b"abc", 3) == (b"abc", False)
