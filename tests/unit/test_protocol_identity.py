"""Identity, content, key names, states and timing: small, and expensive to change."""

from __future__ import annotations

import hashlib

import pytest

from collimate_rl.protocol import BatchStatus, Timing, batch_key, content_hash, keys
from collimate_rl.protocol.states import may_become
from tests.fixtures.queue_batches import make_batch


def test_the_key_is_what_the_design_says() -> None:
    expected = hashlib.sha256(b"run\x007\x00id").hexdigest()[:32]
    assert batch_key("run", 7, "id") == expected
    assert len({batch_key("a", 0, "b"), batch_key("a", 1, "b"), batch_key("ab", 0, ""), batch_key("a", 0, "b0")}) == 4


def test_content_is_pinned() -> None:
    batch = make_batch(id="pinned", candidates=("a", "b"), seeds=(None, None))
    assert content_hash(batch) == "8103ac5a5f6e628a2449452147bb2adf954f12c803034287ab469e7a98eee69b"


@pytest.mark.parametrize(
    "change",
    [
        {"producer": "q"},
        {"epoch": 3},
        {"id": "other"},
        {"run": "other"},
        {"deadline_s": 5.0},
        {"tags": {"a": "b"}},
        {"submitted_at": 9.0},
        {"recovery": "attach"},
        {"seeds": ("ab" * 32, None)},
        {"spec": '{"tests":[],"type":"unit_test"}'},
    ],
)
def test_what_is_no_content(change: dict[str, object]) -> None:
    assert content_hash(make_batch(**change)) == content_hash(make_batch())


def test_candidates_do_not_run_into_each_other() -> None:
    hashes = {
        content_hash(make_batch(candidates=pair)) for pair in (("ab", "c"), ("a", "bc"), ("", "abc"), ("c", "ab"))
    }
    assert len(hashes) == 4


def test_explicit_seeds_are_content() -> None:
    batch = make_batch()
    assert content_hash(batch, ["ab" * 32, None]) != content_hash(batch)
    assert content_hash(batch, [None, None]) != content_hash(batch)


def test_surrogates_and_numbers_hash() -> None:
    assert content_hash(make_batch(candidates=("\ud800", ""))) != content_hash(make_batch(candidates=("?", "")))
    assert content_hash(make_batch(case_timeout_s=5)) == content_hash(make_batch(case_timeout_s=5.0))


def test_names_of_bells() -> None:
    k = "0123456789abcdef" * 2
    assert keys.k_of_job(f"{k}-12") == k
    for other in (k, f"{k}-", f"{k}-x", "abc-1", f"{k.upper()}-1", f"z{k[1:]}-1", ""):
        assert keys.k_of_job(other) is None


def test_states() -> None:
    assert may_become(BatchStatus.RUNNING, BatchStatus.RUNNING)
    assert may_become(BatchStatus.OPEN, BatchStatus.DONE)
    assert not any(may_become(BatchStatus.DONE, after) for after in BatchStatus)
    assert not may_become(BatchStatus.OPEN, BatchStatus.OPEN)


def test_timing_is_checked() -> None:
    assert Timing().lease_ms == 12_000
    for wrong in ({"lease_ms": 0}, {"look_ms": 1.5}, {"max_blame": True}, {"lease_ms": 3_000}, {"gap_ms": 2_000}):
        with pytest.raises(ValueError, match=r"."):
            Timing(**wrong)  # type: ignore[arg-type]
