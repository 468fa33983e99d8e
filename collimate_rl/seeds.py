"""Seeds: 32 bytes as 64 hex digits, as the wire carries them.

The candidates of a GRPO group are compared with each other. Under common random numbers (CRN) all of them
run under one seed, so that a difference in reward is a difference between candidates and not between draws.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final, TypeGuard

DET_SEED: Final = "deadbeef" * 8
"""The seed of `mode="deterministic"` where no base seed is given."""

SEED_MODES: Final = ("vanilla", "crn", "deterministic")

_SEED = re.compile(r"[0-9a-fA-F]{64}")


def fresh_seed() -> str:
    """A seed from the operating system's entropy."""
    return secrets.token_hex(32)


def is_valid_seed(seed: object) -> TypeGuard[str]:
    """True for a text of exactly 64 hex digits."""
    return isinstance(seed, str) and _SEED.fullmatch(seed) is not None


def seed_from_key(key: object, salt: str = "") -> str:
    """The seed that belongs to `key`: sha256 of salt, NUL and the key's text.

    The same key gives the same seed in every process, so ranks that share a prompt need not talk to each other.
    """
    text = f"{salt}\0{key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def group_seeds(n: int, mode: str = "crn", base_seed: str | None = None) -> list[str | None]:
    """One seed per candidate of a group of `n`.

    vanilla: all None, the daemon draws fresh entropy per rollout. crn: one seed for all, `base_seed` or a fresh one.
    deterministic: `base_seed` or `DET_SEED` for all. A bad mode, width or base seed is a `ValueError`.
    """
    if n < 0:
        raise ValueError(f"a group has a width of 0 or more, not {n!r}")
    if base_seed is not None and not is_valid_seed(base_seed):
        raise ValueError(f"base_seed must be 64 hex digits (32 bytes), not {base_seed!r}; see fresh_seed()")
    if mode == "vanilla":
        return [None] * n
    if mode == "crn":
        return [base_seed or fresh_seed()] * n
    if mode == "deterministic":
        return [base_seed or DET_SEED] * n
    raise ValueError(f"unknown seed mode {mode!r}: one of {', '.join(SEED_MODES)}")
