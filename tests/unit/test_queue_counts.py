"""What answers are counted under, and what is read back from the counts; no server."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collimate_rl.protocol import BatchResult, ResultStatus, Verdict, infra_verdict
from collimate_rl.queue.batch_list import _line
from collimate_rl.queue.counts import MAX_STEP, Counts, Spread, added, edges, name_of, percentile, step_of
from collimate_rl.queue.numbers import HOUR, _points
from collimate_rl.queue.tally import (
    MAX_NAMES,
    Answered,
    _answered,
    _apart,
    _flat,
    counts_of,
    grouped,
    summary,
    told_of,
)


def answered(*verdicts: Verdict, run: str = "r", at_ms: int = 1_700_000_000_000, known: bool = True) -> Answered:
    flagged = sum(verdict.infra_error for verdict in verdicts)
    result = BatchResult(
        run=run,
        id="b",
        epoch=0,
        status=ResultStatus.PARTIAL if flagged else ResultStatus.GRADED,
        results=verdicts,
        submitted_at=0.0,
        claimed_at=1.0,
        finished_at=2.0,
        attempts=1,
        worker="w",
    )
    return Answered(
        entry=f"{at_ms}-0",
        at_ms=at_ms,
        k="a" * 32,
        run=run,
        id="b",
        status=result.status.value,
        n=len(verdicts),
        flagged=flagged,
        wait_ms=40,
        took_ms=400,
        verdicts=told_of(result) if known else None,
    )


def verdict(index: int, reward: float, **fields: object) -> Verdict:
    outcome = "passed" if reward == 1.0 else "wrong_answer"
    return Verdict(index=index, reward=reward, outcome=outcome, node="n1", **fields)  # type: ignore[arg-type]


MIXED = (
    verdict(0, 1.0, recovered="read", flags=("nan",)),
    verdict(1, 0.0, flags=("nan", "bad_frame")),
    verdict(2, 0.25),
    infra_verdict(3, "draining", node="n2"),
)


def test_one_answer() -> None:
    counts = Counts.of(counts_of(answered(*MIXED)))
    assert (counts.batches, counts.candidates, counts.graded, counts.infra, counts.zeros) == (1, 4, 3, 1, 1)
    assert (counts.infra_share, counts.unread) == (0.25, 0)
    assert counts.mean_reward == pytest.approx(1.25 / 3)
    assert (counts.statuses, counts.codes) == ({"partial": 1}, {"draining": 1})
    assert counts.outcomes == {"passed": 1, "wrong_answer": 2}
    assert (counts.recovered, counts.flags) == ({"read": 1}, {"nan": 2, "bad_frame": 1})
    nodes = {name: (node.candidates, node.infra, node.codes) for name, node in counts.nodes.items()}
    assert nodes == {"n1": (3, 0, {}), "n2": (1, 1, {"draining": 1})}
    assert (counts.wait.count, counts.took.count) == (1, 1)
    assert counts.wait.p50_ms is not None
    assert counts.wait.p50_ms <= 43
    assert json.loads(json.dumps(counts.as_json_data()))["nodes"]["n2"]["infra"] == 1


def test_a_result_that_is_gone_counts_by_its_entry() -> None:
    counts = Counts.of(counts_of(answered(*MIXED, known=False)))
    assert (counts.candidates, counts.graded, counts.infra, counts.unread) == (4, 3, 1, 1)
    assert counts.statuses == {"partial": 1}
    assert (counts.outcomes, counts.codes) == ({}, {})
    assert (counts.mean_reward, summary(answered(*MIXED, known=False))["mean"]) == (None, None)


def test_what_could_not_be_read_pulls_no_mean_down() -> None:
    parts = grouped([answered(verdict(0, 1.0), verdict(1, 0.5)), answered(*MIXED, known=False)])
    for part in ("total", "run:r"):
        counts = Counts.of(parts[part])
        assert (counts.graded, counts.unread, counts.unread_graded) == (5, 1, 3)
        assert (counts.mean_reward, counts.zeros) == (0.75, 0)
    minute = 1_700_000_000 // 60
    block = {name.encode(): str(count).encode() for name, count in parts[f"series:r:60:{minute // 60}"].items()}
    (point,) = _points([block], HOUR, 1_700_000_000.0)
    assert (point.graded, point.unread, point.mean_reward) == (5, 3, 0.75)


@pytest.mark.parametrize("reward", ["nan", "-nan", "inf", "1e300", "-1", "1.5", "table: 0x1", "0x"])
def test_a_reward_that_no_verdict_has_makes_the_answer_unread(reward: str) -> None:
    assert _apart(["OK", "1", "", "passed", "n1", "none", "", reward, "", "passed", "n1", "none", ""]) is None


def test_verdicts_of_another_batch_of_that_name_are_not_counted() -> None:
    told = {"n": "4", "flagged": "1"}
    verdicts = answered(*MIXED).verdicts
    assert _answered("1-0", told, verdicts).verdicts == verdicts
    for other in ({"n": "3"}, {"flagged": "0"}, {"flagged": "x"}):
        assert _answered("1-0", {**told, **other}, verdicts).verdicts is None


def test_nothing_is_no_share_and_no_mean() -> None:
    counts = Counts.of({})
    assert (counts.infra_share, counts.mean_reward, counts.wait) == (None, None, Spread())


def test_a_lot_by_part() -> None:
    later = 1_700_000_000_000 + 61_000
    parts = grouped([answered(*MIXED), answered(verdict(0, 1.0), run="s", at_ms=later)])
    assert {part.partition(":")[0] for part in parts} == {"total", "slot", "run", "series"}
    assert (parts["total"]["batches"], parts["run:r"]["batches"], parts["run:s"]["reward"]) == (2, 1, 1_000_000)
    assert not [name for part in ("total", "run:r") for name in parts[part] if name.startswith("node")]
    slots = [part for part in parts if part.startswith("slot:")]
    assert sum(parts[slot]["node:n1"] for slot in slots) == 4
    minute = 1_700_000_000 // 60
    assert parts[f"series:r:60:{minute // 60}"][f"{minute}:graded"] == 3
    assert parts[f"series:r:60:{minute // 60}"][f"{minute}:reward"] == 1_250_000


def test_a_run_of_no_name_of_ours_holds_up_no_other() -> None:
    parts = grouped([replace(answered(*MIXED), run="a:b"), answered(*MIXED)])
    assert parts["total"]["batches"] == 2
    assert {part for part in parts if part.startswith("run:")} == {"run:r"}


def test_what_goes_to_the_script_is_bounded_and_whole() -> None:
    parts = {"total": {f"code:{number}": 1 for number in range(3 * MAX_NAMES)}, "run:r": {"graded": 0}, "slot:1": {}}
    flat = list(_flat(parts, 1000))
    assert flat[:3] == ["total", 1000, MAX_NAMES]
    assert len(flat) == 3 + 2 * MAX_NAMES


@pytest.mark.parametrize(
    ("given", "expected"),
    [("draining", "draining"), ("a b", "other"), ("", "other"), ("x" * 65, "other"), ("a:b", "other"), ("é", "other")],
)
def test_names_stay_few(given: str, expected: str) -> None:
    assert name_of(given) == expected


@given(st.floats(0, 1e12))
def test_a_time_lies_within_its_step(ms: float) -> None:
    step = step_of(ms)
    low, high = edges(step)
    assert 0 <= step <= MAX_STEP
    assert low * 0.999 <= ms
    assert step == MAX_STEP or ms <= high * 1.001


@given(st.lists(st.floats(1, 1e7), min_size=1, max_size=50), st.sampled_from([0.5, 0.95]))
def test_a_percentile_is_right_to_a_step(times: list[float], part: float) -> None:
    steps: dict[int, int] = {}
    for ms in times:
        steps[step_of(ms)] = steps.get(step_of(ms), 0) + 1
    told = percentile(steps, part)
    exact = sorted(times)[max(0, -int(-part * len(times) // 1) - 1)]
    assert told is not None
    assert exact / 1.35 <= told <= exact * 1.35


def test_a_percentile_of_nothing() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({3: 0}, 0.5) is None


def test_maps_add_up() -> None:
    assert added([{"a": 1}, {"a": 2, "b": 3}]) == {"a": 3, "b": 3}


def test_a_line_of_a_list_is_what_was_summed_up() -> None:
    line = _line({"run": "r", "told": json.dumps(summary(answered(*MIXED)))})
    assert line is not None
    assert (line.run, line.id, line.n, line.graded, line.infra, line.zeros) == ("r", "b", 4, 3, 1, 1)
    assert (line.codes, line.nodes, line.recovered) == ({"draining": 1}, ("n1", "n2"), 1)
    assert (line.wait_ms, line.took_ms) == (40.0, 400.0)


@pytest.mark.parametrize("told", ["", "[]", "{}", '{"k": 1}', "null"])
def test_an_entry_of_another_kind_is_left_out(told: str) -> None:
    assert _line({"told": told}) is None
    assert _line({}) is None
