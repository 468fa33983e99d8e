"""The list of bells, read in parts: whatever happens to it meanwhile, a bell that stays on it is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest

from collimate_rl.queue import rq_edge
from collimate_rl.queue.rq_edge import listed_batches

KS = [f"{number:032x}" for number in range(20)]
LIST = "rq:queue:grade"


class Meddling:
    """A client between whose reads something happens to the list."""

    def __init__(self, client: Any, happens: Callable[[Any], object]) -> None:
        self.client = client
        self.happens = happens
        self.reads = 0

    def lrange(self, name: str, first: int, last: int) -> Any:
        self.reads += 1
        part = self.client.lrange(name, first, last)
        self.happens(self.client)
        return part


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(rq_edge, "LISTED_PART", 4)
    with fakeredis.FakeRedis() as made:
        made.rpush(LIST, *(f"{k}-1" for k in KS), "a-stranger")
        yield made


def seen(client: Any, happens: Callable[[Any], object]) -> tuple[set[str], int]:
    meddling: Any = Meddling(client, happens)
    return listed_batches(meddling, "grade"), meddling.reads


def test_a_list_is_read_whole_and_once(client: Any) -> None:
    assert seen(client, lambda _client: None) == (set(KS), 6)
    client.ltrim(LIST, 0, 3)
    assert seen(client, lambda _client: None) == (set(KS[:4]), 2)
    client.delete(LIST)
    assert seen(client, lambda _client: None) == (set(), 1)


@pytest.mark.parametrize(
    "happens",
    [
        lambda client: client.lpop(LIST),
        lambda client: client.rpush(LIST, f"{'f' * 32}-1"),
        lambda client: client.lpush(LIST, f"{'f' * 32}-1"),
        lambda client: client.linsert(LIST, "AFTER", f"{KS[17]}-1", f"{'f' * 32}-1"),
    ],
    ids=["taken", "rung", "rung at the front", "rung in its turn"],
)
def test_what_stays_is_seen_whatever_comes_and_goes(client: Any, happens: Callable[[Any], object]) -> None:
    found, _ = seen(client, happens)
    stayed = {raw.decode()[:32] for raw in client.lrange(LIST, 0, -1)} & set(KS)
    assert stayed <= found
