"""The whole product on this machine: Redis, sandbox daemon and worker, on unix sockets in one short-lived directory."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from collimate_rl.cli.interrupt import Interrupted
from collimate_rl.cli.processes import Child
from collimate_rl.client import CollimateClient
from collimate_rl.errors import CollimateError
from collimate_rl.queue.server import LocalRedis

START_S = 60.0
"""How long a part may take to come up on a loaded machine."""
WORKER_GRACE_S = 3
"""An interrupted run's batches are of no use to anybody."""
WORKER_STOP_S = 20.0
POLL_S = 0.05
LONGEST_TMPDIR = 60
QUEUE = "grade"
NODE = "demo"


class StackFailed(Exception):
    """A part of the stack did not start, or died; the message holds the end of its log."""


def start_daemon(socket: Path, log: Path, isolation: str = "namespaces") -> Child:
    """A sandbox daemon that will listen on `socket`; see `wait_for_daemon`."""
    argv = [sys.executable, "-m", "collimate_rl.local_backend", "--socket", str(socket), "--isolation", isolation]
    return Child.start("sandbox daemon", argv, log)


def wait_for_daemon(daemon: Child, socket: Path, watch: Callable[[], None] = lambda: None) -> None:
    """Until it serves; StackFailed when it ended or takes too long. `watch` is called between looks."""
    end = time.monotonic() + START_S
    with CollimateClient(unix_socket=socket, retries=0, timeout=5.0) as client:
        while not _serves(client):
            watch()
            if daemon.exit_code is not None or time.monotonic() > end:
                raise StackFailed(f"the sandbox daemon does not serve:\n{daemon.last_words()}")
            time.sleep(POLL_S)


def _serves(client: CollimateClient) -> bool:
    try:
        return client.health().get("status") == "ok"
    except CollimateError:
        return False  # not listening yet


class LocalStack:
    """Context manager: everything started, and everything stopped again, in order, also on failure.

    `check` is called between the steps of every wait; what it raises ends the wait (and then the stack).
    """

    def __init__(self, *, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        # a unix socket's path ends at 107 bytes, and TMPDIR may be long
        base = tempfile.gettempdir() if len(tempfile.gettempdir()) <= LONGEST_TMPDIR else "/tmp"
        self.directory = Path(tempfile.mkdtemp(prefix="collimate-", dir=base))
        self.socket = self.directory / "sandboxd.sock"
        self._redis: LocalRedis | None = None
        self._daemon: Child | None = None
        self._worker: Child | None = None
        self.keep_logs = False

    @property
    def logs(self) -> Path:
        """Where the logs of the parts are."""
        return self.directory / "logs"

    @property
    def redis_url(self) -> str:
        assert self._redis is not None, "the stack is not started"
        return self._redis.url

    def __enter__(self) -> LocalStack:
        try:
            self._start()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(exc)

    def _end(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, Interrupted):
            self.keep_logs = True
        self.stop()

    def client(self) -> CollimateClient:
        """A client of the sandbox daemon."""
        return CollimateClient(unix_socket=self.socket)

    def watch(self) -> None:
        """Raises StackFailed when a part died, and whatever `check` raises."""
        self._check()
        for child in (self._daemon, self._worker):
            if child is not None and child.exit_code is not None:
                raise StackFailed(f"the {child.name} ended with {child.exit_code}:\n{child.last_words()}")

    def _start(self) -> None:
        self.logs.mkdir()
        data = self.directory / "redis"
        data.mkdir()
        self._redis = LocalRedis(directory=data, options=(("logfile", str(self.logs / "redis.log")),)).start()
        self._check()
        self._daemon = start_daemon(self.socket, self.logs / "sandboxd.log")
        wait_for_daemon(self._daemon, self.socket, self.watch)
        cores = len(os.sched_getaffinity(0))
        argv = [sys.executable, "-m", "worker", "--queue", QUEUE, "--node", NODE]
        argv += ["--processes", str(max(2, cores)), "--slots", str(4 * cores), "--backend", f"unix:{self.socket}"]
        argv += ["--state-dir", str(self.directory / "worker"), "--grace", str(WORKER_GRACE_S)]
        env = {"COLLIMATE_REDIS_URL": self.redis_url}
        self._worker = Child.start("worker", argv, self.logs / "worker.log", env)

    def stop(self) -> None:
        """Worker, daemon, Redis, in that order; then the directory goes, but for the logs where they are wanted."""
        try:
            if self._worker is not None:
                self._worker.stop(WORKER_STOP_S)
        finally:
            try:
                if self._daemon is not None:
                    self._daemon.stop()
            finally:
                if self._redis is not None:
                    self._redis.stop()
                self._clear()

    def _clear(self) -> None:
        if not self.keep_logs:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        for entry in self.directory.iterdir():
            if entry == self.logs:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
