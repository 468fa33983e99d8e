"""The daemon under load for long: every answer is the right one, and what it holds of the machine stays flat.

The short form is part of the suite. `make soak` runs the long one (SOAK=long): 20,000 execs, 2,000 sessions, and 1,000
sessions at once. SOAK_EXECS=<n> in the environment makes it so many execs, and a tenth as many sessions.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from collimate_rl import CollimateClient, CollimateError
from tests.fixtures import port_server
from tests.fixtures.resources import COUNTED, MEMORY_KIB, at_rest, first_rest, sample
from tests.fixtures.sandbox_daemon import NoIsolation, RunningDaemon, start_daemon
from tests.fixtures.sandboxd_wire import UnixConnection, call, eventually

LONG = os.environ.get("SOAK") == "long"
EXECS = int(os.environ.get("SOAK_EXECS", "20000" if LONG else "420"))
SESSIONS = EXECS // 10 if LONG else 60
LEGS = 10 if LONG else 3
AT_ONCE = 1000 if LONG else 100
BURST = 64
THREADS = 16
MEMORY_BOUND_KIB = {"daemon_rss": 3072, "interpreters_rss": 8192, "groups_memory": 16384}
"""How far the last legs may lie above the first ones. A hundred bytes lost per exec would be 2 MB in the long form."""
CONFIG = """
[templates.web]
entry = "port_server:main"
expose_ports = [9000]
data = {{ "/srv/env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/env" }}
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("soak")
    data = folder / "data"
    data.mkdir(mode=0o755)
    shutil.copy(port_server.__file__, data)
    config = folder / "collimate.toml"
    config.write_text(CONFIG.format(data=data))
    try:
        own = start_daemon("--config", str(config))
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")
    yield own
    status = own.stop()
    words = own.log.read_text(errors="replace")
    assert (status, "Traceback" in words) == (0, False), words
    shutil.rmtree(own.folder, ignore_errors=True)


@dataclass
class Load:
    """The pieces of work that a leg is made of. Each notes in `wrong` what was not answered as it should be."""

    path: str
    client: CollimateClient
    wrong: list[str] = field(default_factory=list)

    def _expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self.wrong.append(f"{what}: {str(found)[:500]} instead of {str(wanted)[:500]}")

    def guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except (CollimateError, OSError, http.client.HTTPException) as exc:
            self.wrong.append(f"{work.__name__} {number}: {exc!r}")

    def exec(self, number: int) -> None:
        """One of several kinds, the common ones more often."""
        kinds = (self._prints, self._computes, self._reads_files, self._fails, self._floods, self._forks)
        if number % 400 == 399:
            self._overruns(number)
        elif number % 100 == 99:
            self._dies_of_memory(number)
        elif number % 50 == 49:
            self._hangs_up(number)
        else:
            kinds[number % len(kinds)](number)

    def _prints(self, number: int) -> None:
        answer = self.client.exec_once("py", command=f"echo {number}")
        self._expect("prints", (answer["exit_code"], answer["stdout"]), (0, f"{number}\n"))

    def _computes(self, number: int) -> None:
        answer = self.client.exec_once("py", code=f"print(sum(range({number})))")
        self._expect("computes", (answer["exit_code"], answer["stdout"]), (0, f"{sum(range(number))}\n"))

    def _reads_files(self, number: int) -> None:
        text = f"{number}\n" * 100
        answer = self.client.exec_once(
            "py", code="print(open('a/b').read(), end='')", files=[{"path": "a/b", "content": text}]
        )
        self._expect("reads files", (answer["exit_code"], answer["stdout"]), (0, text))

    def _fails(self, number: int) -> None:
        answer = self.client.exec_once("py", code="import os; os.kill(os.getpid(), 9)" if number % 2 else "1/0")
        self._expect("fails", answer["exit_code"], 137 if number % 2 else 1)

    def _floods(self, number: int) -> None:
        answer = self.client.exec_once("py", code="print('x' * 300_000)")
        self._expect("floods", (answer["exit_code"], len(answer["stdout"])), (0, 300_001))

    def _forks(self, number: int) -> None:
        answer = self.client.exec_once("py", command="(setsid sleep 100 &) ; sleep 100 & echo left")
        self._expect("forks", (answer["exit_code"], answer["stdout"]), (0, "left\n"))

    def _overruns(self, number: int) -> None:
        answer = self.client.exec_once("py", command="(setsid sleep 100 &) ; sleep 100", timeout_seconds=1)
        self._expect("overruns", answer["exit_code"], -1)

    def _dies_of_memory(self, number: int) -> None:
        answer = self.client.exec_once("py", code="x = []\nwhile True: x.append(bytearray(64 << 20))")
        self._expect("dies of memory", answer["exit_code"] in (1, 137), True)

    def _hangs_up(self, number: int) -> None:
        """A caller that goes away before it has its answer."""
        connection = UnixConnection(self.path)
        body = b'{"template_id": "py", "command": "sleep 0.05"}'
        connection.request("POST", "/v1/exec", body=body)
        connection.close()

    def session(self, number: int) -> None:
        """A session with a few execs, the first of which leaves processes behind; every tenth serves a port."""
        served = number % 10 == 9
        created = self.client.create_session("web" if served else "py")
        session_id = created["session_id"]
        self.client.session_exec(session_id, command=f"echo {number} > n; (setsid sleep 100 &) ; sleep 100 &")
        answer = self.client.session_exec(session_id, code="print(open('n').read(), end='')")
        self._expect("session", (answer["exit_code"], answer["stdout"]), (0, f"{number}\n"))
        if served:
            self._expect("serves", _echoed(created["endpoints"]["9000"]), b"hello")
        if number % 25 == 24:
            answer = self.client.session_exec(session_id, command="sleep 100", timeout_seconds=1)
            self._expect("overruns in a session", answer["exit_code"], -1)
        answer = self.client.session_exec(session_id, command="cat n; exit 3")
        self._expect("session", (answer["exit_code"], answer["stdout"]), (3, f"{number}\n"))
        self._expect("deletes", self.client.delete_session(session_id)["deleted"], True)


