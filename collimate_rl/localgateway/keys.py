"""Bearer keys `col_<tier>_<id8>_<secret32>`, and what their tiers may."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from collimate_rl.localgateway.refusals import Refusal

_KEY = re.compile(r"col_(demo|pro|ent)_([A-Za-z0-9]{8})_([A-Za-z0-9]{32})")


@dataclass(frozen=True, kw_only=True)
class Tier:
    """`concurrency`: sandboxes alive at once, None for no limit of the tier's own; `fan_out`: children per fork."""

    name: str
    concurrency: int | None
    fan_out: int
    pro: bool


TIERS: Final = {
    tier.name: tier
    for tier in (
        Tier(name="demo", concurrency=8, fan_out=4, pro=False),
        Tier(name="pro", concurrency=None, fan_out=32, pro=True),
        Tier(name="ent", concurrency=None, fan_out=64, pro=True),
    )
}


@dataclass(frozen=True, kw_only=True)
class Key:
    """A tenant. `key_id` is what owns things; the secret is shown by `text` alone."""

    tier: Tier
    key_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The bearer token."""
        return f"col_{self.tier.name}_{self.key_id}_{self.secret}"


def make_key(tier: str) -> Key:
    """A fresh one. ValueError for an unknown tier."""
    if tier not in TIERS:
        raise ValueError(f"{tier!r} is no tier: there are {', '.join(TIERS)}")
    return Key(tier=TIERS[tier], key_id=secrets.token_hex(4), secret=secrets.token_hex(16))


def parse_key(text: str) -> Key:
    """A whole key as it stands, or `TIER` for a fresh one, or `TIER:id8:secret32`. ValueError for anything else."""
    found = _KEY.fullmatch(text) or _KEY.fullmatch("col_" + text.replace(":", "_"))
    if found is not None:
        return Key(tier=TIERS[found[1]], key_id=found[2], secret=found[3])
    if text in TIERS:
        return make_key(text)
    raise ValueError(
        "a key is col_TIER_ID_SECRET with 8 and 32 letters or digits, or TIER:ID:SECRET, or a TIER alone "
        f"({', '.join(TIERS)}) for a fresh one"
    )


class KeyRing:
    """The keys that are let in. ValueError when two share an id."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = tuple(keys)
        self._by_id = {key.key_id: key for key in self.keys}
        if not self.keys or len(self._by_id) < len(self.keys):
            raise ValueError("a gateway needs at least one key, each with an id of its own")

    def admit(self, authorization: str) -> Key:
        """The key of an Authorization header; 401 `unauthorized` otherwise."""
        scheme, _, token = authorization.partition(" ")
        found = _KEY.fullmatch(token.strip())
        if scheme.lower() == "bearer" and found is not None:
            key = self._by_id.get(found[2])
            if key is not None and hmac.compare_digest(key.text, token.strip()):
                return key
        raise Refusal(
            401, "unauthorized", "send `Authorization: Bearer col_<tier>_<id>_<secret>` with a key known here"
        )
