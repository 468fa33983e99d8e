"""Hundreds of requests, one in ten of them faulty, and no more descriptors, threads or memory than at the start.

REPEAT=<n> in the environment sends n times as many (40: the twenty thousand).
"""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from collimate_rl._retry import IDEMPOTENT, RetryPolicy
from collimate_rl._transport import Sender
from collimate_rl.errors import CollimateError
from tests.fixtures.scripted_server import EXEC_ANSWER, Request, answer, frame, hang_up, raw, refuse, reset
from tests.fixtures.transports import World

COUNT = 500 * int(os.environ.get("REPEAT", "1"))
SLICE = 250
THREADS = 8
MEMORY_SLACK = 16 << 20

FAULTS = (
    hang_up,
    reset,
    refuse(503, "at_capacity"),
    answer(EXEC_ANSWER, 200, "Connection: close\r\n"),
    raw(b"garbage\r\n\r\n", keep=False),
    raw(frame(b"x" * 200_000)[:-1], keep=False),
    answer({}, 302, "Location: /elsewhere\r\n"),
)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_soak(world: World) -> None:
    numbers = count()
    fine = answer({**EXEC_ANSWER, "stdout": "x" * 5000})

    def behave(peer: object, request: Request) -> bool:
        number = next(numbers)
        return (FAULTS[number // 10 % len(FAULTS)] if number % 10 == 9 else fine)(peer, request)  # type: ignore[arg-type]

    world.server.keeps = False
    world.server.default = behave
    transport = world.make()
    sender = Sender(transport, RetryPolicy(), sleep=lambda _: None)
    body = {"code": "y" * 3000}

    def send(_: int) -> bool:
        try:
            return bool(sender.json("POST", "/v1/exec", body, rule=IDEMPOTENT, timeout_s=60))
        except CollimateError:
            return False

    def settled() -> tuple[int, int, int]:
        transport.close()
        world.server.wait_until(lambda: not world.server._serving)
        gc.collect()
        # A proxy's threads end a little after the connections that they passed on.
        counts = (0, 0)
        for _ in range(100):
            before, counts = counts, (open_files(), threading.active_count())
            if counts == before:
                break
            time.sleep(0.2)
        return *counts, resident()

    def run(requests: int) -> None:
        # In slices: what a pool has waiting is memory too.
        assert sum(sum(pool.map(send, range(SLICE))) for _ in range(requests // SLICE)) >= requests * 0.9

    with ThreadPoolExecutor(THREADS) as pool:
        run(SLICE)
        files, threads, memory = settled()
        run(COUNT)
        files_after, threads_after, memory_after = settled()
    assert (files_after, threads_after) == (files, threads)
    assert memory_after - memory < MEMORY_SLACK
