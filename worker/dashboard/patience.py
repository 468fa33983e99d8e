"""Clients that hold a connection and ask nothing: let go, so that they take nobody else's place.

uvicorn waits for the end of a request, and for an answer to be taken, as long as the client likes. Every connection
counts towards its limit, beyond which everybody is answered 503: a few hundred halves of requests would be an outage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PATIENCE_S = 15.0
"""How long a request may take to arrive, and an answer that is complete to be taken."""
CROWDED_S = 1.5
"""The same where more than three quarters of the places are taken."""


class Patience:
    """Looks at uvicorn's connections every now and then. places -- how many there may be."""

    def __init__(self, places: int, *, patience_s: float = PATIENCE_S, crowded_s: float = CROWDED_S) -> None:
        self._places = places
        self._patience_s = patience_s
        self._crowded_s = min(crowded_s, patience_s)
        self._idle: dict[Any, tuple[object, float]] = {}

    def look(self, connections: Iterable[Any], now: float) -> int:
        """Cuts off those that have stood still for too long; how many. An answer that is being given counts as work,
        and so does a request that is complete: who answers it bounds that."""
        living = list(connections)
        longest_s = self._patience_s if len(living) <= self._places * 3 // 4 else self._crowded_s
        idle: dict[Any, tuple[object, float]] = {}
        cut = 0
        for connection in living:
            cycle = connection.cycle
            if cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body):
                continue
            stands = (cycle, None if cycle is None else cycle.response_complete)
            known, since = self._idle.get(connection, (None, now))
            idle[connection] = (stands, since if known == stands else now)
            if now - idle[connection][1] > longest_s and connection.transport is not None:
                connection.transport.abort()
                cut += 1
        self._idle = idle
        return cut
