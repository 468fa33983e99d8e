"""Who may take a batch: no more processes than turns, each until its batch has nothing left to begin."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from rq.exceptions import DequeueTimeout

import worker.group_work
from collimate_rl.errors import CollimateError
from collimate_rl.grading.execute import ExecRequest, Executor
from collimate_rl.grading.result import GradeResult
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.rq_edge import BellQueue, Gate
from collimate_rl.sandbox import ExecResult
from tests.fixtures.queue_batches import make_batch, put
from worker import metrics
from worker.batch_job import run_batch
from worker.bench import Bench
from worker.executor import RetryPolicy
from worker.settings import MOST_PROCESSES, WorkerSettings
from worker.slots import Slots
from worker.tally import Board
from worker.turns import LOOK_S, WAIT_S, Turns, gate_of

GOOD = GradeResult(reward=1.0, outcome="passed", seed="ab" * 32, seed_ack="off", cases_total=1, cases_passed=1)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Callable[[], Turns]]:
    """Makes objects that share two turns, as processes do."""
    made: list[Turns] = []

    def make() -> Turns:
        made.append(Turns(tmp_path / "slots", 2))
        return made[-1]

    yield make
    for turns in made:
        turns.close()


def test_no_more_hold_a_turn_than_there_are(two: Callable[[], Turns]) -> None:
    first, second, third = two(), two(), two()
    assert [first.take(), first.take(), second.take(), third.take()] == [True, True, True, False]
    assert (first.held, second.held, third.held) == (True, True, False)
    first.give_back()
    first.give_back()
    assert [third.take(), first.take()] == [True, False]
    second.close()
    assert first.take()
    with pytest.raises(ValueError, match="at least one turn"):
        Turns(Path("nowhere"), 0)


def test_a_killed_holder_gives_its_turn_back(two: Callable[[], Turns], tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from worker.turns import Turns\n"
        "assert Turns(Path(sys.argv[1]), 2).take(); print('held', flush=True); time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "slots")]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=os.getcwd())
    here, other = two(), two()
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert here.take()
        assert not other.take()
    finally:
        holder.kill()
        holder.communicate(timeout=60)
    assert other.take()


class Watch:
    """A clock that moves by what is slept."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_the_gate_opens_with_a_turn_and_shuts_without_one(two: Callable[[], Turns]) -> None:
    here, other, third = two(), two(), two()
    watch = Watch()
    assert gate_of(here, lambda: Gate.GO, clock=watch, sleep=watch.sleep) is Gate.GO
    assert here.held
    assert gate_of(here, lambda: Gate.GO, clock=watch, sleep=watch.sleep) is Gate.GO
    assert other.take()
    assert watch.slept == []
    assert gate_of(third, lambda: Gate.GO, clock=watch, sleep=watch.sleep) is Gate.LATER
    assert watch.now >= WAIT_S
    assert (watch.slept[0], max(watch.slept)) == LOOK_S


def test_what_stops_or_pauses_ends_the_wait_and_gives_the_turn_back(two: Callable[[], Turns]) -> None:
    here, other, third = two(), two(), two()
    watch = Watch()
    assert here.take()
    assert other.take()
    asked = iter([Gate.GO, Gate.GO, Gate.STOP])
    assert gate_of(third, lambda: next(asked), clock=watch, sleep=watch.sleep) is Gate.STOP
    assert len(watch.slept) == 2
    assert gate_of(other, lambda: Gate.WAIT, clock=watch, sleep=watch.sleep) is Gate.WAIT
    assert not other.held
    assert third.take()


def test_a_gate_that_waited_itself_pops_nothing_and_sleeps_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waited(BellQueue):
        gate = staticmethod(lambda: Gate.LATER)

    monkeypatch.setattr("time.sleep", lambda _s: pytest.fail("it has waited already"))
    with fakeredis.FakeRedis() as client:
        client.rpush("rq:queue:grade", "bell")
        with pytest.raises(DequeueTimeout):
            Waited.lmove(client, "rq:queue:grade", 1)
        assert client.llen("rq:queue:grade") == 1


