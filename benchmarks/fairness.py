"""How long a run's 10 batches take beside a run with 10,000 to submit, and alone, on the queue without sandboxes."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

from collimate_rl.protocol import GradeBatch, Verdict, batch_key, content_hash, keys
from collimate_rl.queue.batches import DEFAULT_WINDOW, BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.replies import Submitted
from collimate_rl.queue.server import LocalRedis

LIGHT, HEAVY, WORKERS = 10, 10_000, 2
WORK_S = 0.02
"""What one batch takes a worker: so much more than the queue itself that its order decides."""
LIMIT_S = 120.0


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds from the first submit of the 10 to their last answer, per round and contender."""
    measured: dict[str, list[float]] = {"10 batches alone": [], f"beside {HEAVY:,}": []}
    with LocalRedis() as server:
        for number in range(rounds):
            measured["10 batches alone"].append(_round(server.url, number, beside=False))
            measured[f"beside {HEAVY:,}"].append(_round(server.url, number, beside=True))
    return measured


def _round(url: str, number: int, *, beside: bool) -> float:
    stop = threading.Event()
    with ExitStack() as stack:
        client = connect_commands(url)
        stack.callback(client.close)
        client.flushdb()
        queue = BatchQueue(client)
        threads = [threading.Thread(target=_work, args=(url, f"w{place}", stop)) for place in range(WORKERS)]
        if beside:
            threads.append(threading.Thread(target=_submit_heavy, args=(url, number, stop)))
        stack.callback(_stop, stop, threads)
        for thread in threads:
            thread.start()
        if beside:
            _until(lambda: len(queue.inflight("heavy")) >= DEFAULT_WINDOW)
        began = time.perf_counter()
        ks = [_submit(queue, "light", f"{number}-{n}") for n in range(LIGHT)]
        _until(lambda: all(k is not None and queue.result(k) is not None for k in ks))
        return time.perf_counter() - began


def _submit(queue: BatchQueue, run: str, id: str) -> str | None:
    """The batch's k; None while the run's window is full."""
    batch = GradeBatch(
        run=run,
        id=id,
        producer="bench",
        template="py",
        candidates=("pass",),
        spec='{"type": "unit_test"}',
        seeds=(None,),
    )
    k = batch_key(run, 0, id)
    return None if queue.submit(k, batch, content_hash(batch)).word is Submitted.WINDOW else k


def _submit_heavy(url: str, number: int, stop: threading.Event) -> None:
    client = connect_commands(url)
    queue = BatchQueue(client)
    sent = 0
    while sent < HEAVY and not stop.is_set():
        if _submit(queue, "heavy", f"{number}-{sent}") is None:
            time.sleep(WORK_S / 4)
        else:
            sent += 1
    client.close()


def _work(url: str, name: str, stop: threading.Event) -> None:
    client: Any = connect_commands(url)
    queue = BatchQueue(client)
    verdict = Verdict(index=0, reward=1.0, outcome="passed")
    served = 0
    while not stop.is_set():
        job = client.lpop(keys.rq_queue(queue.queue))
        if job is None:
            time.sleep(0.001)
            continue
        served += 1
        grant = queue.claim(job.decode()[:32], f"{name}-{served}", name, "n").grant
        if grant is not None:
            time.sleep(WORK_S)
            queue.verdict(grant.hold, verdict)
            queue.publish(grant.hold)
    client.close()


def _until(condition: Any) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("the queue made no progress")
        time.sleep(0.002)


def _stop(stop: threading.Event, threads: list[threading.Thread]) -> None:
    stop.set()
    for thread in threads:
        thread.join(LIMIT_S)
