from __future__ import annotations

import hashlib

import pytest

from collimate_rl.seeds import DET_SEED, fresh_seed, group_seeds, is_valid_seed, seed_from_key


def test_fresh_seeds_are_valid_and_differ() -> None:
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(is_valid_seed(seed) for seed in seeds)


@pytest.mark.parametrize("seed", ["", "ab", "g" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", None, 7, b"a" * 64])
def test_what_is_no_seed(seed: object) -> None:
    assert not is_valid_seed(seed)


def test_a_key_gives_one_seed_everywhere() -> None:
    assert seed_from_key("k", "s") == hashlib.sha256(b"s\0k").hexdigest()
    assert seed_from_key("k") == hashlib.sha256(b"\0k").hexdigest()
    assert seed_from_key(7) == seed_from_key("7")
    assert is_valid_seed(seed_from_key("\udcff"))


def test_group_seeds_by_mode() -> None:
    assert group_seeds(3, "vanilla") == [None, None, None]
    assert len(set(group_seeds(3))) == 1
    assert group_seeds(3) != group_seeds(3)
    assert group_seeds(2, "crn", "ab" * 32) == ["ab" * 32] * 2
    assert group_seeds(2, "deterministic") == [DET_SEED] * 2 == ["deadbeef" * 8] * 2
    assert group_seeds(2, "deterministic", "ab" * 32) == ["ab" * 32] * 2
    assert group_seeds(0) == []


@pytest.mark.parametrize(("n", "mode", "base"), [(-1, "crn", None), (1, "other", None), (1, "vanilla", "xyz")])
def test_group_seeds_that_cannot_be(n: int, mode: str, base: str | None) -> None:
    with pytest.raises(ValueError):
        group_seeds(n, mode, base)
