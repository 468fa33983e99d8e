"""What the verdict cache keeps, and what it takes for the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collimate_rl.protocol import CaseReport, Verdict, infra_verdict
from collimate_rl.protocol.codes import OUTCOMES
from collimate_rl.protocol.flags import FLAGS
from tests.fixtures.queue_batches import make_batch
from worker import verdict_cache
from worker.verdict_cache import HARMLESS, STEADY, Addressee, digests_of, is_closed, is_steady

SEED, OTHER = "ab" * 32, "cd" * 32
SPEC = '{"type": "unit_test", "tests": [], "entry": "solve"}'


def verdict(outcome: str = "passed", cases: tuple[str, ...] = ("passed",), **fields: Any) -> Verdict:
    reports = tuple(CaseReport(outcome=each, ms=1.0) for each in cases)
    told = {"index": 0, "reward": 0.5, "outcome": outcome, "cases": reports, "cases_total": len(cases), **fields}
    return Verdict(**told)


def batch(*codes: str, seeds: tuple[str | None, ...] = (), **fields: Any) -> Any:
    pinned = seeds or (SEED,) * len(codes)
    return make_batch(candidates=codes, seeds=pinned, **{"spec": SPEC, **fields})


def test_outcomes_that_load_may_bring_about_are_never_kept() -> None:
    for outcome in OUTCOMES:
        assert is_steady(verdict(outcome)) == (outcome in STEADY)
        assert is_steady(verdict("wrong_answer", ("passed", outcome))) == (outcome in STEADY)
    unsteady = {"timeout", "memory_limit", "sandbox_killed", "tampered", "output_limit", "off_plan"}
    assert set(OUTCOMES) - STEADY == unsteady


@pytest.mark.parametrize(
    "unsteady",
    [
        infra_verdict(0, "session_gone"),
        verdict(integrity="shared"),
        verdict(cases_total=300),
        verdict(cases=()) and replace(verdict(), cases=None),
        verdict(flags=("killed_processes",)),
        verdict(flags=("touched_harness",)),
        verdict(flags=("flooded_output",)),
        verdict(flags=("plan_cut",)),
        verdict(flags=("a_flag_of_a_later_release",)),
        verdict(flags=("cached",)),
    ],
)
def test_nor_is_what_smells_of_it_or_is_not_whole(unsteady: Verdict) -> None:
    assert not is_steady(unsteady)


def test_harmless_flags_are_flags() -> None:
    assert set(FLAGS) >= HARMLESS
    assert is_steady(verdict(flags=tuple(sorted(HARMLESS))))


def test_the_digest_covers_all_that_a_verdict_follows_from(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = digests_of(batch("a"))[0]
    others = [
        batch("b"),
        batch("a", seeds=(OTHER,)),
        batch("a", template="other"),
        batch("a", spec=SPEC.replace("solve", "other")),
        batch("a", timeout_seconds=31),
        batch("a", case_timeout_s=1.0),
        batch("a", egress={"mode": "none"}),
    ]
    digests = [plain, *(digests_of(other)[0] for other in others)]
    monkeypatch.setattr(verdict_cache, "grader_version", lambda: "another")
    digests.append(digests_of(batch("a"))[0])
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 for digest in digests)


def test_the_digest_covers_nothing_else() -> None:
    plain = digests_of(batch("a"))[0]
    spec = '{"entry": "solve", "tests": [], "type": "unit_test"}'
    same = batch("x", "a", seeds=(OTHER, SEED.upper()), spec=spec, run="r2", id="b2", deadline_s=5.0, tags={"a": "b"})
    assert digests_of(same)[1] == plain


def test_without_a_pinned_seed_nothing_is_the_same() -> None:
    assert digests_of(batch("a", "a", seeds=(None, None))) == {}


def test_open_worlds_are_left_out() -> None:
    assert is_closed(batch("a"))
    assert is_closed(batch("a", egress={"mode": "none"}))
    assert not is_closed(batch("a", egress={"allow": ["a.example"]}))
    assert not is_closed(batch("a", spec='{"type": "registered", "name": "n", "arguments": {}}'))


def test_a_verdict_for_another_says_so() -> None:
    address = Addressee(node="n2", fence=7, queue_ms=12.0)
    made = verdict(node="n1", attempt=1, exec_time_ms=5.0, session_id="s", flags=("opaque_result",), recovered="read")
    shared = address.readdressed(made, 3)
    assert (shared.index, shared.node, shared.attempt, shared.queue_ms) == (3, "n2", 7, 12.0)
    assert (shared.reward, shared.outcome, shared.cases) == (made.reward, made.outcome, made.cases)
    assert (shared.exec_time_ms, shared.session_id, shared.recovered) == (0.0, None, "none")
    assert shared.flags == ("cached", "opaque_result")
    assert not is_steady(shared)
