"""The daemon killed with SIGKILL in the middle of everything: once one is started again, nothing of it is left."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import port_server
from tests.fixtures.process_tree import identity
from tests.fixtures.sandbox_daemon import (
    NOBODY,
    NoIsolation,
    RunningDaemon,
    copy_of_the_packages,
    everybodys_python,
    start_daemon,
)
from tests.fixtures.sandboxd_wire import call, code, control_groups, descendants, eventually, session_exec

CALLERS = 8
CONFIG = """
[templates.web]
entry = "port_server:main"
expose_ports = [9000]
data = {{ "/srv/env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/env" }}
"""


@pytest.fixture(scope="module")
def config() -> Iterator[Path]:
    """Where an unprivileged daemon can read it, too."""
    with tempfile.TemporaryDirectory(prefix="sbxkil", dir="/tmp") as name:
        folder = Path(name)
        data = folder / "data"
        data.mkdir(mode=0o755)
        shutil.copy(port_server.__file__, data)
        (folder / "collimate.toml").write_text(CONFIG.format(data=data))
        folder.chmod(0o755)
        yield folder / "collimate.toml"


Start = Callable[..., RunningDaemon]


@pytest.fixture(params=["as this user", "as an unprivileged one"])
def start(request: pytest.FixtureRequest, config: Path) -> Iterator[Start]:
    """Starts daemons; without root there are no control groups to find anything by."""
    options: dict[str, Any] = {}
    library = Path(f"/tmp/sbxkil{os.getpid()}")
    if request.param != "as this user":
        if os.geteuid() != 0:
            pytest.skip("needs root to become somebody else: the whole suite runs unprivileged already")
        env = {"PYTHONPATH": str(copy_of_the_packages(library)), "TMPDIR": "/tmp"}
        options = {"command": NOBODY, "python": everybodys_python(), "env": env}

    def start(socket_path: str | None = None) -> RunningDaemon:
        try:
            return start_daemon("--config", str(config), socket_path=socket_path, **options)
        except NoIsolation as exc:
            pytest.skip(f"no isolated sandboxes on this machine: {exc}")

    yield start
    shutil.rmtree(library, ignore_errors=True)


class Traffic:
    """Callers that go on until the daemon answers no more: short execs, long ones, sessions that come and go."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.answered = 0
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a caller waits for a daemon that is dead"

    def _call(self, number: int) -> None:
        try:
            while True:
                if number == 0:
                    call(
                        self._path,
                        "POST",
                        "/v1/exec",
                        {"template_id": "py", "command": "(setsid sleep 300 &) ; sleep 300"},
                    )
                elif number % 2:
                    code(self._path, "import os\nfor _ in range(5):\n    if os.fork() == 0: os._exit(0)")
                else:
                    template = "web" if number % 4 else "py"
                    _, created = call(self._path, "POST", "/v1/sessions", {"template_id": template})
                    session_exec(self._path, created["session_id"], command="sleep 300 & echo x > x")
                    call(self._path, "DELETE", f"/v1/sessions/{created['session_id']}")
                self.answered += 1
        except (OSError, http.client.HTTPException):
            # The daemon was killed: that is what ends the traffic.
            return


def of(pid: int) -> list[int]:
    """Every process in a jail or a control group of the daemon that had this pid, as the kernel tells it."""
    mark = f"collimate-sandboxd-{pid}-"
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                texts = Path("/proc", entry, "mountinfo").read_text() + Path("/proc", entry, "cgroup").read_text()
            except OSError:
                continue  # it went while being looked at
            if mark in texts:
                found.append(int(entry))
    return found


def refused(place: str) -> bool:
    host, _, port = place.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


@pytest.fixture
def kept(start: Start) -> Iterator[list[RunningDaemon]]:
    """Daemons that are ended after the test."""
    daemons = [start()]
    yield daemons
    for daemon in daemons:
        if daemon.process.poll() is None:
            daemon.stop()
        shutil.rmtree(daemon.folder, ignore_errors=True)


def test_kill_9_in_the_middle_of_load(start: Start, kept: list[RunningDaemon]) -> None:
    """Two daemons are started again at the same moment, one in the dead one's place: both find what it left."""
    (daemon,) = kept
    path = daemon.socket_path
    with Traffic(path) as traffic:
        served = [call(path, "POST", "/v1/sessions", {"template_id": "web"})[1] for _ in range(3)]
        held = [call(path, "POST", "/v1/sessions", {"template_id": "py"})[1]["session_id"] for _ in range(10)]
        for session_id in held:
            session_exec(path, session_id, command="sleep 300 & (setsid sleep 300 &)")
        places = [created["endpoints"]["9000"] for created in served]
        connections = [
            socket.create_connection((place.split(":")[0], int(place.split(":")[1])), 60) for place in places
        ]
        for connection in connections:
            connection.sendall(b"flood 100000000\n")
            connection.recv(1000)
        eventually(lambda: traffic.answered >= 5 * CALLERS, "traffic", timeout_s=60)
        assert len(of(daemon.pid)) > 25
        below = {one for pid in descendants(daemon.pid) if (one := identity(pid)) is not None}
        daemon.process.kill()
        daemon.process.wait()
    for connection in connections:
        connection.close()
    with ThreadPoolExecutor(2) as pool:
        starts = [pool.submit(start, path), pool.submit(start)]
        kept += [started.result(120) for started in starts]
    taken = set()
    for again in kept[1:]:
        assert code(again.socket_path, "print('again')")["stdout"] == "again\n"
        _, created = call(again.socket_path, "POST", "/v1/sessions", {"template_id": "web"})
        assert not refused(created["endpoints"]["9000"])
        taken |= set(created["endpoints"].values())
    eventually(lambda: of(daemon.pid) == [], "every process gone, and its mounts with it", timeout_s=60)
    eventually(lambda: not any(identity(pid) == (pid, start) for pid, start in below), "the tree gone", timeout_s=60)
    assert control_groups(daemon.pid) == 0
    assert [str(one) for at in ("/tmp", "/run") for one in Path(at).glob(f"collimate-sandboxd-{daemon.pid}-*")] == []
    assert f"collimate-sandboxd-{daemon.pid}-" not in Path("/proc/self/mountinfo").read_text()
    assert all(refused(place) for place in set(places) - taken)
