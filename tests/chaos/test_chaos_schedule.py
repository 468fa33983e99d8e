"""The chaos harness itself: what it does is decided by the seed alone."""

from __future__ import annotations

import pytest

from tests.fixtures.chaos_batches import question
from tests.fixtures.chaos_schedule import DAEMON, LONG, PAUSE, REDIS, SHORT, SUPERVISOR, WORKER, Plan, counts, schedule


@pytest.mark.parametrize("plan", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_is_decided_by_its_seed(plan: Plan, seed: int) -> None:
    faults = schedule(seed, plan)
    assert faults == schedule(seed, plan)
    assert faults != schedule(seed + 1, plan)
    assert counts(faults) == plan.faults
    instants = [fault.after for fault in faults]
    assert instants == sorted(instants)
    assert instants[0] > 0
    assert instants[-1] < plan.batches, "a fault after the last batch would hit nothing"


def test_the_long_form_is_as_long_as_promised() -> None:
    assert (LONG.batches, LONG.k) == (1000, 8)
    promised = {WORKER: 100, SUPERVISOR: 3, DAEMON: 3, REDIS: 3, PAUSE: 5}
    assert all(LONG.faults[kind] >= number for kind, number in promised.items())


def test_a_batch_is_decided_by_seed_and_number() -> None:
    batches = [question(7, number, 8) for number in range(60)]
    assert batches == [question(7, number, 8) for number in range(60)]
    assert len({batch.k for batch in batches}) == 60
    assert {reward for batch in batches for reward in batch.rewards} == {0.0, 1.0}
    assert {batch.recovery for batch in batches} == {"attach", "auto", "rerun"}
    assert len({batch.spec for batch in batches}) == 2
