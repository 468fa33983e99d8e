"""Verdicts of a real node: run again and explained, used again from the cache, and held to one grader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from collimate_rl.cli.app import app
from collimate_rl.client import CollimateClient
from collimate_rl.errors import GraderChanged
from collimate_rl.grading.version import grader_version
from collimate_rl.protocol import keys
from collimate_rl.protocol.manifest import record_of
from collimate_rl.queue.clients import connect_commands
from collimate_rl.replay.again import grade_again
from collimate_rl.replay.recorded import from_queue
from collimate_rl.replay.views import views_of
from collimate_rl.specs import AssertReward, PropertyReward, RewardSpec, StdioReward, TestFileReward, UnitTestReward
from producer import BatchHandle, Producer
from tests.fixtures.worker_nodes import Node

SECRET = 271828
SQUARES = UnitTestReward([{"input": 2, "expected": 4}, {"input": [3], "expected": 9}])
SPECS: dict[str, tuple[RewardSpec, list[str], list[float]]] = {
    "unit": (SQUARES, ["def solve(x): return x * x", "def solve(x): return x + 2", "def solve(x) return"], [1, 0.5, 0]),
    "property": (
        PropertyReward("    return x * 271828", "random.randrange(1, 10**6)", k=3),
        ["def solve(x): return x * 271828", "def solve(x): return x"],
        [1, 0],
    ),
    "stdio": (
        StdioReward([{"stdin": "1\n", "stdout": "271828\n"}, {"stdin": "2\n", "stdout": "2\n"}]),
        ["print(input())"],
        [0.5],
    ),
    "asserts": (
        AssertReward("assert solve(1) == 271828\nassert solve(2) == 2\n", entry="solve"),
        ["def solve(x): return x", "def solve(x): return 2 if x == 2 else 271828"],
        [0, 1],
    ),
    "test file": (
        TestFileReward("from solution import solve\n\ndef test_it():\n    assert solve(1) == 271828\n"),
        ["def solve(x): return 271828", "def solve(x): return x"],
        [1, 0],
    ),
}


@pytest.fixture
def producer(shared_server: str, shared_node: Node) -> Iterator[Producer]:
    with Producer(shared_server, run="replay") as made:
        yield made
    print(shared_node.words())


def graded(producer: Producer, spec: RewardSpec, candidates: list[str], **fields: Any) -> BatchHandle:
    handle = producer.submit(template="py", candidates=candidates, spec=spec, **fields)
    handle.result(60)
    return handle


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


@pytest.fixture
def here(shared_server: str, daemon_socket: str) -> tuple[str, ...]:
    return ("--redis", shared_server, "--backend", f"unix:{daemon_socket}")


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_batch_of_the_queue_is_run_again_and_explained(producer: Producer, here: tuple[str, ...], name: str) -> None:
    spec, candidates, rewards = SPECS[name]
    handle = graded(producer, spec, candidates, id=f"again-{name.replace(' ', '-')}", seed_mode="crn")
    assert [v.reward for v in handle.result(0).results] == rewards
    done = replay(f"replay/{handle.id}", *here, "--json")
    assert done.exit_code == 0, done.output
    told = [json.loads(line) for line in done.output.splitlines()]
    assert [(each["index"], each["same"], each["now"]["reward"]) for each in told] == [
        (index, True, reward) for index, reward in enumerate(rewards)
    ]
    for each, verdict in zip(told, handle.result(0).results, strict=True):
        assert each["seed"] == verdict.seed
        assert each["manifest"] == handle.manifest(verdict.index).as_json_data()
        assert each["manifest"]["python"] == verdict.python != ""
        assert each["manifest"]["node"] == "n1"
        assert each["then"]["grader_version"] == each["now"]["grader_version"] == grader_version()
    if name in ("stdio", "asserts", "test file"):
        assert str(SECRET) in json.dumps([case["expected"] for case in told[0]["cases"]])
    assert all(case["expected"] for each in told for case in each["cases"])
    assert all(case["came"] for each in told for case in each["cases"])
    words = replay(f"replay/{handle.id}", *here, "--index", "0")
    assert words.exit_code == 0
    assert "it is the same" in words.output


def test_cases_kept_with_the_batch_are_judged_again(producer: Producer, daemon_socket: str) -> None:
    spec, candidates, _ = SPECS["property"]
    handle = graded(producer, spec, candidates, id="kept", seed_mode="crn")
    cases = producer.queue.stored_cases(handle.k)
    assert cases is not None
    recorded = from_queue(handle.batch, handle.result(0), cases)
    again = grade_again(CollimateClient(unix_socket=daemon_socket), recorded, 1)
    assert again.differences == []
    assert [each.role for each in again.listener.passed] == ["runner"]
    views = views_of(again)
    assert [view.expected for view in views] == [str(int(view.came) * SECRET) for view in views]


def test_lines_of_results_stand_for_themselves(producer: Producer, here: tuple[str, ...], tmp_path: Path) -> None:
    spec, candidates, _ = SPECS["unit"]
    handle = graded(producer, spec, candidates, id="line")
    results = [verdict.as_json_data() for verdict in handle.result(0).results]
    line = {"id": "line", "results": results, "batch": record_of(handle.batch, with_inputs=True)}
    bare = {**line, "batch": record_of(handle.batch, with_inputs=False)}

    def run(told: dict[str, Any], *options: str) -> Result:
        file = tmp_path / "line.json"
        file.write_text(json.dumps(told))
        return replay(file, *options)

    backend = here[2:]
    assert run(line, *backend, "--index", "1").exit_code == 0
    assert run(bare, *here, "--index", "1").exit_code == 0
    gone = run(bare, *backend)
    assert gone.exit_code == 4
    assert "--with-inputs" in gone.output
    results[1]["reward"] = 0.25
    results[1]["cases"][0]["outcome"] = "timeout"
    differs = run(line, *backend, "--index", "1")
    assert differs.exit_code == 1
    assert "then 0.25, now 0.5" in differs.output
    assert "case 1: then timeout, now passed" in differs.output
    results[1]["grader_version"] = "1+000000000000"
    other = run(line, *backend, "--index", "1")
    assert other.exit_code == 4
    assert "1+000000000000" in other.output
    assert run(line, *backend, "--index", "1", "--anyway").exit_code == 1
    line["batch"]["template"] = "nowhere"
    assert run(line, *backend, "--index", "0").exit_code == 4
    line["batch"]["inputs"]["candidates"][0] = "def solve(x): return 4"
    edited = run(line, *backend)
    assert edited.exit_code == 4
    assert "edited" in edited.output


def test_what_is_not_there_cannot_be_replayed(here: tuple[str, ...]) -> None:
    done = replay("replay/never-was", *here)
    assert done.exit_code == 4
    assert "kept for a day" in done.output
    assert replay("no-such-file", *here).exit_code == 2


UNIQUE = "import os\nprint(os.urandom(8).hex())\ndef solve(x): return x * x\n"
"""What it prints tells one run from another."""
FAILS = "import os\nprint(os.urandom(8).hex())\ndef solve(x): return 0\n"
ENDLESS = "import os, time\nprint(os.urandom(8).hex())\ndef solve(x):\n    while True: time.sleep(1)\n"
SEED = "5e" * 32


def tails(handle: BatchHandle) -> list[bytes]:
    return [verdict.output_tail for verdict in handle.result(0).results]


def cached(handle: BatchHandle) -> list[bool]:
    return ["cached" in verdict.flags for verdict in handle.result(0).results]


def test_the_same_candidate_is_run_once_in_a_run_that_asks_for_it_until_it_is_purged(
    producer: Producer, shared_server: str
) -> None:
    pinned = {"seed_mode": "deterministic", "base_seed": SEED, "timeout_seconds": 3}
    codes = [UNIQUE, FAILS, UNIQUE, UNIQUE]
    with Producer(shared_server, run="cached", cache=True) as asks:
        first = graded(asks, SQUARES, codes, **pinned)
        assert [v.reward for v in first.result(0).results] == [1.0, 0.0, 1.0, 1.0]
        assert cached(first) == [False, False, True, True]
        assert len(set(tails(first))) == 2
        assert [v.exec_time_ms > 0 for v in first.result(0).results] == [True, True, False, False]
        second = graded(asks, SQUARES, [FAILS, UNIQUE, ENDLESS, ENDLESS], **pinned)
        assert cached(second) == [True, True, False, False]
        assert tails(second)[:2] == [tails(first)[1], tails(first)[0]]
        assert [v.outcome for v in second.result(0).results] == ["wrong_answer", "passed", "timeout", "timeout"]
        assert [v.index for v in second.result(0).results] == [0, 1, 2, 3]
        assert len(set(tails(second))) == 4
        third = graded(asks, SQUARES, [ENDLESS, UNIQUE], **{**pinned, "timeout_seconds": 2})
        assert cached(third) == [False, False]
        vanilla = graded(asks, SQUARES, [UNIQUE, UNIQUE])
        assert cached(vanilla) == [False, False]
        without = graded(asks, SQUARES, [UNIQUE], cache=False, **pinned)
        assert cached(without) == [False]
        client = connect_commands(shared_server)
        assert 0 < client.pttl(keys.cache("cached")) <= asks.queue.timing.keep_ms
        assert client.hlen(keys.cache("cached")) == 4  # two candidates, one of them under two limits, and the size
        asks.purge_run()
        assert client.exists(keys.cache("cached")) == 0
        # Another run, and one that does not ask.
        assert cached(graded(producer, SQUARES, [UNIQUE, UNIQUE], **pinned)) == [False, False]
        assert client.exists(keys.cache("replay")) == 0
        client.close()


def test_a_run_that_is_held_to_one_grader_refuses_another(shared_server: str, producer: Producer) -> None:
    def ask(run: str, version: str | None, **fields: Any) -> BatchHandle:
        with Producer(shared_server, run=run, grader_version=version, **fields) as held:
            handle = held.submit(template="py", candidates=["def solve(x): return x * x"], spec=SQUARES)
            handle.add_done_callback(lambda _: None)
            try:
                handle.result(60)
            except GraderChanged:
                pass  # looked at below
            return handle

    key = keys.grader("held", 0)
    client = producer.queue.client
    assert ask("held", "pin").result(0).results[0].grader_version == grader_version()
    assert client.get(key).decode() == grader_version()
    assert 0 < client.pttl(key) <= producer.queue.timing.keep_ms
    assert ask("held", "2").result(0).results[0].reward == 1.0
    client.set(key, "2+before")
    with pytest.raises(GraderChanged, match=r"held to 2\+before") as raised:
        ask("held", "pin").result(0)
    assert raised.value.error_code == "grader_changed"
    assert ask("held", None).result(0).results[0].reward == 1.0
    assert ask("held", "pin", epoch=1).result(0).results[0].reward == 1.0
