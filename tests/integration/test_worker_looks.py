"""`python -m worker status` and `quarantine`: what they say of a queue, and that releasing grades again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from collimate_rl.protocol import batch_key, keys
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.codec import unpack_batch
from collimate_rl.queue.replies import Buried
from producer import Producer
from tests.fixtures.acl_users import as_user
from tests.fixtures.queue_batches import make_batch, passed, put, settle, take
from worker.__main__ import main
from worker.process import ProcessId

Run = Callable[..., tuple[int, str, str]]
SPEC = {"type": "unit_test", "tests": []}
ESCAPE = "x = 1  # \x1b[2J\nprint('hi')\n"


@pytest.fixture
def queue(redis_url: str) -> Any:
    client = connect_commands(redis_url)
    yield BatchQueue(client)
    client.close()


@pytest.fixture
def run(redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process; exit code, output, errors."""

    def call(*words: str) -> tuple[int, str, str]:
        user = "dashboard" if words[0] == "status" else "operator"
        monkeypatch.setenv("COLLIMATE_REDIS_URL", as_user(redis_url, user))
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def poison(queue: BatchQueue, k: str) -> None:
    """Candidate 1 of `k` costs three workers their lives; candidate 0 is judged."""
    for turn in range(3):
        grant = take(queue, k, owner=f"o{turn}", worker=f"w{turn}")
        queue.verdict(grant.hold, passed(0))
        queue.mark(grant.hold, 1)
        reply = queue.bury("n1", f"w{turn}").word
    assert reply is Buried.ANSWERED


def test_an_empty_queue(run: Run) -> None:
    code, out, _ = run("status")
    assert code == 0
    assert out.splitlines()[1:] == [
        "  0 unanswered batches, 0 bells on the list, 0 popped",
        "  no beat ever came: no supervisor and no janitor serves this queue; no janitor leads",
        "nodes: none",
        "runs with unanswered batches: none",
        "quarantine: empty",
    ]
    assert run("quarantine", "list")[:2] == (0, "nothing is in quarantine\n")
    assert run("quarantine", "list", "--json")[:2] == (0, "[]\n")


def test_what_the_queue_holds_by_node_and_by_run(run: Run, queue: BatchQueue) -> None:
    for number in range(2):
        put(queue, make_batch(id=f"waiting{number}", run="a"))
    held = put(queue, make_batch(id="held", run="b", k=3))
    grant = take(queue, held, worker="n1-0-x", node="n1")
    queue.verdict(grant.hold, passed(1))
    done = put(queue, make_batch(id="done", run="c", k=1))
    grant = take(queue, done, worker="n1-1-x", node="n1")
    queue.verdict(grant.hold, passed(0))
    queue.publish(grant.hold)
    queue.beat(
        "n1",
        {
            "up": True,
            "processes": 2,
            "slots": 4,
            "templates": ["py"],
            "isolation": "namespaces",
            "failed_templates": {"numpy": "no such module"},
        },
    )
    settle(queue)
    queue.lease("janitor:grade", str(ProcessId.own()), 60_000)
    code, out, _ = run("status")
    assert code == 0
    for line in (
        "  3 unanswered batches, 4 bells on the list, 0 popped",
        "  n1  daemon up, 2 processes, 4 slots, isolation namespaces, templates py",
        "    template numpy failed: no such module",
        "    n1-0-x  b/held  1 of 3 judged, fence 1, deadline in 3,600 s",
        "  a  2 waiting, 0 running; oldest 0.0 s, next deadline in 3,600 s",
        "  b  0 waiting, 1 running; oldest 0.0 s, next deadline in 3,600 s",
        "quarantine: empty",
    ):
        assert any(_same(line, told) for told in out.splitlines()), (line, out)
    assert "clock settled" in out
    assert f"janitor leads (pid {ProcessId.own().pid})" in out
    code, out, _ = run("status", "--json")
    told = json.loads(out)
    assert (code, told["unanswered"], [each["name"] for each in told["runs"]]) == (0, 3, ["a", "b"])
    assert told["nodes"][0]["batches"][0]["k"] == held
    assert told["server"].split()[0] in ("Redis", "Valkey")


