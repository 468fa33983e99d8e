"""What holds for the protocol's functions on every generated state, without a server."""

from __future__ import annotations

import pytest

from collimate_rl.protocol import Timing
from collimate_rl.protocol import transitions as t
from collimate_rl.protocol.model import Store, look
from collimate_rl.protocol.states import BatchStatus, may_become
from tests.fixtures.model_worlds import Worlds

TIMING = Timing()
CASES = 150
SCRIPTS = sorted(set(t.__all__) - {"Submission"})
AFTER = {
    ("submit", "NEW"): "SAME",
    ("publish", "OK"): "ALREADY",
    ("bury", "RELEASED"): "NONE",
    ("bury", "ANSWERED"): "NONE",
    ("cancel", "ANSWERED"): "DONE",
    ("mend", "ANSWERED"): "FORGOT",
    ("purge", "PURGED"): "GONE",
    ("tally", "OK"): "STALE",
}
"""What a call is answered that was carried out before, where that differs from the first answer."""
PACED = {("mend", "RELEASED"), ("mend", "RUNG")}
"""After these a second call sees another state: the bell that the first one rang."""


def cases(script: str) -> list[tuple[Worlds, Store]]:
    found = []
    for number in range(CASES):
        worlds = Worlds(f"{script} {number}", 1_800_000_000_000, TIMING)
        found.append((worlds, worlds.store()))
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_rule_of_the_queue_is_broken(script: str) -> None:
    for worlds, before in cases(script):
        after, _ = worlds.call(script, before).step(before)
        if script == "purge" or before.batch is None or after.batch is None:
            continue
        old, new = before.batch, after.batch
        assert old.status is new.status or may_become(old.status, new.status)
        assert new.fence >= old.fence
        assert all(look(after.verdicts, i) == blob for i, blob in before.verdicts)
        if old.status is BatchStatus.DONE:
            assert (new.status, after.done, after.verdicts) == (old.status, before.done, before.verdicts)
            assert before.streams == after.streams
        if old.owner and old.owner != new.owner:
            assert new.fence > old.fence or new.status is BatchStatus.OPEN
        answered = new.status is BatchStatus.DONE and old.status is not BatchStatus.DONE
        for who in after.askers:
            told = len(look(after.streams, who) or ()) - len(look(before.streams, who) or ())
            assert told == int(answered)
        counted = after.answers[len(before.answers) :]
        assert len(counted) == int(answered)
        if answered:
            assert after.done is not None
            assert len(after.done.results) == new.n
            flagged = sum(look(after.verdicts, i) is None for i in range(new.n))
            assert counted == ((new.k, after.done.status, new.n, flagged),)
            assert look(after.pending, new.k) is look(after.inflight, new.k) is None


@pytest.mark.parametrize("script", SCRIPTS)
def test_sent_again_it_changes_nothing(script: str) -> None:
    for worlds, store in cases(script):
        call = worlds.call(script, store)
        once, first = call.step(store)
        twice, second = call.step(once)
        if (script, first[0]) in PACED:
            continue
        assert second[0] == AFTER.get((script, first[0]), first[0]), (call, store)
        assert twice == once or script in ("mend", "bump", "lease"), (call, store)
