"""What recovery knows: which batches run in sessions, what an entry and a label say, and when a session may go."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from tests.fixtures.queue_batches import make_batch
from worker.ledger import ONE_SHOT_BYTES, LedgerEntry, SessionLabel, is_node_local, runs_in_sessions
from worker.session_janitor import Facts, reason_to_reap

K = "ab" * 16
ENTRY = LedgerEntry(session="s1", node="n1", endpoint="unix:/run/s.sock", exec_id=f"{K}-0-0-ff", seed="5eed")
SHORT: dict[str, Any] = {"timeout_seconds": 10}
LARGE = json.dumps({"type": "unit_test", "tests": [], "entry": "x" * ONE_SHOT_BYTES})


@pytest.mark.parametrize(
    ("fields", "sessions"),
    [
        (SHORT, False),
        ({"timeout_seconds": 11}, True),
        ({**SHORT, "egress": {"mode": "none"}}, True),
        ({**SHORT, "spec": LARGE}, True),
        ({**SHORT, "candidates": ("x" * ONE_SHOT_BYTES,), "seeds": (None,)}, True),
        ({**SHORT, "recovery": "attach"}, True),
        ({"timeout_seconds": 3600, "egress": {"mode": "none"}, "recovery": "rerun"}, False),
    ],
)
def test_short_small_and_closed_batches_are_run_again_the_rest_is_remembered(
    fields: dict[str, Any], sessions: bool
) -> None:
    assert runs_in_sessions(make_batch(**fields)) is sessions


def test_an_entry_comes_back_as_it_went() -> None:
    assert LedgerEntry.unpack(ENTRY.pack()) == ENTRY
    odd = LedgerEntry(session="s\udc80", node="n", endpoint="http://h:1", exec_id="e", seed="5")
    assert LedgerEntry.unpack(odd.pack()) == odd


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"session-a",
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({"v": 1, "session": "s"}),
        msgpack.packb({**vars(ENTRY), "v": 2}),
        msgpack.packb({**vars(ENTRY), "v": 1, "session": ""}),
        msgpack.packb({**vars(ENTRY), "v": 1, "node": 7}),
        ENTRY.pack()[:-3],
        ENTRY.pack() + b"\0",
    ],
)
def test_an_entry_that_cannot_be_read_is_none(blob: bytes) -> None:
    assert LedgerEntry.unpack(blob) is None


def test_a_later_writer_may_add_to_an_entry() -> None:
    assert LedgerEntry.unpack(msgpack.packb({**vars(ENTRY), "v": 1, "more": 1})) == ENTRY


@pytest.mark.parametrize(
    ("endpoint", "node", "seen_as", "reachable"),
    [
        ("unix:/run/s.sock", "n1", "unix:/run/s.sock", True),
        ("unix:/run/s.sock", "n2", "unix:/run/s.sock", False),
        ("unix:/run/s.sock", "n1", "unix:/run/t.sock", False),
        ("http://127.0.0.1:8080", "n2", "http://127.0.0.1:8080", False),
        ("http://localhost:8080", "n1", "http://localhost:8080", True),
        ("http://[::1]:8080", "n2", "http://[::1]:8080", False),
        ("http://sandboxes.example:8080", "n2", "http://sandboxes.example:8080", True),
        ("http://sandboxes.example:8080", "n1", "http://other.example:8080", False),
    ],
)
def test_whose_daemon_has_the_session(endpoint: str, node: str, seen_as: str, reachable: bool) -> None:
    entry = LedgerEntry(session="s1", node="n1", endpoint=endpoint, exec_id="e", seed="5")
    assert entry.reachable_from(node, seen_as) is reachable
    assert is_node_local(endpoint) is ("example" not in endpoint)


def test_a_label_comes_back_as_it_went() -> None:
    for label in (SessionLabel(k=K, index=1023, fence=10**15 - 1), SessionLabel(k=K, index=None, fence=1)):
        assert SessionLabel.parse(str(label)) == label
        assert len(str(label)) <= 256
    for other in (None, "", "mine", f"collimate/{K}/1", f"collimate/{K}/x/1", f"collimate/{K[1:]}/1/1", 7):
        assert SessionLabel.parse(other) is None


MINE = SessionLabel(k=K, index=0, fence=3)
JUDGE = SessionLabel(k=K, index=None, fence=3)


@pytest.mark.parametrize(
    ("label", "status", "fence", "judged", "named", "noted", "goes"),
    [
        # Its owner is at it: made and not noted yet, noted, and replaced.
        (MINE, "running", 3, False, False, False, False),
        (MINE, "running", 3, False, True, True, False),
        (MINE, "running", 3, False, False, True, True),
        # Its owner is gone: the ledger keeps it for whoever comes next.
        (MINE, "open", 3, False, True, True, False),
        (MINE, "running", 4, False, True, True, False),
        (MINE, "open", 3, False, False, False, True),
        (MINE, "running", 4, False, False, False, True),
        (MINE, "running", 4, False, False, True, True),
        # Nobody comes back to it.
        (MINE, "running", 3, True, True, True, True),
        (MINE, "done", 4, False, True, True, True),
        (MINE, "done", 4, True, True, True, True),
        # Nothing is known of its batch: perhaps it is on another server.
        (MINE, None, 0, False, False, False, False),
        (MINE, None, 0, False, False, True, True),
        # A judge's serves its owner alone.
        (JUDGE, "running", 3, False, False, False, False),
        (JUDGE, "running", 4, False, False, False, True),
        (JUDGE, "open", 3, False, False, False, True),
        (JUDGE, "done", 3, False, False, False, True),
        (JUDGE, None, 0, False, False, False, False),
    ],
)
def test_which_sessions_are_reaped(
    label: SessionLabel, status: str | None, fence: int, judged: bool, named: bool, noted: bool, goes: bool
) -> None:
    facts = Facts(status=status, fence=fence, judged=judged, named=named, noted=noted)
    assert (reason_to_reap(label, facts) is not None) is goes