def _same(wanted: str, told: str) -> bool:
    """But for the seconds."""
    return wanted.split(" oldest")[0].split(" deadline")[0] == told.split(" oldest")[0].split(" deadline")[0]


def test_a_node_without_a_heartbeat_that_owns_a_batch_is_told_of(run: Run, queue: BatchQueue) -> None:
    k = put(queue, make_batch(id="held"))
    take(queue, k, worker="w", node="gone")
    queue.client.hset(keys.BatchKeys(k).state, "lease_until", "1")
    out = run("status")[1]
    assert "  gone  no heartbeat\n" in out
    assert "silent for" in out


def test_quarantine_is_listed_shown_and_released(run: Run, queue: BatchQueue, redis_url: str) -> None:
    with Producer(redis_url, run="run", name="trainer") as producer:
        handle = producer.submit(
            template="py", candidates=["ok = 1", ESCAPE], spec=SPEC, id="b", seeds=[None, "ab" * 32]
        )
        poison(queue, handle.k)
        assert handle.result(60).rewards("none") == [1.0, None]
        code, out, _ = run("quarantine", "list")
        assert code == 0
        assert f"{handle.k}  run/b candidate 1  on n1 by w2" in out
        code, out, _ = run("quarantine", "show", handle.k[:6])
        assert code == 0
        assert out.splitlines()[1:] == [
            "template py, 30 s, 2 candidates, spec unit_test",
            "answered quarantined",
            "owners lost: 3; the last was w2",
            "--- candidate 1",
            "x = 1  # \\x1b[2J",
            "print('hi')",
        ]
        shown = json.loads(run("quarantine", "show", "run/b", "--json")[1])
        assert shown["candidates"][0]["code"] == ESCAPE
        assert (shown["spec"], shown["status"]) == (SPEC, "quarantined")
        again = json.loads(run("--json", "quarantine", "release", "run/b")[1])
        assert (again["reply"], again["k"]) == ("NEW", batch_key("run", 0, again["id"]))
        assert run("quarantine", "list")[1] == "nothing is in quarantine\n"
        grant = take(queue, again["k"], owner="o9", worker="w9")
        batch = unpack_batch(grant.payload)
        assert (batch.candidates, batch.seeds, batch.producer) == ((ESCAPE,), ("ab" * 32,), "trainer")
        queue.verdict(grant.hold, passed(0, 0.5))
        queue.publish(grant.hold)
        # The trainer's own resubmission is the same batch, and has its answer at once.
        assert producer.resubmit(handle).result(60).rewards() == [0.5]


def test_a_release_of_what_the_trainer_resubmitted_changes_nothing(run: Run, queue: BatchQueue, redis_url: str) -> None:
    with Producer(redis_url, run="run") as producer:
        handle = producer.submit(template="py", candidates=["ok = 1", "bad = 1"], spec=SPEC, id="b")
        poison(queue, handle.k)
        handle.result(60)
        again = producer.resubmit(handle)
        code, out, _ = run("quarantine", "release", handle.k)
        assert (code, out) == (0, f"had been submitted again as run/{again.id} ({again.k})\n")
        assert queue.depth() == 1


@pytest.mark.parametrize("words", [["show"], ["release"], ["drop", "x"], [], ["list", "x"], ["show", "a", "b"]])
def test_words_that_mean_nothing_are_refused(run: Run, words: list[str]) -> None:
    code, out, err = run("quarantine", *words)
    assert (code, out) == (2, "")
    assert "quarantine takes" in err


def test_what_is_not_there_is_refused(run: Run, queue: BatchQueue) -> None:
    assert run("quarantine", "show", "abc")[0] == 2
    k = put(queue, make_batch(id="b", k=2))
    poison(queue, k)
    queue.client.delete(keys.BatchKeys(k).payload)
    assert "its payload is no longer kept" in run("quarantine", "list")[1]
    code, _, err = run("quarantine", "release", k)
    assert (code, "no longer kept" in err) == (2, True)
    assert run("status", "extra")[0] == 2
    assert run("config", "--json")[0] == 2


def test_a_server_that_is_away_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--redis-url", "unix:/nowhere/redis.sock"]) == 2
    assert "could not be reached" in capsys.readouterr().err
