"""Every script against its pure function, on generated states: so the model that the explorer walks is no mock.

A state is written into the server, the script is run, the state is read back; state and reply must be the function's.
A few further calls follow on the same server, some of them the same call again, as a client sends it whose reply was
lost. One server gets all states, of which every reply of a script must come up; where Redis and Valkey are both there,
Valkey, which runs the same Lua, gets the first third of them. The seed of a case is in the failure's message.
REPEAT=<n> in the environment, as `make chaos` has it, makes the run n times as long.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from collimate_rl.protocol import Timing
from collimate_rl.protocol import transitions as t
from collimate_rl.protocol.model import Reply, Store
from collimate_rl.queue import lua
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import find_servers
from tests.fixtures.model_store import NEAR_MS, Dump, bound, check_lifetimes, read, set_time, write
from tests.fixtures.model_worlds import Call, Worlds

TIMING = Timing()
CASES = 40 * int(os.environ.get("REPEAT", "1"))
FURTHER = 3
SHARE = {"submit": 5, "mend": 6, "publish": 4, "claim": 4, "release": 4, "bury": 3, "bump": 3, "tally": 3}
SHARE |= {"lease": 1, "beat": 1, "cancel": 1}
"""Half of `CASES` times this: more where a script has more ways to go."""
REPLIES = {
    "submit": {"NEW", "SAME", "DONE", "CONFLICT", "FULL", "WINDOW"},
    "claim": {"OK", "BUSY", "DONE", "GONE"},
    "renew": {"OK", "FENCED", "OVERDUE"},
    "note": {"OK", "FENCED"},
    "mark": {"OK", "FENCED"},
    "cases": {"OK", "FENCED"},
    "verdict": {"ACCEPTED", "STANDS", "FENCED"},
    "remember": {"KEPT", "STANDS", "NO_ROOM", "FENCED"},
    "publish": {"OK", "ALREADY", "FENCED", "MISSING"},
    "release": {"RELEASED", "ANSWERED", "FENCED"},
    "bury": {"NONE", "RELEASED", "ANSWERED"},
    "mend": {"FORGOT", "LIVE", "ANSWERED", "SETTLING", "RELEASED", "WAITING", "LISTED", "LOOK", "RUNG"},
    "cancel": {"ASKED", "ANSWERED", "DONE", "GONE"},
    "beat": {0, 1},
    "bump": {0, 1, 2},
    "lease": {0, 1},
    "seat": {0, 1},
    "purge": {"PURGED", "OTHER", "GONE"},
    "tally": {"OK", "STALE", "NOT_LEADING"},
}
"""What each script can answer; every one of these must have come up."""


class Bench:
    """One server with the scripts on it; `share` of the states are tried there."""

    def __init__(self, url: str, share: float) -> None:
        self.share = share
        self.client: Any = connect_commands(url)
        self.scripts = {name: bound(self.client, name, TIMING) for name in lua.SCRIPTS}
        seconds, _ = self.client.time()
        self.now = int(seconds) * 1000

    def reply(self, call: Call, expected: Reply) -> Reply:
        raw = self.scripts[call.script](*call.argv)
        word = raw[0].decode() if isinstance(raw[0], bytes) else raw[0]
        rest = raw[1:]
        if call.script == "claim" and word == "OK":
            return (word, *rest[:8], rest[8], _pairs(rest[9]), _pairs(rest[10]), tuple(rest[11]))
        if call.script == "release" and word != "FENCED":
            return (word, _pairs(rest))
        if call.script == "lease" and word == 0 and abs(rest[0] - expected[1]) < NEAR_MS:
            return expected  # the server's own clock counts it
        if call.script in ("verdict", "bury", "purge", "tally"):
            return (word, *(text.decode() for text in rest))
        return (word, *rest)


def _pairs(flat: list[bytes]) -> tuple[tuple[int, bytes], ...]:
    return tuple(sorted((int(flat[i]), flat[i + 1]) for i in range(0, len(flat), 2)))


@pytest.fixture
def bench(request: pytest.FixtureRequest, each_redis_url: str) -> Iterator[Bench]:
    is_first = request.node.callspec.params["each_redis_url"] == next(iter(find_servers()))
    made = Bench(each_redis_url, 1 if is_first else 1 / 3)
    yield made
    made.client.close()


def test_every_script_has_its_function() -> None:
    assert set(lua.SCRIPTS) == set(REPLIES) == set(t.__all__) - {"Submission"}


@pytest.mark.parametrize("script", lua.SCRIPTS)
def test_the_script_does_what_the_function_does(bench: Bench, script: str) -> None:
    seen: Counter[Any] = Counter()
    for number in range(int(CASES * SHARE.get(script, 2) / 2 * bench.share)):
        seed = f"{script} {number}"
        worlds = Worlds(seed, bench.now, TIMING)
        store = worlds.store()
        bench.client.flushdb()
        write(bench.client, store, TIMING)
        story: list[str] = []
        call = worlds.call(script, store)
        for turn in range(1 + FURTHER):
            before = store
            store, reply = call.step(store)
            story.append(f"{call} -> {reply}")
            told = "\n".join((f"seed {seed!r}", *story, f"on {before}"))
            assert bench.reply(call, reply) == reply, told
            dump = Dump(bench.client)
            held = read(dump, store)
            assert held == store, told
            assert held.batch is None or held.batch.story == store.known.story, told
            assert held.batch is None or held.batch.obstacle == store.known.obstacle, told
            check_lifetimes(dump, store, TIMING)
            if turn == 0:
                seen[reply[0]] += 1
            if not worlds.chance(0.3):
                store = _later(bench, worlds, store)
                call = worlds.call(worlds.rng.choice(lua.SCRIPTS), store)
    assert set(seen) <= REPLIES[script]
    assert bench.share < 1 or set(seen) == REPLIES[script], f"the cases never led to some reply: {seen}"


def _later(bench: Bench, worlds: Worlds, store: Store) -> Store:
    """Some time passes, perhaps none."""
    now = store.now + worlds.rng.choice((0, 1, 500, TIMING.look_ms, TIMING.lease_ms + 1))
    set_time(bench.client, now)
    worlds.now = now
    return replace(store, now=now)
