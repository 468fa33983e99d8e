"""The whole queue under load for long: every answer is the right one, counted once, and what each process and the
server hold stays flat.

The short form is part of the suite. `make soak` runs the long one (SOAK=long): 100,000 candidates. SOAK_CANDIDATES=<n>
in the environment makes it so many.
"""

from __future__ import annotations

import gc
import os
import socket
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import connect_commands
from collimate_rl.queue.numbers import read_numbers
from collimate_rl.queue.server import LocalRedis, find_servers
from producer import BatchHandle, Producer
from tests.fixtures.acl_users import as_user, shared
from tests.fixtures.dashboards import DashboardProcess
from tests.fixtures.leftovers import without_lifetime
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.sandboxd_wire import descendants
from tests.fixtures.scrapes import Pages
from tests.fixtures.worker_batches import SPEC
from tests.fixtures.worker_nodes import Node, until
from worker.settings import parse_timing

LONG = os.environ.get("SOAK") == "long"
CANDIDATES = int(os.environ.get("SOAK_CANDIDATES", "100000" if LONG else "400"))
LEGS = 5 if LONG else 1
GROUP = 16
AT_ONCE = 24
"""Batches that are unanswered at once."""
WARM_UP = 320 if LONG else 96
SLOTS = 8
POOLED = 2 * SLOTS
"""Connections (and the daemon's threads for them) that are kept open once they were needed; a leak goes past that."""
PATIENCE_S = 300.0
KEEP_MS = 30_000 if LONG else 6_000
TIMING = (
    f"keep_ms={KEEP_MS},bell_ms=6000,lease_ms=60000,alive_ms=45000,renew_every_ms=2000,beat_every_ms=500,gap_ms=30000"
)
"""Keys of answered batches go soon, so that they can be seen to go, and not before a trainer that hardly gets a
processor has read its answer; leases outlast whatever else the machine does."""
BODIES = (
    ("def solve(x):\n    return x + 1\n", 1.0, "passed"),
    ("def solve(x):\n    return 1 - x\n", 0.0, "wrong_answer"),
    ("def solve(x):\n    return 2 * x\n", 0.5, "wrong_answer"),
    ("def solve(x):\n    raise RuntimeError('no')\n", 0.0, "runtime_error"),
)
RQ_KEPT = ("rq:job", "rq:results")
"""rq keeps what it knows of a job for a minute. The short form does not wait for that, and sees that it will end."""
PASSING = tuple(
    f"keys.{name}"
    for name in (
        "col:batch", "col:state", "col:verdicts", "col:done", "col:ledger", "col:askers", "col:cases", "col:flight",
        "rq:executions", *RQ_KEPT,
    )
    if LONG or name not in RQ_KEPT
)  # fmt: skip
"""Keys of one batch."""
NUMBERS = ("col:tally", "col:series")
"""Keys of what was counted in ten seconds, or in an hour; each has a lifetime."""
MAX_NUMBER_KEYS = 150
MEMORY_BOUND_KIB = {"server": 8192, "worker": 6144, "supervisor": 4096, "dashboard": 6144, "trainer": 8192}
MEMORY_BOUND_KIB |= {"daemon": 4096, "interpreters": 8192}