def _echoed(place: str) -> bytes:
    host, _, port = place.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"echo\nhello")
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while piece := connection.recv(100):
            said += piece
        return said


def run_leg(daemon: RunningDaemon, first: int, execs: int, sessions: int) -> list[str]:
    """So many pieces of work, THREADS at once; what was answered wrongly."""
    path = daemon.socket_path
    # Without retries: whatever fails is counted.
    with CollimateClient(unix_socket=path, retries=0) as client, ThreadPoolExecutor(THREADS) as pool:
        load = Load(path, client)
        work: list[tuple[Callable[[int], None], int]] = []
        every = max(1, execs // max(1, sessions))
        for number in range(first, first + execs):
            work.append((load.exec, number))
            if number % every == 0:
                work.append((load.session, number // every))
        for done in [pool.submit(load.guarded, *piece) for piece in work]:
            done.result()
    return load.wrong


def above(samples: list[dict[str, int]], name: str) -> float:
    """How much higher the last third lies than the first, by medians; samples before that are warming up."""
    third = max(1, len(samples) // 3)
    return statistics.median(one[name] for one in samples[-third:]) - statistics.median(
        one[name] for one in samples[:third]
    )


def test_resources_stay_flat_and_every_answer_is_right(
    daemon: RunningDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    # What is made on demand and kept: threads' memory arenas, the loop of exposed ports, control groups for reuse.
    wrong = run_leg(daemon, 0, 100, 20)
    base = first_rest(daemon.pid)
    samples = [base]
    for leg in range(LEGS):
        wrong += run_leg(daemon, leg * EXECS // LEGS, EXECS // LEGS, SESSIONS // LEGS)
        samples.append(at_rest(daemon.pid, base))
    if LONG:
        with capsys.disabled():
            _show(samples)
    assert wrong == []
    health = call(daemon.socket_path, "GET", "/v1/health")[1]
    assert (health["status"], health["sessions"], health["running"], health["queued"]) == ("ok", 0, 0, 0)
    assert health["unclean_forks"] == 0
    assert {name: above(samples, name) for name in MEMORY_KIB if above(samples, name) > MEMORY_BOUND_KIB[name]} == {}
    # Groups are kept for reuse, at most 64 per set of limits (three: two templates' sessions share theirs) in at most
    # three hierarchies.
    assert samples[-1]["groups"] <= 3 * (3 * 64 + 1)


def _show(samples: list[dict[str, int]]) -> None:
    names = [*COUNTED, "groups", *MEMORY_KIB]
    print("\n" + "  ".join(names))
    for one in samples:
        print("  ".join(f"{one[name]:>{len(name)}}" for name in names))


def test_many_sessions_at_once(daemon: RunningDaemon) -> None:
    run_leg(daemon, 0, 64, 16)
    base = first_rest(daemon.pid)
    path = daemon.socket_path
    with CollimateClient(unix_socket=path, retries=0) as client, ThreadPoolExecutor(THREADS) as pool:
        ids = list(pool.map(lambda _: client.create_session("py")["session_id"], range(AT_ONCE)))
        assert len(set(ids)) == AT_ONCE
        assert {info["session_id"] for info in client.list_sessions()} == set(ids)
        assert client.health()["sessions"] == AT_ONCE
        # Forks that wait were used, and are made again.
        eventually(lambda: sample(daemon.pid)["processes"] - base["processes"] == AT_ONCE, "a process per session")
        list(pool.map(lambda one: client.session_exec(one, command=f"echo {one} > mine"), ids))
        told = list(pool.map(lambda one: client.session_exec(one, code="print(open('mine').read(), end='')"), ids))
        assert [answer["stdout"] for answer in told] == [f"{one}\n" for one in ids]
        deleted = list(pool.map(client.delete_session, ids))
        assert all(answer["deleted"] for answer in deleted)
        assert client.list_sessions() == []
    at_rest(daemon.pid, base)


def test_a_burst_of_forks(daemon: RunningDaemon) -> None:
    """64 callers at the same moment, execs and sessions alike: nobody is refused, and each has its own sandbox."""
    run_leg(daemon, 0, 64, 16)
    base = first_rest(daemon.pid)
    path = daemon.socket_path

    def exec_once(number: int) -> tuple[int, Any]:
        return call(path, "POST", "/v1/exec", {"template_id": "py", "command": f"echo {number}; ls -A; echo x > left"})

    def session(number: int) -> tuple[int, Any]:
        return call(path, "POST", "/v1/sessions", {"template_id": "py", "label": str(number)})

    with ThreadPoolExecutor(BURST) as pool:
        answers = list(pool.map(exec_once, range(BURST)))
        created = list(pool.map(session, range(BURST)))
    assert [(status, answer.get("stdout")) for status, answer in answers] == [
        (200, f"{number}\n") for number in range(BURST)
    ]
    assert [(status, answer.get("label")) for status, answer in created] == [(201, str(n)) for n in range(BURST)]
    with ThreadPoolExecutor(BURST) as pool:
        gone = list(pool.map(lambda one: call(path, "DELETE", f"/v1/sessions/{one[1]['session_id']}"), created))
    assert [status for status, _ in gone] == [200] * BURST
    eventually(lambda: call(path, "GET", "/v1/health")[1]["sessions"] == 0, "no session left")
    at_rest(daemon.pid, base)
