"""Whoever may write to the server may write anything there: who looks at the queue still tells what can be told, in
bounded room, and shows nothing of it raw."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from rich.console import Console

from collimate_rl.cli.top_view import screen
from collimate_rl.cli.trace_command import trace
from collimate_rl.errors import QueueError
from collimate_rl.protocol.bounds import MAX_CANDIDATES
from collimate_rl.queue.batch_list import list_batches
from collimate_rl.queue.batch_view import find_k, read_batch
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.node_numbers import MAX_FAILED
from collimate_rl.queue.numbers import read_numbers
from collimate_rl.queue.overview import look_at
from producer.serving import look
from tests.fixtures.asgi import ask
from worker import status
from worker.dashboard.app import Dashboard

K = "ab" * 16
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\u200b\U000e0041\u00ad\nforged line"
HALF = b"\xed\xa0\x80"
"""A half character: no text, and yet read as one."""
LONG = b"9" * 5000
HUGE = b"9" * 18
MANY = {str(number): "x" * 99 for number in range(9_999)}
PAGES = ("/", "/?span=day", "/runs/seen", "/batches", "/find?q=x", f"/batches/{K}", f"/batches/{K}/0", "/nowhere")
ENTRY: dict[str, Any] = {
    "k": K, "run": "seen", "id": "told", "status": "graded", "n": 1, "graded": 1, "infra": 0, "zeros": 0, "mean": 1.0,
    "codes": {}, "nodes": [], "at": 1.8e9, "wait": 1.0, "took": 1.0, "recovered": 0,
}  # fmt: skip


def entry(**forged: Any) -> Callable[[Any], None]:
    return lambda client: client.xadd("col:recent:grade", {"told": json.dumps({**ENTRY, **forged})})


def state(**forged: Any) -> Callable[[Any], None]:
    return lambda client: client.hset(f"col:state:{K}", mapping=forged)


def counted(*names: str) -> Callable[[Any], None]:
    def write(client: Any) -> None:
        slot = int(time.time()) // 10
        for key in ("col:tally:grade", f"col:tally:grade:{slot}", "col:run:grade:seen"):
            client.hset(key, mapping=dict.fromkeys(names, HUGE))

    return write


def steps(client: Any) -> None:
    block = int(time.time()) // 3600
    for name in (LONG.decode(), "9" * 17, "-3", "", "²"):
        client.hset(f"col:series:grade:seen:60:{block}", f"{name}:graded", HUGE)


def names(client: Any) -> None:
    for name in (HOSTILE.encode(), HALF, b"x" * 200_000):
        client.zadd("col:runs:grade", {name: 1.8e12})
        client.zadd("col:nodes:grade", {name: 9e15})
        client.hset("col:tally:grade", b"node:" + name, 3)


def beats(said: bytes | str) -> Callable[[Any], None]:
    def write(client: Any) -> None:
        client.zadd("col:nodes:grade", {"n1": 9e15})
        client.set("col:node:n1", said)

    return write


def heartbeat(client: Any) -> None:
    said = {"up": False, "slots": 10**300, "processes": -4, "reason": HOSTILE, "failed_templates": {HOSTILE: "\ud800"}}
    beats(json.dumps({**said, "version": HOSTILE, "isolation": HOSTILE}))(client)


FORGED = {
    "nothing": lambda client: None,
    "names": names,
    "heartbeat": heartbeat,
    "heartbeat: nested": beats("[" * 100_000),
    "heartbeat: a list": beats("[]"),
    "heartbeat: bytes": beats(b"\x80\x04\x95."),
    "heartbeat: long": beats('{"up": true, "slots": ' + LONG.decode() + "}"),
    "heartbeat: odd": beats(json.dumps({"templates": 5, "slots": [], "failed_templates": MANY})),
    "counts": counted("reward", "graded", "candidates", f"wait:{'9' * 17}", f"took:{LONG.decode()}", "took:-1"),
    "steps": steps,
    "entry: an endless wait": entry(wait=float("inf")),
    "entry: a count beyond all": entry(n=10**400, zeros=10**400),
    "entry: no mean": entry(mean=float("nan")),
    "entry: no key": entry(k="\ud800"),
    "entry: a text": entry(run=HOSTILE, id="\ud800", status=HOSTILE, nodes=[HOSTILE], codes={HOSTILE: 1}),
    "state: long numbers": state(
        n=LONG, epoch=LONG, fence=LONG, losses=LONG, created_at=LONG, deadline_at=LONG, lease_until=LONG
    ),
    "state: huge numbers": state(n=HUGE, epoch=HUGE, created_at=HUGE, claimed_at=HUGE, finished_at=HUGE),
    "state: texts": state(
        n=HOSTILE, run=HOSTILE, id=HOSTILE, worker=HOSTILE, node=HOSTILE, obstacle=HOSTILE, created_at=HOSTILE,
        deadline_at=HOSTILE, losses=HOSTILE,
    ),
    "state: a status": state(status=HOSTILE),
    "state: half characters": state(run=HALF, id=HALF, producer=HALF, finished_at=b"1", node=HALF),
}  # fmt: skip


@pytest.fixture(params=sorted(FORGED))
def queue(request: pytest.FixtureRequest) -> BatchQueue:
    # As `connect_commands` makes them.
    client: Any = fakeredis.FakeRedis(encoding_errors="surrogatepass")
    honest = {"status": "running", "run": "seen", "id": "one", "n": 2, "fence": 1, "created_at": 1, "worker": "w"}
    client.hset(f"col:state:{K}", mapping=honest)
    client.zadd("col:pending:grade", {K: 1, HALF: 2, "other": 3})
    client.zadd("col:runs:grade", {"seen": 1.8e12})
    client.zadd("col:inflight:seen", {K: 9e15})
    FORGED[request.param](client)
    return BatchQueue(client, "grade")


def shows_itself(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" for each in text)


def test_the_dashboard_shows_its_pages(queue: BatchQueue) -> None:
    async def seen() -> list[tuple[str, int, str]]:
        dashboard = Dashboard(queue)
        return [(path, (answer := await ask(dashboard, path)).status, answer.text) for path in PAGES]

    for path, code, page in asyncio.run(seen()):
        missing = path == "/nowhere" or path.endswith("/0")  # a batch of which nobody knows how many candidates it has
        assert code in (200, 303) or (missing and code == 404), path
        assert shows_itself(page), path
        assert "<script>" not in page, path
        assert "could not be understood" not in page, path
        assert len(page) < 600_000, path


def test_the_terminal_is_told_in_lines_of_ours(queue: BatchQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = read_numbers(queue)
    json.dumps(numbers.as_json_data(), allow_nan=False)
    console = Console(file=io.StringIO(), width=20)
    console.print(screen(numbers))
    told = [console.file.getvalue(), status.as_text(look_at(queue), "server")]  # type: ignore[attr-defined]
    printed: list[str] = []
    monkeypatch.setattr(Console, "print", lambda _self, line, **_kw: printed.append(line))
    look_up: Any = trace.callback
    look_up.__wrapped__(queue, batch=K, epoch=0, as_json=False)
    for text in (*told, *printed):
        assert shows_itself(text)
    assert not any("\n" in line for line in printed)
    assert not any(line.startswith("forged") for line in told[1].splitlines())


def test_a_batch_that_may_not_be_read_is_not_called_forgotten() -> None:
    client: Any = fakeredis.FakeRedis()
    client.rpush(f"col:done:{K}", "of another kind")
    queue = BatchQueue(client, "grade")
    with pytest.raises(QueueError, match="refused to read a batch: WRONGTYPE"):
        read_batch(queue, K)
    page = asyncio.run(ask(Dashboard(queue), f"/batches/{K}"))
    assert (page.status, "forgotten" in page.text) == (503, False)
    assert read_batch(queue, "cd" * 16) is None


@pytest.mark.parametrize("name", ["run/\udcff", "\x1b[31m/b", "run/", "/id", "run/id\n", "run/a/b"])
def test_what_can_name_no_batch_is_not_looked_for(name: str) -> None:
    with pytest.raises(ValueError, match="names no batch"):
        find_k(BatchQueue(fakeredis.FakeRedis(), "grade"), name)


def test_what_is_read_is_bounded(queue: BatchQueue) -> None:
    view = read_batch(queue, K, receipt=True)
    assert view is not None
    assert view.n <= MAX_CANDIDATES
    assert all(abs(line.n) < 10**18 for line in list_batches(queue))
    assert all(len(node.failed_templates) <= MAX_FAILED for node in read_numbers(queue).nodes)
    assert look(queue).queue == "grade"  # as a producer does before it submits
