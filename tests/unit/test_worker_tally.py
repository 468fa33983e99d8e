"""Counts in shared memory: exact over threads and processes, kept over kill -9, in no more room than at the start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from worker import metrics
from worker.metrics import ABSENT, FAMILIES, INFOS
from worker.metrics_page import MetricsPage
from worker.names import place_of, worker_name
from worker.tally import ROW_BYTES, Board, Tally

CHILD = """
import os, sys, time
from worker import metrics
from worker.tally import Tally
tally = Tally.attach(int(sys.argv[1]), int(sys.argv[2]))
tally.set(metrics.PROCESSES_READY, 1.0)
for _ in range(int(sys.argv[3])):
    tally.add(metrics.CANDIDATES_GRADED, "passed")
    tally.observe(metrics.EXEC_SECONDS, 0.2)
print("done", flush=True)
time.sleep(60)
"""


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board(2)
    yield made
    made.close()


def page(board: Board) -> dict[str, float]:
    text = MetricsPage(board, node="n", queue="q").text().decode()
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def run_and_kill(board: Board, place: int, times: int) -> None:
    argv = [sys.executable, "-c", CHILD, str(board.descriptor), str(place), str(times)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=(board.descriptor,))
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"done\n"
        child.send_signal(signal.SIGKILL)
        child.wait(60)


def test_a_killed_process_loses_no_count_and_its_successor_goes_on(board: Board) -> None:
    run_and_kill(board, 0, 300)
    run_and_kill(board, 1, 20)
    told = page(board)
    assert told["collimate_candidates_graded_total[passed]"] == 320
    assert told["collimate_worker_processes_ready"] == 2
    board.place(0).clear_gauges()
    run_and_kill(board, 0, 5)
    board.place(0).clear_gauges()
    told = page(board)
    assert told["collimate_candidates_graded_total[passed]"] == 325
    assert told["collimate_exec_seconds_count"] == 325
    assert told["collimate_exec_seconds_sum"] == pytest.approx(65.0)
    assert told["collimate_worker_processes_ready"] == 1


def test_a_thousand_processes_in_one_place_take_no_more_room_than_one(board: Board) -> None:
    size, files = os.fstat(board.descriptor).st_size, len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        Tally.attach(os.dup(board.descriptor), 0).add(metrics.BATCHES_CLAIMED)
    assert page(board)["collimate_batches_claimed_total"] == 1000
    assert os.fstat(board.descriptor).st_size == size == 3 * ROW_BYTES
    assert os.fstat(board.descriptor).st_nlink == 0  # nothing lies on a disk
    assert len(os.listdir("/proc/self/fd")) == files


def test_threads_count_exactly(board: Board) -> None:
    tally = board.place(0)

    def count() -> None:
        for _ in range(2000):
            tally.add(metrics.BATCHES_CLAIMED)
            tally.observe(metrics.EXEC_SECONDS, 0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.read(metrics.BATCHES_CLAIMED) == {"": [8000.0]}
    assert page(board)["collimate_exec_seconds_count"] == 8000


def test_an_observation_falls_into_the_bucket_that_it_fits(board: Board) -> None:
    for seconds in (0.0005, 0.001, 0.0011, 11.0, -3.0):
        board.own.observe(metrics.FORK_SECONDS, seconds)
    told = page(board)
    assert told["collimate_fork_seconds_bucket[0.001]"] == 3
    assert told["collimate_fork_seconds_bucket[0.0025]"] == 4
    assert told["collimate_fork_seconds_bucket[10.0]"] == 4
    assert told["collimate_fork_seconds_bucket[+Inf]"] == told["collimate_fork_seconds_count"] == 5
    assert told["collimate_fork_seconds_sum"] == pytest.approx(11.0026)


def test_what_is_unknown_is_other_or_nothing_and_never_a_failure(board: Board) -> None:
    board.own.add(metrics.INFRA_ERRORS, '"} 1\nevil_total 7')
    board.own.add(metrics.CANDIDATES_GRADED, "no outcome of ours")
    told = page(board)
    assert told["collimate_infra_errors_total[other]"] == 1
    assert sum(number for name, number in told.items() if name.startswith("collimate_candidates_graded")) == 0
    assert "evil_total" not in told


def test_a_gauge_that_says_nothing_is_left_out(board: Board) -> None:
    board.own.set(metrics.QUEUE_NODES, ABSENT)
    assert "collimate_queue_nodes" not in page(board)
    board.own.set(metrics.QUEUE_NODES, 3)
    assert page(board)["collimate_queue_nodes"] == 3


def test_every_name_is_by_the_conventions() -> None:
    for name, family in FAMILIES.items():
        assert name.startswith("collimate_"), name
        assert name.endswith("_total") == (family.kind == "counter"), name
        assert (family.kind != "histogram") or (name.endswith("_seconds") and family.buckets), name
        assert family.help.endswith("."), name
        assert len(set(family.values)) == len(family.values) <= 64, name
        assert (family.values == ("",)) == (family.label == ""), name
        assert list(family.buckets) == sorted(family.buckets), name
    assert set(INFOS).isdisjoint(FAMILIES)


def test_the_page_shows_every_family(board: Board) -> None:
    shown = {
        family.name
        for family in text_string_to_metric_families(MetricsPage(board, node="n", queue="q").text().decode())
    }
    assert shown == {name.removesuffix("_total") for name in FAMILIES} | set(INFOS)


def test_a_name_tells_its_place() -> None:
    assert place_of(worker_name("a-7-b", "12")) == 12
