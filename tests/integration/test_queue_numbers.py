"""A queue's numbers and a batch's timeline, as a real node made them and the command line tells them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from collimate_rl.cli.app import app
from collimate_rl.protocol import Verdict, infra_verdict, keys
from collimate_rl.protocol.timeline import timeline_of
from collimate_rl.queue.batch_list import list_batches
from collimate_rl.queue.batch_view import find_k, read_batch
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.numbers import DAY, read_numbers
from collimate_rl.queue.server import LocalRedis, find_servers
from collimate_rl.queue.tally import AnswerCounter, _apart, told_of
from producer import Producer
from tests.fixtures.queue_batches import make_batch, passed, put, take
from tests.fixtures.worker_batches import CRASH, RIGHT, SPEC, WRONG, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, hasty_timing, until

COLLIMATE = [sys.executable, "-m", "collimate_rl.cli"]


def collimate(*arguments: str) -> Result:
    """What the command line answers, in this process."""
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, arguments)


def test_what_a_node_did_is_counted_exactly_and_its_batches_are_traced(
    node: Callable[..., Node], audit: Audit, redis_url: str
) -> None:
    started = node(processes=2, timing=HASTY)
    started.wait_for("worker_ready", count=2)
    # Two groups of a trainer, the second asked for twice.
    with Producer(redis_url, run="trainer", timing=hasty_timing()) as producer:
        for number in (1, 2, 2):
            handle = producer.submit(
                template="py", candidates=[RIGHT, WRONG, CRASH], spec=SPEC, id=f"group-{number}", seed_mode="vanilla"
            )
            result = handle.result(60)
    # One whose worker is killed, and one that the infrastructure cannot grade.
    held = audit.submit([slow(3)], run="other", id="held", recovery="attach")
    owner = started.wait_for("batch_claimed", k=held)[0]["worker"]
    until(lambda: audit.queue.client.hlen(keys.BatchKeys(held).ledger), "nothing was noted")
    os.kill(started.child_pids()[owner], signal.SIGKILL)
    audit.submit([RIGHT, RIGHT], run="other", id="lost", template="nowhere")
    audit.results()
    until(lambda: read_numbers(audit.queue).total.batches == 4, "the answers were not counted")

    told = collimate("top", "--once", "--json", "--redis", redis_url)
    assert (told.exit_code, told.stderr) == (0, "")
    numbers = json.loads(told.stdout)
    runs = {run["name"]: run for run in numbers["runs"]}
    trainer, other = runs["trainer"], runs["other"]
    assert (trainer["submitted"], trainer["unanswered"], trainer["counts"]["batches"]) == (2, 0, 2)
    assert trainer["counts"]["outcomes"] == {"passed": 2, "wrong_answer": 2, "runtime_error": 2}
    assert (trainer["counts"]["mean_reward"], trainer["counts"]["zeros"]) == (pytest.approx(1 / 3), 4)
    assert sum(point["graded"] for point in trainer["rewards"]) == 6
    assert (other["submitted"], other["counts"]["candidates"], other["counts"]["infra"]) == (2, 3, 2)
    assert other["counts"]["codes"] == {"no_template": 2}
    assert sum(other["counts"]["recovered"].values()) == 1
    total = numbers["total"]
    assert (total["candidates"], total["graded"], total["infra"], total["unread"]) == (9, 7, 2, 0)
    assert total["statuses"] == {"graded": 3, "failed": 1}
    assert (total["wait"]["count"], total["took"]["count"]) == (4, 4)
    assert (numbers["unanswered"], numbers["uncounted"], numbers["oldest_s"]) == (0, 0, None)
    [seen] = numbers["nodes"]
    assert (seen["name"], seen["slots"], seen["up"], seen["draining"]) == ("n1", 4, True, False)
    assert seen["version"]
    assert collimate("top", "--once", "--redis", redis_url).stdout.count("trainer") == 1

    lines = list_batches(audit.queue)
    assert [line.id for line in list_batches(audit.queue, run="trainer")] == ["group-2", "group-1"]
    assert sorted(line.id for line in lines) == ["group-1", "group-2", "held", "lost"]
    assert [line.id for line in list_batches(audit.queue, trouble="infra")] == ["lost"]
    assert sorted(line.id for line in list_batches(audit.queue, trouble="zero")) == ["group-1", "group-2"]
    assert [line.id for line in list_batches(audit.queue, status="failed")] == ["lost"]

    # What the trainer has says when it came about.
    timeline = timeline_of(result)
    assert [moment.what for moment in timeline.moments] == ["submitted", "queued", "claimed", "published", "received"]
    assert timeline.round_trip_ms is not None
    for candidate in timeline.candidates:
        assert [moment.what for moment in candidate.moments] == ["started", "forked", "executed", "judged"]
    # The batch that lost its owner tells of both.
    told = collimate("trace", "other/held", "--json", "--redis", redis_url)
    assert told.exit_code == 0, told.stderr
    moments = json.loads(told.stdout)["timeline"]["moments"]
    assert [(m["what"], m["attempt"]) for m in moments if m["clock"] == "server"] == [
        ("queued", None),
        ("claimed", 1),
        ("buried", 1),
        ("claimed", 2),
        ("published", None),
    ]
    assert moments[2]["worker"] == owner
    shown = collimate("trace", held, "--redis", redis_url).stdout
    assert re.search(r"claimed .* attempt 2, n1 n1-", shown)
    assert re.search(r"candidate 0: passed, attempt 2 on n1, recovered: (read|waited)", shown)
    assert re.search(
        r"received .*taken by its producer; when is known by the trainer only",
        collimate("trace", "trainer/group-1", "--redis", redis_url).stdout,
    )
    nothing = collimate("trace", "other/never", "--redis", redis_url)
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert started.stop() == 0


def test_numbers_survive_what_is_purged_half_written_or_not_ours(each_queue: BatchQueue) -> None:
    queue = each_queue
    ks = [put(queue, make_batch(id=f"b{number}")) for number in range(4)]
    grant = take(queue, ks[0])
    queue.verdict(grant.hold, passed(0))
    queue.beat("n1", {"slots": "many", "up": "yes", "templates": "py"})
    queue.client.set(keys.node("n2"), b"\xff not JSON")
    queue.client.zadd(keys.nodes(queue.queue), {"n2": 10**15})
    queue.client.delete(keys.BatchKeys(ks[1]).state)
    queue.client.set(keys.BatchKeys(ks[2]).payload, b"\xc1")
    queue.client.xadd(keys.recent(queue.queue), {"told": "{", "run": "run"})
    queue.client.hset(keys.tally(queue.queue), mapping={"cursor": "7-1", "batches": "no number"})
    numbers = read_numbers(queue, series=DAY)
    assert (numbers.unanswered, numbers.queued, numbers.in_flight, numbers.total.batches) == (4, 2, 1, 0)
    assert [(view.name, view.slots, view.up, view.templates) for view in numbers.nodes] == [
        ("n1", None, None, None),
        ("n2", None, None, None),
    ]
    assert {line.id for line in list_batches(queue)} == {"b0", "b2", "b3"}
    assert {line.status for line in list_batches(queue, status="unanswered")} == {"open", "running"}
    view = read_batch(queue, ks[0])
    assert view is not None
    assert [candidate.verdict is not None for candidate in view.candidates] == [True, False]
    assert view.candidates[1].code == "def solve(x):\n    return x + 1\n"
    half = read_batch(queue, ks[2])
    assert half is not None
    assert (half.status, half.template, len(half.notes)) == ("open", None, 1)
    assert json.loads(json.dumps(half.as_json_data()))["candidates"][0]["code"] is None
    assert find_k(queue, "run/b3") == ks[3]
    assert find_k(queue, "run/b1") is None
    with pytest.raises(ValueError, match="run/id"):
        find_k(queue, "b3")


def test_counting_takes_of_results_what_is_in_them_however_large_or_broken(each_queue: BatchQueue) -> None:
    queue = each_queue
    mixed = put(queue, make_batch(id="mixed", k=3))
    grant = take(queue, mixed)
    first = Verdict(
        index=0, reward=1 / 3, outcome="wrong_answer", node="n1", recovered="read", flags=("nan", "cached"), detail="d"
    )
    assert queue.verdict(grant.hold, first).value == "ACCEPTED"
    queue.verdict(grant.hold, passed(1))
    queue.publish(grant.hold, [infra_verdict(2, "draining", "\udc80", node="n1")])
    large = put(queue, make_batch(id="large", k=140))
    grant = take(queue, large, owner="o2", worker="w2")
    for index in range(140):
        queue.verdict(grant.hold, replace(passed(index), output_tail=bytes(4096)))
    queue.publish(grant.hold)
    broken = put(queue, make_batch(id="broken"))
    queue.cancel(broken)
    queue.client.set(keys.BatchKeys(broken).done, b"\xde\x00\x01")
    queue.client.xadd(keys.answers(queue.queue), {"k": "no key", "run": "a:b", "n": "many"})

    result = queue.result(mixed)
    assert result is not None
    gists = queue.gists([mixed, large, broken, "f" * 32])
    assert [gist[0] for gist in gists] == ["OK", "BIG", "GONE", "GONE"]
    assert _apart(gists[0]) == told_of(result)
    queue.lease(f"janitor:{queue.queue}", "leader", 60_000)
    assert AnswerCounter(queue, "another").round() == 0
    assert AnswerCounter(queue, "leader").round() == 4
    assert AnswerCounter(queue, "leader").round() == 0
    total = read_numbers(queue).total
    assert (total.batches, total.candidates, total.graded, total.infra, total.unread) == (4, 145, 142, 3, 2)
    assert (total.flags, total.recovered, total.codes) == ({"nan": 1, "cached": 1}, {"read": 1}, {"draining": 1})


@pytest.fixture
def own_server() -> Iterator[LocalRedis]:
    if not find_servers():
        pytest.skip("no redis server on this machine")
    with LocalRedis() as server:
        yield server


class Screen:
    """A command on a terminal of its own, and all that it wrote there."""

    def __init__(self, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        given = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(
            [*COLLIMATE, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=given, start_new_session=True
        )
        os.close(theirs)
        self.shown = b""
        self._ours = ours
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                return
            self.shown += piece

    def waits_for(self, text: str) -> None:
        """Until it is shown, from now on."""
        seen = len(self.shown)
        until(lambda: text.encode() in self.shown[seen:], f"{text!r} was never shown: {self.shown[-2000:]!r}")

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(10)
            os.close(self._ours)


@contextmanager
def screen(*arguments: str) -> Iterator[Screen]:
    made = Screen(*arguments)
    try:
        yield made
    finally:
        if made.process.returncode is None:
            made.end()


def test_top_says_that_redis_is_away_and_goes_on_when_it_is_back(own_server: LocalRedis) -> None:
    queue: Any = BatchQueue(connect_commands(own_server.url))
    put(queue, make_batch(run="patient"))
    with screen("top", "--interval", "0.2", "--redis", own_server.url) as top:
        top.waits_for("patient")
        own_server.kill()
        top.waits_for("Redis is away")
        own_server.start()
        top.waits_for("queued 0")
        assert top.end() == 0
    assert b"Traceback" not in top.shown
    queue.client.close()
    own_server.kill()
    gone = collimate("top", "--once", "--json", "--redis", own_server.url)
    assert (gone.exit_code, gone.stdout) == (3, "")
    assert "could not be reached" in gone.stderr
