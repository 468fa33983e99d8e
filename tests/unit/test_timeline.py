"""The timeline of a batch: what stands in which order, by whose clock, and that no duration crosses two clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collimate_rl.protocol import BatchResult, ResultStatus, Verdict, infra_verdict
from collimate_rl.protocol.story import Turn, parse_story, write_story
from collimate_rl.protocol.timeline import Timeline, make_timeline, timeline_of

STORY = (
    Turn(at=101.0, what="claimed", attempt=1, node="n1", worker="w1"),
    Turn(at=104.0, what="buried", attempt=1, node="n1", worker="w1"),
    Turn(at=105.0, what="claimed", attempt=2, node="n2", worker="w2"),
)


def verdict(index: int, attempt: int = 2, **fields: Any) -> Verdict:
    given = {"started_ms": 200.0, "fork_time_ms": 5.0, "exec_time_ms": 300.0, "judged_ms": 600.0, **fields}
    return Verdict(index=index, reward=1.0, outcome="passed", node="n2", attempt=attempt, **given)


def result(*verdicts: Verdict, **fields: Any) -> BatchResult:
    given: dict[str, Any] = {
        "run": "r",
        "id": "b",
        "epoch": 0,
        "status": ResultStatus.GRADED,
        "results": verdicts or (verdict(0),),
        "submitted_at": 99.5,
        "queued_at": 100.0,
        "claimed_at": 101.0,
        "finished_at": 107.0,
        "attempts": 2,
        "worker": "w2",
        "story": STORY,
        "received_at": 108.0,
    }
    return BatchResult(**{**given, **fields})


def shown(timeline: Timeline) -> list[tuple[str, float | None]]:
    return [(moment.what, moment.took_ms) for moment in timeline.moments]


def test_a_batch_that_was_recovered_tells_both_attempts() -> None:
    timeline = timeline_of(result())
    assert shown(timeline) == [
        ("submitted", None),
        ("queued", None),
        ("claimed", 1000.0),
        ("buried", 3000.0),
        ("claimed", 1000.0),
        ("published", 2000.0),
        ("received", 8500.0),
    ]
    assert [moment.clock for moment in timeline.moments] == ["producer", *["server"] * 5, "producer"]
    assert [moment.attempt for moment in timeline.moments] == [None, None, 1, 1, 2, None, None]
    assert (timeline.queue_ms, timeline.work_ms, timeline.total_ms) == (1000.0, 2000.0, 7000.0)
    assert timeline.round_trip_ms == 8500.0


def test_a_candidate_stands_on_the_clock_of_its_own_attempts_claim() -> None:
    first, second = timeline_of(result(verdict(0, attempt=1), verdict(1))).candidates
    told: list[Any] = [(m.what, m.at, m.took_ms) for m in first.moments]
    assert told == [
        ("started", pytest.approx(101.2), 200.0),
        ("forked", pytest.approx(101.205), 5.0),
        ("executed", pytest.approx(101.505), 300.0),
        ("judged", pytest.approx(101.6), 95.0),
    ]
    assert second.moments[0].at == pytest.approx(105.2)
    assert {moment.clock for moment in first.moments} == {"worker"}


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_a_producers_clock_that_is_off_makes_no_duration_wrong(off: float) -> None:
    skewed = result(submitted_at=99.5 + off + 3600, received_at=108.0 + off + 3600)
    timeline = timeline_of(skewed)
    assert shown(timeline) == shown(timeline_of(result()))
    assert (timeline.queue_ms, timeline.round_trip_ms) == (1000.0, 8500.0)


def test_clocks_that_were_set_back_make_no_time_negative() -> None:
    timeline = timeline_of(result(finished_at=50.0, received_at=10.0))
    told = [moment.took_ms for moment in timeline.moments if moment.took_ms is not None]
    assert min(told) == 0.0
    assert (timeline.work_ms, timeline.total_ms, timeline.round_trip_ms) == (0.0, 0.0, 0.0)
    [candidate] = timeline_of(result(verdict(0, started_ms=-5.0, judged_ms=2.0))).candidates
    instants = [moment.at for moment in candidate.moments]
    assert instants == sorted(instants, key=lambda at: at or 0.0)
    assert all((moment.took_ms or 0.0) >= 0.0 for moment in candidate.moments)


def test_what_is_not_known_is_left_out() -> None:
    plain = replace(result(), story=(), queued_at=None, received_at=None, submitted_at=0.0)
    timeline = timeline_of(plain)
    assert shown(timeline) == [("claimed", None), ("published", 6000.0)]
    assert (timeline.queue_ms, timeline.round_trip_ms) == (None, None)
    never = timeline_of(result(infra_verdict(0, "expired"), story=(), claimed_at=None))
    assert [moment.what for moment in never.moments] == ["submitted", "queued", "published", "received"]
    assert (never.candidates[0].ended, never.candidates[0].moments) == ("expired", ())
    [old] = timeline_of(result(verdict(0, started_ms=None, judged_ms=None))).candidates
    assert old.moments == ()
    [lost] = timeline_of(result(verdict(0, attempt=7))).candidates
    assert lost.moments == (), "its attempt's claim is not among the turns that were kept"


def test_of_a_receipt_that_is_only_known_to_have_been_the_trainer_alone_knows_when() -> None:
    def seen(received: bool | None) -> list[tuple[float | None, float | None, bool]]:
        made = make_timeline(
            submitted_at=100.0, queued_at=100.0, claimed_at=101.0, finished_at=107.0, received_at=None,
            received=received, status="graded", story=(), verdicts={},
        )  # fmt: skip
        assert made.round_trip_ms is None
        return [
            (moment.at, moment.took_ms, "known by the trainer only" in moment.detail)
            for moment in made.moments
            if moment.what == "received"
        ]

    assert seen(True) == [(None, None, True)]
    assert seen(False) == seen(None) == []


def test_a_story_comes_back_and_noise_in_it_is_left_out() -> None:
    assert parse_story(write_story(STORY)) == STORY
    assert parse_story("") == ()
    assert parse_story("x\n1 2 3\n101000 claimed x n w\n101000 claimed 1 n1 w1\n") == STORY[:1]