@dataclass(frozen=True)
class Soaked:
    """Everything that takes part, as it stands."""

    server: LocalRedis
    daemon: RunningDaemon
    node: Node
    dashboard: DashboardProcess
    queue: BatchQueue

    def processes(self) -> dict[str, list[int]]:
        """Pids by what they are; which these are must never change."""
        return {
            "server": [int(self.server.pid or 0)],
            "supervisor": [self.node.pid],
            # Not by its log, which grows: this process would grow with what it reads.
            "worker": sorted(descendants(self.node.pid)),
            "dashboard": [self.dashboard.process.pid],
            "daemon": [self.daemon.pid],
            "interpreters": sorted(descendants(self.daemon.pid)),
            "trainer": [os.getpid()],
        }

    def held(self) -> dict[str, int]:
        """`fds.X`, `threads.X` and `memory.X` (KiB) of each kind of process, and `keys.X` on the server."""
        found = Counter[str]()
        for name, pids in self.processes().items():
            found[f"processes.{name}"] = len(pids)
            for pid in pids:
                try:
                    fds, threads = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task"))
                    memory = memory_kib(pid)
                except OSError:
                    continue  # a sandbox of one of the nodes' looks at the daemon, which ended just now
                found.update({f"fds.{name}": fds, f"threads.{name}": threads, f"memory.{name}": memory})
        names: Any = self.queue.client.scan_iter(count=1000)
        for raw in names:
            kind = ":".join(raw.decode().split(":")[:2])
            found["keys.numbers" if kind in NUMBERS else f"keys.{kind}"] += 1
        return dict(found)

    def at_rest(self, like: dict[str, int] | None) -> dict[str, int]:
        """What is held once keys of answered batches have run out, and nothing is above what it was."""
        deadline = time.monotonic() + PATIENCE_S
        gc.collect()
        equal, found = 0, self.held()
        while True:
            time.sleep(0.2)
            before, found = found, self.held()
            equal = equal + 1 if counted(found) == counted(before) else 0
            left = {name: n for name, n in found.items() if name.startswith(PASSING)}
            more = {} if like is None else above_of(counted(found), like)
            if not left and not more and (like or equal >= 5):
                return found
            assert time.monotonic() < deadline, f"left: {left}; more than before: {more}"


def above_of(found: dict[str, int], like: dict[str, int]) -> dict[str, tuple[int, int]]:
    """What is above what it was, but for pools that hold what was needed at once so far."""
    allowed = {name: like.get(name, 0) + (POOLED if name.startswith(("fds.", "threads.")) else 0) for name in found}
    return {name: (like.get(name, 0), n) for name, n in found.items() if n > allowed[name]}


def counted(held: dict[str, int]) -> dict[str, int]:
    """What must come back to the very number."""
    left_out = ("memory.", "keys.numbers", *(() if LONG else (f"keys.{name}" for name in RQ_KEPT)))
    return {name: n for name, n in held.items() if not name.startswith(left_out)}


def memory_kib(pid: int) -> int:
    """What is the process' own: pages that it shares with others are counted where they are held."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


@pytest.fixture(scope="module")
def soaked(sandbox_daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soaked]:
    if not find_servers():
        pytest.skip("no Redis or Valkey server on this machine")
    folder = tmp_path_factory.mktemp("soak")
    backend = f"unix:{sandbox_daemon.socket_path}"
    with shared() as server:
        node = Node(
            folder, server.url, backend, processes=2, slots=SLOTS, metrics_port=0, timing=TIMING, log_level="info"
        ).start()
        dashboard = None
        client = connect_commands(server.url)
        try:
            node.wait_for("worker_ready", count=2)
            dashboard = DashboardProcess(as_user(server.url, "dashboard"), log=folder / "dashboard.log")
            yield Soaked(server, sandbox_daemon, node, dashboard, BatchQueue(client, timing=parse_timing(TIMING)))
            assert dashboard.stop() == 0
            assert node.stop() == 0
            troubles = ("loop_failed", "batch_error", "process_ended", "backend_down", "redis_down")
            assert {name: found for name in troubles if (found := node.events(name))} == {}
            assert "Traceback" not in dashboard.log.read_text() + node.log.read_text()
        finally:
            client.close()
            if dashboard is not None:
                dashboard.end()
            node.end()


@pytest.fixture
def watcher(soaked: Soaked) -> Iterator[None]:
    """A page that stays open all the while."""
    with socket.create_connection(("127.0.0.1", soaked.dashboard.port), timeout=60) as peer:
        peer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 OK" in peer.recv(4096)
        reading = threading.Thread(target=lambda: [None for _ in iter(lambda: _heard(peer), b"")])
        reading.start()
        yield
        peer.shutdown(socket.SHUT_RDWR)
        reading.join(60)


def _heard(peer: socket.socket) -> bytes:
    try:
        return peer.recv(65536)
    except TimeoutError:
        return b""


class Leg:
    """One piece of the load: its batches, and what came back."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.wrong: list[str] = []

    def run(self, producer: Producer) -> None:
        """Submits as fast as the window lets it, and looks at each answer."""
        handles: deque[tuple[range, BatchHandle]] = deque()
        for start in range(self.first, self.first + self.count, GROUP):
            numbers = range(start, min(start + GROUP, self.first + self.count))
            # No two candidates are alike, so that each of them runs.
            texts = [f"# {number}\n{BODIES[number % len(BODIES)][0]}" for number in numbers]
            handles.append((numbers, producer.submit(template="py", candidates=texts, spec=SPEC, id=f"b{start}")))
            while len(handles) > 2 * AT_ONCE:  # a trainer that kept all answers would grow with them
                self._look(*handles.popleft())
        while handles:
            self._look(*handles.popleft())

    def _look(self, numbers: range, handle: BatchHandle) -> None:
        result = handle.result(timeout=PATIENCE_S)
        wanted = [BODIES[number % len(BODIES)][1:] for number in numbers]
        found = [(verdict.reward, verdict.outcome) for verdict in result.results]
        if found != wanted:
            self.wrong.append(f"{result.id}: {found} instead of {wanted}"[:500])


