"""What this machine does at best, with nothing of the product: clones, round trips. The figures are told against it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import Contender, median, percentile, rates
from benchmarks.report import Section, Table
from benchmarks.work import SPEC, candidates
from collimate_rl.queue.server import LocalRedis
from collimate_rl.sandboxd.inside import syscalls
from collimate_rl.sandboxd.inside.init import FORK_FLAGS

CLONES = 60
TRIPS = 2000
_CLONE_NEWUSER = 0x10000000
EMPTY, WORK = "clone, all namespaces, reap", "clone, all namespaces, ten calls, reap"
FORK = "fork, ten calls, reap"
_HTTP = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"status":"ok"}'
_ASK = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def all_flags() -> int:
    """The namespaces that an exec of the daemon gets; whoever isn't root needs one of users around them."""
    return FORK_FLAGS | syscalls.CLONE_NEWPID | (0 if os.geteuid() == 0 else _CLONE_NEWUSER)


def run_cases() -> None:
    """What a candidate of `work` has to compute: its source compiled and loaded, ten calls, ten comparisons."""
    names: dict[str, object] = {}
    exec(candidates(1)[0], names)
    solve = names["solve"]
    assert callable(solve)
    for test in SPEC.tests:
        if solve(*test["input"]) != test["expected"]:
            os._exit(1)


def clones(flags: int, inside: Callable[[], object], count: int = CLONES) -> Callable[[], None]:
    """A function that makes `count` children in each of as many processes as there are cores, one after the other."""

    def run() -> None:
        pids = []
        for core in sorted(os.sched_getaffinity(0)):
            pid = os.fork()
            if pid == 0:
                _clone_on(core, flags, inside, count)
            pids.append(pid)
        ended = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(ended):
            raise RuntimeError("a bare clone failed")

    return run


def _clone_on(core: int, flags: int, inside: Callable[[], object], count: int) -> None:
    """In a child: never returns."""
    code = 1
    try:
        os.sched_setaffinity(0, {core})
        for _ in range(count):
            pid, pidfd = syscalls.clone(flags) if flags else (os.fork(), -1)
            if pid == 0:
                inside()
                os._exit(0)
            if pidfd >= 0:
                os.close(pidfd)
            if os.waitpid(pid, 0)[1] != 0:
                break
        else:
            code = 0
    except OSError as error:
        print(f"clone: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def clone_contenders() -> dict[str, Contender]:
    """The floors under anything that isolates, on all cores together."""
    units = CLONES * len(os.sched_getaffinity(0))
    return {
        EMPTY: Contender(run=clones(all_flags(), lambda: None), units=units),
        WORK: Contender(run=clones(all_flags(), run_cases), units=units),
        FORK: Contender(run=clones(0, run_cases), units=units),
    }


def redis_trips(url_path: Path, count: int) -> list[float]:
    """Milliseconds of PING and its answer, over a plain socket."""
    return _trips(url_path, b"*1\r\n$4\r\nPING\r\n", len(b"+PONG\r\n"), count)


def http_trips(directory: Path, count: int) -> list[float]:
    """Milliseconds of a request without a body and its answer, the server another process with one thread."""
    path = directory / "bare-http.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        server = os.fork()
        if server == 0:
            _answer(listener)
        try:
            return _trips(path, _ASK, len(_HTTP), count)
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)


def _answer(listener: socket.socket) -> None:
    """In a child: never returns."""
    try:
        peer, _ = listener.accept()
        while peer.recv(65536):
            peer.sendall(_HTTP)
    finally:
        os._exit(0)


def _trips(path: Path, ask: bytes, answer: int, count: int) -> list[float]:
    took = []
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(30.0)
        peer.connect(str(path))
        for _ in range(count):
            began = time.perf_counter()
            peer.sendall(ask)
            left = answer
            while left > 0:
                data = peer.recv(65536)
                if not data:
                    raise RuntimeError("the peer of a bare round trip hung up")
                left -= len(data)
            took.append((time.perf_counter() - began) * 1000)
    return took


def measure(rounds: int) -> Section:
    """Clones per second and round trips in milliseconds."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp")))
        redis = stack.enter_context(LocalRedis())
        trips = {
            "Redis round trip (PING)": redis_trips(redis.socket_path, TRIPS),
            "HTTP round trip": http_trips(directory, TRIPS),
        }
        cloned = rates(clone_contenders(), rounds)
    return Section(
        tables=(
            Table(
                key="clones",
                title="floors: children per second, all cores together",
                columns=("what", "median", "lowest", "highest"),
                rows=tuple((name, median(v), min(v), max(v)) for name, v in cloned.items()),
            ),
            Table(
                key="trips",
                title="floors: round trips over a unix socket, milliseconds",
                columns=("what", "p50", "p99"),
                rows=tuple((name, median(v), percentile(v, 99)) for name, v in trips.items()),
            ),
        ),
        data={"clones per second": cloned},
    )
