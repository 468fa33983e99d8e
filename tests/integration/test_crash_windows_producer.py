"""A trainer is stopped at its own instants: what it submitted runs once, and what it missed waits for its next life."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collimate_rl.protocol import batch_key, keys
from tests.fixtures.crashes import Faults, Requests, StartFaulty, check_nothing_stayed
from tests.fixtures.fault_trainer import ID, RUN
from tests.fixtures.worker_batches import Audit
from tests.fixtures.worker_nodes import PATIENCE_S, hasty_timing, until

K = batch_key(RUN, 0, ID)
ANSWER = {"k": K, "answers": 1, "rewards": [1.0, 0.0]}
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def trainer(redis_url: str, faults: Faults) -> Iterator[Start]:
    """Starts trainers of one name; a plan switches on fault points for that one."""
    started: list[subprocess.Popen[str]] = []

    def start(plan: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.fixtures.fault_trainer", redis_url, "rank-0"]
        started.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=faults.around(plan)
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def answer(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return json.loads(out)


def unread(audit: Audit) -> int:
    """How many answers wait behind the trainer's cursor."""
    return int(audit.queue.client.xlen(keys.results(RUN, "rank-0")))


def test_a_trainer_killed_before_it_saw_that_it_had_submitted(
    faulty: StartFaulty, faults: Faults, trainer: Start, requests_to: Requests, audit: Audit
) -> None:
    started = faulty("")
    lost = trainer("submitted=kill")
    faults.killed("submitted")
    assert lost.wait(PATIENCE_S) == -signal.SIGKILL
    until(lambda: audit.queue.result(K), "its batch was never answered")
    assert unread(audit) == 1
    assert answer(trainer()) == ANSWER
    assert requests_to.execs == 2
    assert len(started.events("batch_published", k=K)) == 1
    assert unread(audit) == 0
    assert started.stop() == 0
    check_nothing_stayed(audit)


def test_a_trainer_killed_with_an_answer_that_it_had_not_acknowledged(
    faulty: StartFaulty, faults: Faults, trainer: Start, requests_to: Requests, audit: Audit
) -> None:
    started = faulty("")
    lost = trainer("result_taken=kill")
    faults.killed("result_taken")
    assert lost.wait(PATIENCE_S) == -signal.SIGKILL
    assert (unread(audit), audit.queue.client.exists(keys.cursor(RUN, "rank-0"))) == (1, 0)
    # Told by submit's own reply, and once more by what waits behind the cursor: once per handle all the same.
    assert answer(trainer()) == ANSWER
    assert (unread(audit), audit.queue.client.exists(keys.cursor(RUN, "rank-0"))) == (0, 1)
    assert requests_to.execs == 2
    assert started.stop() == 0
    check_nothing_stayed(audit)


def test_a_trainer_that_slept_past_its_names_lease_takes_nothing_from_the_next_one(
    faulty: StartFaulty, faults: Faults, trainer: Start, requests_to: Requests, audit: Audit
) -> None:
    started = faulty("")
    sleeper = trainer("result_taken=stop")
    faults.stopped("result_taken")
    until(lambda: not audit.queue.client.exists(keys.lease(f"producer:{RUN}:rank-0")), "the name's lease never ran out")
    assert answer(trainer()) == ANSWER
    cursor = audit.queue.client.get(keys.cursor(RUN, "rank-0"))
    faults.wake("result_taken")
    assert answer(sleeper) == ANSWER
    # Its late acknowledgement is of what the next one has acknowledged, too.
    assert audit.queue.client.get(keys.cursor(RUN, "rank-0")) == cursor
    assert (unread(audit), requests_to.execs) == (0, 2)
    assert answer(trainer()) == ANSWER
    assert started.stop() == 0
    check_nothing_stayed(audit)


def test_a_trainer_that_slept_over_its_submit_gets_the_answer_that_came_meanwhile(
    faulty: StartFaulty, faults: Faults, trainer: Start, requests_to: Requests, audit: Audit
) -> None:
    started = faulty("")
    sleeper = trainer("submitted=stop")
    faults.stopped("submitted")
    until(lambda: audit.queue.result(K), "its batch was never answered")
    time.sleep(hasty_timing().producer_lease_ms / 1000)
    faults.wake("submitted")
    assert answer(sleeper) == ANSWER
    assert (unread(audit), requests_to.execs) == (0, 2)
    assert started.stop() == 0
    check_nothing_stayed(audit)
