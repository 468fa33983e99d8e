"""A node on this machine whose worker processes can be killed: Redis, sandbox daemon, supervisor, default timing."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from benchmarks.daemons import Daemon
from collimate_rl.cli.processes import Child
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.server import LocalRedis
from producer import Producer
from worker.process import ProcessId
from worker.settings import default_slots

QUEUE, NODE = "bench", "bench"
LIMIT_S = 60.0


def until(condition: Callable[[], object], what: str, *, every_s: float = 0.002) -> None:
    """Wait for `condition`, at most LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {LIMIT_S:g} s in vain: {what}")
        time.sleep(every_s)


class Site:
    """Context manager: a Redis server and a sandbox daemon; `workers` starts a supervisor beside them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self.starts = 0

    def __enter__(self) -> Site:
        with ExitStack() as stack:
            self.redis = stack.enter_context(LocalRedis())
            self.daemon = stack.enter_context(Daemon(self._directory / "site.sock"))
            client = connect_commands(self.redis.url)
            stack.callback(client.close)
            self.queue = BatchQueue(client, QUEUE)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextmanager
    def workers(self, processes: int, slots: int | None = None) -> Iterator[None]:
        """A supervisor with so many worker processes, all of them waiting for a bell; four slots per core by default.

        0 processes: two, and as many more as it starts by itself.
        """
        self.starts += 1
        argv = [sys.executable, "-m", "worker", "--queue", QUEUE, "--node", NODE, "--processes", str(processes)]
        argv += ["--slots", str(slots or default_slots())]
        argv += ["--backend", f"unix:{self._directory / 'site.sock'}", "--grace", "3"]
        argv += ["--state-dir", str(self._directory / "state")]
        log = self._directory / f"worker-{self.starts}.log"
        child = Child.start("worker", argv, log, {"COLLIMATE_REDIS_URL": self.redis.url})
        try:
            until(lambda: log.read_text().count("worker_ready") >= (processes or 2), "workers")
            yield
        finally:
            child.stop(20.0)

    def producer(self) -> Producer:
        return Producer(self.redis.url, run="bench", queue=QUEUE)

    def kill_owner(self, k: str) -> float:
        """SIGKILL to the worker process that owns batch `k`; returns when, on `time.perf_counter`."""
        found = [worker for worker, owned in self.queue.owned(NODE).items() if owned == k]
        process = ProcessId.parse(self.queue.who_is_alive(found)[found[0]]) if found else None
        if process is None:
            raise RuntimeError("nobody owns the batch any more: it was too short to kill its worker in")
        os.kill(process.pid, signal.SIGKILL)
        return time.perf_counter()

    def is_owned(self, k: str) -> bool:
        return k in self.queue.owned(NODE).values()