def test_everything_stays_flat_and_every_candidate_counts_once(
    soaked: Soaked, watcher: None, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = Pages.of(soaked.node)
    with Producer(
        soaked.server.url, run="soak", name="rank-0", window=AT_ONCE, timing=parse_timing(TIMING)
    ) as producer:
        samples: list[dict[str, int]] = []
        done = 0
        for leg_number in range(LEGS + 1):
            started = time.monotonic()
            count = CANDIDATES // LEGS if leg_number else WARM_UP
            leg = Leg(done, count)
            leg.run(producer)
            took = time.monotonic() - started
            assert leg.wrong == []
            done += count
            pages.numbers()
            assert soaked.dashboard.get("/").status == soaked.dashboard.get("/batches").status == 200
            samples.append(soaked.at_rest(samples[0] if samples else None))
            if LONG:
                with capsys.disabled():
                    _show(count, took, samples)
    expected = Counter(BODIES[number % len(BODIES)][2] for number in range(done))
    rewards = sum(BODIES[number % len(BODIES)][1] for number in range(done))
    until(lambda: read_numbers(soaked.queue).uncounted == 0, "answers were not counted")
    total = read_numbers(soaked.queue).total
    assert (total.candidates, total.graded, total.infra, total.unread) == (done, done, 0, 0)
    assert total.outcomes == expected
    assert total.mean_reward == pytest.approx(rewards / done)
    assert pages.sums("collimate_candidates_graded_total") == expected
    assert pages.sums("collimate_batches_published_total") == {"graded": total.batches}
    assert samples[-1]["keys.numbers"] <= MAX_NUMBER_KEYS
    assert [name for name in without_lifetime(soaked.queue.client) if not name.startswith("rq:")] == []
    assert [name for name in without_lifetime(soaked.queue.client) if name.startswith(RQ_KEPT)] == []
    grown = {name: above(samples, name) for name in samples[0] if name.startswith("memory.")}
    assert {name: n for name, n in grown.items() if n > MEMORY_BOUND_KIB[name.removeprefix("memory.")]} == {}


def above(samples: list[dict[str, int]], name: str) -> float:
    """How much higher the last third lies than the first, by medians; what warms up is left out where there is more."""
    values = [one[name] for one in (samples[1:] if LONG else samples)]
    third = max(1, len(values) // 3)
    return statistics.median(values[-third:]) - statistics.median(values[:third])


def _show(count: int, took: float, samples: list[dict[str, int]]) -> None:
    last = samples[-1]
    shown = {name: n for name, n in sorted(last.items()) if len(samples) == 1 or n != samples[0].get(name)}
    said = "held" if len(samples) == 1 else "what differs since the first"
    print(f"\n{count} candidates in {took:.0f} s; {said}: {shown}", flush=True)
