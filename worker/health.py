"""Whether a node lives and whether it takes work: what `/healthz` and `/readyz` answer, from facts found elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from worker.metrics_server import Page

TURN_S = 60.0
"""The supervisor's main loop turns every second; one that didn't for so long hangs."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that must be so for the node to take work. `reason` says what is wrong, for people."""

    name: str
    ok: bool
    reason: str = ""


def check(name: str, reason: str | None) -> Check:
    """Failed, with its reason, unless that is None."""
    return Check(name=name, ok=reason is None, reason=reason or "")


def readyz(checks: Sequence[Check]) -> Page:
    """200 when all is well, else 503; either way JSON that says of each check whether it is, and why not."""
    ready = all(each.ok for each in checks)
    told = {each.name: {"ok": each.ok} if each.ok else {"ok": False, "reason": each.reason} for each in checks}
    return _json(200 if ready else 503, {"ready": ready, "checks": told})


def healthz(turned_s: float) -> Page:
    """200 while the supervisor's loop turned `turned_s` seconds ago, else 503: then it should be started again."""
    alive = turned_s < TURN_S
    return _json(200 if alive else 503, {"alive": alive, "loop_turned_seconds_ago": round(turned_s, 1)})


def _json(status: int, data: object) -> Page:
    return Page(status=status, content_type="application/json", body=(json.dumps(data) + "\n").encode())