class _Inner:
    """An executor below slots and turns: notes who ran, and fails whom it is told to."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def run(self, request: ExecRequest, *, role: str, index: int | None) -> ExecResult:
        self.heard.append(("ran", index))
        raise CollimateError("no answer is needed here", None, "stopped")


class _Host:
    def stopping_for(self) -> float | None:
        return None

    def cancel_asked(self) -> bool:
        return False

    def tick(self) -> None:
        pass

    def backend_failed(self, error: CollimateError) -> None:
        pass

    def leave(self) -> None:
        raise AssertionError("a test's process stays")


@pytest.mark.parametrize("without_exec", [(), (2,), (0, 1, 2)])
def test_others_may_take_a_batch_once_every_candidate_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_exec: Sequence[int]
) -> None:
    """Once, when the last one has its slot and before it runs; or its grade, where that takes no exec."""
    heard: list[Any] = []

    def grade_group(execute: Executor, _spec: object, codes: Sequence[str], *, on_grade: Any, **_more: Any) -> None:
        for index in range(len(codes)):
            if index not in without_exec:
                with pytest.raises(CollimateError, match="no answer"):
                    execute.run(ExecRequest(code="pass"), role="runner", index=index)
                with pytest.raises(CollimateError, match="no answer"):
                    execute.run(ExecRequest(code="pass"), role="judge", index=index)
            on_grade(index, GOOD)

    monkeypatch.setattr(worker.group_work, "grade_group", grade_group)
    slots = Slots(tmp_path, 2)
    with fakeredis.FakeRedis() as client:
        bench = Bench(
            queue=BatchQueue(client, "grade"),
            worker="n1-0-aa",
            node="n1",
            executor_for=lambda _batch, _hold: _Inner(heard),
            slots=slots,
            retry=RetryPolicy(retries=0),
            hops=2,
            concurrency=4,
            grace_s=5.0,
            all_begun=lambda: heard.append("all begun"),
        )
        k = put(bench.queue, make_batch(k=3))
        assert run_batch(bench, _Host(), k) == "OK"
        result = bench.queue.result(k)
    slots.close()
    assert result is not None
    assert result.rewards() == [1.0, 1.0, 1.0]
    runs = [("ran", index) for index in range(3) if index not in without_exec for _ in range(2)]
    last = len(runs) - 2 if 2 not in without_exec else len(runs)
    assert heard == [*runs[:last], "all begun", *runs[last:]]


def test_how_many_processes_a_node_has() -> None:
    def of(processes: int, slots: int) -> tuple[int, int]:
        settings = WorkerSettings(processes=processes, slots=slots)
        return settings.first_processes, settings.most_processes

    assert of(3, 64) == (3, 3)
    assert of(0, 4) == (2, 6)
    assert of(0, 64) == (4, 68)
    assert of(0, 4096) == (256, MOST_PROCESSES)
    assert WorkerSettings().processes == 0
    node = WorkerSettings(slots=128)
    grown = [node.first_processes]
    while grown[-1] < node.most_processes:
        grown.append(node.more_processes(grown[-1]))
    assert grown[:4] == [8, 10, 12, 15]
    assert len(grown) < 16
    assert WorkerSettings(slots=4).more_processes(2) == 3


def test_a_board_sums_what_its_processes_are_at() -> None:
    board = Board(3)
    try:
        assert board.total(metrics.BATCHES_RUNNING) == 0.0
        for place in (0, 2):
            board.place(place).set(metrics.BATCHES_RUNNING, 1.0)
        assert board.total(metrics.BATCHES_RUNNING) == 2.0
    finally:
        board.close()


def test_calls_from_threads_take_one_turn_between_them(two: Callable[[], Turns]) -> None:
    here, other = two(), two()
    threads = [threading.Thread(target=here.take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert here.held
    assert other.take()
