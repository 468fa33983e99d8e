"""Entry servers and exposed ports, reached from the host through each session's own network namespace."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.local_backend import Limits, LocalCollimateBackend, Template
from tests.fixtures import port_server
from tests.fixtures.process_tree import tcp_listeners
from tests.fixtures.sandbox_daemon import (
    NOBODY,
    NoIsolation,
    RunningDaemon,
    copy_of_the_packages,
    everybodys_python,
    one_core,
    start_daemon,
)
from tests.fixtures.sandboxd_wire import call, descendants, eventually, footprint, run, session_exec

MIB = 1 << 20
CONFIG = """
[templates.web]
entry = "port_server:main"
expose_ports = [8000, 9000]
data = {{ "/srv/env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/env" }}

[templates.argv]
entry = ["python3", "/srv/env/port_server_argv.py"]
expose_ports = [9000]
data = {{ "/srv/env" = "{data}" }}

[templates.chatty]
entry = "port_server:chatty"
expose_ports = [9000]
data = {{ "/srv/env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/env" }}

[templates.broken]
entry = "port_server:broken"
expose_ports = [8000]
data = {{ "/srv/env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/env" }}

[templates.silent]
entry = "port_server:silent"
entry_timeout_s = {silent_s}
expose_ports = [8000]
data = {{ "/srv/env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/env" }}

[templates.bare]
expose_ports = [7000]
"""


def started(folder: Path, only: str | None = None, *, silent_s: int = 1, **options: Any) -> RunningDaemon:
    """A daemon with these templates, or with one of them, and a warm interpreter for each."""
    tables = [table for table in CONFIG.split("\n\n") if only is None or f"[templates.{only}]" in table]
    data = folder / "data"
    data.mkdir(mode=0o755)
    shutil.copy(port_server.__file__, data / "port_server.py")
    (data / "port_server_argv.py").write_text("import port_server\nport_server.main()\n")
    config = folder / "collimate.toml"
    config.write_text("\n\n".join(tables).format(data=data, silent_s=silent_s))
    try:
        with one_core():
            return start_daemon("--config", str(config), "--max-inflight", "4", **options)
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    own = started(tmp_path_factory.mktemp("ports"))
    yield own
    words = own.log.read_text(errors="replace")
    assert own.stop() == 0, words
    assert "Traceback" not in words, words
    shutil.rmtree(own.folder, ignore_errors=True)


class Served:
    """A session and the way to its ports."""

    def __init__(self, path: str, created: dict[str, Any]) -> None:
        self.path = path
        self.session_id = created["session_id"]
        self.endpoints: dict[str, str] = created["endpoints"]

    def address(self, port: int) -> tuple[str, int]:
        host, _, number = self.endpoints[str(port)].partition(":")
        return host, int(number)

    def connect(self, port: int = 9000, line: str = "") -> socket.socket:
        connection = socket.create_connection(self.address(port), timeout=60)
        if line:
            connection.sendall(line.encode() + b"\n")
        return connection

    def ask(self, line: str, data: bytes = b"", port: int = 9000) -> bytes:
        """Send, half-close, and everything that comes back."""
        with self.connect(port, line) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def exec(self, **fields: Any) -> dict[str, Any]:
        return session_exec(self.path, self.session_id, **fields)

    def delete(self) -> None:
        status, answer = call(self.path, "DELETE", f"/v1/sessions/{self.session_id}")
        assert status == 200, answer


def read_all(connection: socket.socket) -> bytes:
    data = bytearray()
    while chunk := connection.recv(1 << 16):
        data += chunk
    return bytes(data)


def create(path: str, template: str = "web") -> Served:
    status, created = call(path, "POST", "/v1/sessions", {"template_id": template})
    assert status == 201, created
    return Served(path, created)


@pytest.fixture
def served(daemon: RunningDaemon) -> Iterator[Callable[..., Served]]:
    """Makes sessions, which are deleted afterwards."""
    made: list[Served] = []

    def make(template: str = "web") -> Served:
        made.append(create(daemon.socket_path, template))
        return made[-1]

    yield make
    for one in made:
        call(daemon.socket_path, "DELETE", f"/v1/sessions/{one.session_id}")


def closed(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) != 0


def test_http(served: Callable[..., Served]) -> None:
    one, two = served(), served()
    assert set(one.endpoints) == {"8000", "9000"}
    assert len({*one.endpoints.values(), *two.endpoints.values()}) == 4
    assert all(place.startswith("127.0.0.1:") for place in one.endpoints.values())
    said = []
    for session in (one, two):
        connection = http.client.HTTPConnection(*session.address(8000), timeout=60)
        connection.request("GET", "/some/where")
        said.append(connection.getresponse().read().decode().split())
        body = os.urandom(3 * MIB)
        connection.request("POST", "/", body=body)
        assert connection.getresponse().read() == body, "on the same connection"
        connection.close()
    assert [words[2] for words in said] == ["/some/where", "/some/where"]
    assert said[0][1] != said[1][1], "each fork has randomness of its own"


def websocket_frame(payload: bytes, opcode: int = 2) -> bytes:
    if len(payload) < 126:
        size = bytes([0x80 | len(payload)])
    elif len(payload) < 65536:
        size = b"\xfe" + struct.pack(">H", len(payload))
    else:
        size = b"\xff" + struct.pack(">Q", len(payload))
    mask = os.urandom(4)
    return bytes([0x80 | opcode]) + size + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Piece by piece: a socket with a timeout does not wait for all."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "the connection ended early"
        data += piece
    return data


def websocket_exchange(one: Served, payloads: Sequence[tuple[bytes, int]]) -> None:
    """Shake hands, send each payload and see it come back behind a header of that many bytes, and close."""
    with one.connect(8000) as connection:
        key = base64.b64encode(os.urandom(16))
        connection.sendall(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: " + key + b"\r\n\r\n"
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += read_exactly(connection, 1)
        accept = base64.b64encode(hashlib.sha1(key + port_server.WEBSOCKET_GUID).digest())
        assert head.startswith(b"HTTP/1.1 101 ")
        assert accept in head
        for payload, header in payloads:
            connection.sendall(websocket_frame(payload))
            assert read_exactly(connection, header + len(payload))[header:] == payload
        connection.sendall(websocket_frame(b"", opcode=8))
        assert read_all(connection) == b"\x88\x00"


def test_websocket(served: Callable[..., Served]) -> None:
    websocket_exchange(served(), [(b"", 2), (b"step", 2), (os.urandom(5000), 4), (os.urandom(70_000), 10)])


def test_half_close_and_large_transfers(served: Callable[..., Served]) -> None:
    one = served()
    data = os.urandom(32 * MIB)
    assert one.ask("sum", data).decode() == f"{len(data)} {hashlib.sha256(data).hexdigest()}"
    assert one.ask("sum") == f"0 {hashlib.sha256().hexdigest()}".encode()
    with one.connect(line=f"flood {32 * MIB}") as connection:
        assert len(read_all(connection)) == 32 * MIB
    answers = []
    with one.connect(line="echo") as connection:
        reader = threading.Thread(target=lambda: answers.append(read_all(connection)))
        reader.start()
        connection.sendall(data[: 8 * MIB])
        connection.shutdown(socket.SHUT_WR)
        reader.join(60)
    assert answers == [data[: 8 * MIB]]


def test_a_server_by_argv_and_one_that_talks_much(served: Callable[..., Served]) -> None:
    assert served("argv").ask("echo", b"abc") == b"abc"
    one = served("chatty")
    for _ in range(3):
        assert one.ask("echo", b"abc") == b"abc", "it never waits for somebody to read what it prints"
        time.sleep(0.3)


def test_resets_go_both_ways(served: Callable[..., Served]) -> None:
    one = served()
    with one.connect(line="reset") as connection, pytest.raises(ConnectionResetError):
        read_all(connection)
    with one.connect(line="echo") as connection:
        connection.sendall(b"x")
        assert read_exactly(connection, 1) == b"x"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    established = "import re\nprint(sum(' 01 ' in l and ':2328' in l.split()[1] for l in open('/proc/self/net/tcp')))"
    eventually(lambda: one.exec(code=established)["stdout"] == "0\n", "the server's end is gone, too")


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_slow_readers_hold_up_nobody_and_cost_no_memory(daemon: RunningDaemon, served: Callable[..., Served]) -> None:
    one = served()
    one.ask("echo", b"warm")
    before = rss(daemon.pid)
    slow = [one.connect(line=f"flood {64 * MIB}") for _ in range(50)]
    time.sleep(1)
    assert one.ask("echo", b"others") == b"others"
    assert rss(daemon.pid) - before < 16 * MIB, "50 times 64 KiB at most wait in the daemon"
    with slow[0]:
        assert len(read_all(slow[0])) == 64 * MIB
    for connection in slow[1:]:
        connection.close()


def test_many_connections_and_their_bound(served: Callable[..., Served]) -> None:
    one, other = served(), served()
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda at: one.ask("echo", b"%d" % at), range(1000)))
    assert answers == [b"%d" % at for at in range(1000)]
    held = [one.connect(line="echo") for _ in range(256)]
    for connection in held:
        connection.sendall(b"!")
    for connection in held:
        assert read_exactly(connection, 1) == b"!"
    with one.connect(line="echo") as beyond:
        beyond.sendall(b"waits")
        beyond.settimeout(1)
        with pytest.raises(TimeoutError):
            beyond.recv(1)
        assert other.ask("echo", b"x") == b"x", "another session has places of its own"
        held.pop().close()
        beyond.settimeout(60)
        assert read_exactly(beyond, 5) == b"waits"
    for connection in held:
        connection.close()
    eventually(lambda: one.ask("echo", b"again") == b"again", "served again")


def test_nobody_listens_yet_and_then_a_background_server(served: Callable[..., Served]) -> None:
    one = served("bare")
    # It may come before connect has returned.
    with pytest.raises(ConnectionResetError), one.connect(7000) as connection:
        connection.recv(1)
    serve = (
        "import socket, os\n"
        "s = socket.create_server(({0!r}, 7000), family=socket.{1})\n"
        "if os.fork() == 0:\n"
        "    os.dup2(os.open('/dev/null', 1), 1); os.dup2(1, 2)\n"
        "    for _ in range(2):\n"
        "        c, peer = s.accept(); c.sendall(repr(peer[0]).encode()); c.close()\n"
        "    os._exit(0)\n"
    )
    for host, family in (("127.0.0.1", "AF_INET"), ("::1", "AF_INET6"), ("::", "AF_INET6")):
        assert one.exec(code=serve.format(host, family))["exit_code"] == 0
        for _ in range(2):
            with one.connect(7000) as connection:
                assert host.strip(":").encode() in read_all(connection)
        eventually(lambda: _refused(one), "that server is gone")


def _refused(one: Served) -> bool:
    try:
        with one.connect(7000) as connection:
            return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("broken", ["exit code 3", "no weights at /data/weights"]),
        ("silent", ["does not listen on 8000 after 1 s", "still loading"]),
    ],
)
def test_a_server_that_does_not_come_up(daemon: RunningDaemon, template: str, said: list[str]) -> None:
    path = daemon.socket_path
    call(path, "POST", "/v1/sessions", {"template_id": template})
    before = footprint(daemon.pid)
    for target, body in (("/v1/sessions", {}), ("/v1/exec", {"code": "1"})):
        status, answer = call(path, "POST", target, {"template_id": template, **body})
        assert (status, answer["error_code"]) == (503, "session_bringup_failed")
        for words in said:
            assert words in answer["error"]
    eventually(lambda: footprint(daemon.pid)["processes"] <= before["processes"], "no process left")
    eventually(lambda: footprint(daemon.pid)["fds"] <= before["fds"], "no descriptor left")
    assert call(path, "GET", "/v1/health")[1]["status"] == "ok"


def test_a_one_shot_has_the_server_beside_it(daemon: RunningDaemon) -> None:
    text = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/x').read().split()[2].decode())"
    answer = run(daemon.socket_path, template_id="web", code=text)
    assert (answer["stdout"], answer["exit_code"]) == ("/x\n", 0)
    answer = run(daemon.socket_path, template_id="web", command="kill -9 0", timeout_seconds=20)
    assert answer["exit_code"] == 137
    answer = run(daemon.socket_path, template_id="web", command="sleep 60", timeout_seconds=1)
    assert answer["exit_code"] == -1


def test_what_a_candidate_can_do_to_the_helper(daemon: RunningDaemon, served: Callable[..., Served]) -> None:
    """The helper is the session's process 1: nothing of it can be had, and it serves on whatever happens beside it."""
    one, other = served(), served()
    look = """
import ctypes, os
def tried(what):
    try: return repr(what())
    except OSError as exc: return type(exc).__name__
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd")))
print(tried(lambda: os.listdir("/proc/1/fd")), tried(lambda: open("/proc/1/mem", "rb").read(1)))
print(tried(lambda: os.readlink("/proc/1/exe")), tried(lambda: open("/proc/1/environ").read()))
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, 1, 0, 0), libc.syscall(438, os.pidfd_open(1) if hasattr(os, "pidfd_open") else -1, 3, 0))
for signal in range(1, 65):
    try: os.kill(1, signal)
    except OSError: pass
"""
    answer = one.exec(code=look)["stdout"].splitlines()
    assert answer[0] == "[0, 1, 2, 3]", "its three streams and the folder that it reads"
    assert answer[1:3] == ["PermissionError PermissionError"] * 2
    assert answer[3] == "-1 -1"
    assert one.ask("peer") == b"'127.0.0.1'", "the server learns nothing of who is outside"
    ports = [one.address(8000)[1], other.address(8000)[1]]
    knock = f"import socket\nfor p in {ports}: print(socket.socket().connect_ex(('127.0.0.1', p)))"
    assert one.exec(code=knock)["stdout"] == "111\n111\n", "the host's loopback is not the sandbox's"
    before = footprint(daemon.pid)["fds"]
    assert one.exec(command="kill -9 -1; exit 0", timeout_seconds=20)["exit_code"] in (0, 137)
    eventually(lambda: not _answers(one), "its server is dead")
    assert other.ask("echo", b"x") == b"x"
    starve = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.001)"
    bomb = threading.Thread(target=lambda: one.exec(code=starve, timeout_seconds=3))
    bomb.start()
    for _ in range(20):
        assert not _answers(one)
        assert other.ask("echo", b"x") == b"x"
    bomb.join(60)
    again = "cd /srv/env && python3 -c 'import port_server; port_server.main()' >/dev/null 2>&1 & sleep 0.1"
    one.exec(command=again)
    eventually(lambda: _answers(one), "a server that was started again is reached again")
    eventually(lambda: footprint(daemon.pid)["fds"] <= before, "no descriptor left of it all")


def _answers(one: Served) -> bool:
    try:
        return one.ask("echo", b"alive") == b"alive"
    except OSError:
        return False


def test_a_server_that_never_accepts_holds_up_only_itself(served: Callable[..., Served]) -> None:
    one, other = served("bare"), served()
    deaf = (
        "import socket, time, os\ns = socket.create_server(('127.0.0.1', 7000), backlog=0)\n"
        "if os.fork() == 0:\n    os.dup2(os.open('/dev/null', 1), 1); os.dup2(1, 2); time.sleep(300)\n"
    )
    assert one.exec(code=deaf)["exit_code"] == 0
    waiting = [one.connect(7000) for _ in range(30)]
    for _ in range(10):
        assert other.ask("echo", b"x") == b"x"
    ended = 0
    for connection in waiting:
        connection.settimeout(2 if ended > 5 else 60)
        try:
            connection.recv(1)
        except ConnectionResetError:
            ended += 1
        except TimeoutError:
            pass
        connection.close()
        if ended > 5:
            break
    assert ended > 5, "those that found no room in its backlog are refused after a while"
    for connection in waiting:
        connection.close()


def test_execs_and_the_server_leave_each_other_alone(served: Callable[..., Served]) -> None:
    one = served()
    assert one.exec(command="sleep 60", timeout_seconds=1)["exit_code"] == -1
    assert one.exec(command="kill -9 0", timeout_seconds=10)["exit_code"] == 137
    text = "x = []\nwhile True: x.append(bytearray(16 << 20))"
    assert one.exec(code=text)["exit_code"] in (1, 137)
    assert _answers(one)
    assert one.exec(code="print('served')")["stdout"] == "served\n"


def test_24_sessions_at_once_and_nothing_left(daemon: RunningDaemon) -> None:
    path = daemon.socket_path

    def life(number: int) -> list[tuple[str, int]]:
        one = create(path)
        note = f"session {number}"
        one.exec(command=f"echo {note} > /box/note")
        assert one.exec(command="cat /box/note")["stdout"] == f"{note}\n"
        for _ in range(5):
            assert one.ask("echo", note.encode() * 1000) == note.encode() * 1000
        websocket_exchange(one, [(note.encode() * 20, 4)] * 5)
        connection = http.client.HTTPConnection(*one.address(8000), timeout=60)
        connection.request("POST", "/", body=note)
        assert connection.getresponse().read().decode() == note
        connection.close()
        barrier.wait(60)
        left_open = one.connect(line="echo")
        left_open.sendall(b"x")
        assert read_exactly(left_open, 1) == b"x"
        one.delete()
        with left_open, pytest.raises(ConnectionResetError):
            read_all(left_open)
        return [one.address(8000), one.address(9000)]

    def all_at_once() -> list[tuple[str, int]]:
        with ThreadPoolExecutor(24) as pool:
            return [address for addresses in pool.map(life, range(24)) for address in addresses]

    barrier = threading.Barrier(24)
    all_at_once()
    before = footprint(daemon.pid)
    addresses = all_at_once()
    assert len(set(addresses)) == 48
    assert all(closed(address) for address in addresses)
    assert tcp_listeners({daemon.pid}) == set()
    eventually(lambda: footprint(daemon.pid) == before, f"as it was: {before}, and is {footprint(daemon.pid)}")


def test_a_session_that_dies_takes_its_ports_along(daemon: RunningDaemon, served: Callable[..., Served]) -> None:
    one = served()
    connection = one.connect(line="echo")
    inits = [
        pid
        for pid in descendants(daemon.pid)
        if Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].splitlines()[0].split()[2:] == ["1"]
        and Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]
    for pid in inits:
        os.kill(pid, 9)
    with connection, pytest.raises(ConnectionResetError):
        read_all(connection)
    eventually(lambda: all(closed(one.address(port)) for port in (8000, 9000)), "its ports are closed")
    eventually(lambda: call(daemon.socket_path, "GET", "/v1/sessions")[1] == [], "it is no session any more")


def test_a_drain_does_not_wait_for_a_server_that_never_listens(tmp_path: Path) -> None:
    own = started(tmp_path, "silent", silent_s=300)
    answers: list[tuple[int, Any]] = []
    body = {"template_id": "silent"}
    create_it = threading.Thread(target=lambda: answers.append(call(own.socket_path, "POST", "/v1/sessions", body)))
    processes = len(descendants(own.pid))
    create_it.start()
    eventually(lambda: len(descendants(own.pid)) >= processes + 2, "its server was started")
    below = descendants(own.pid)
    assert own.stop() == 0
    create_it.join(60)
    assert (answers[0][0], answers[0][1]["error_code"]) == (503, "session_bringup_failed")
    eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below), "every process gone")
    assert "Traceback" not in own.log.read_text()
    shutil.rmtree(own.folder, ignore_errors=True)


def test_a_session_that_is_only_spoken_to_is_not_idle(daemon: RunningDaemon) -> None:
    """In this process, so that the limit can be short; and it leaves no descriptor here either."""
    before = len(os.listdir("/proc/self/fd"))
    limits = Limits(idle_limit_s=2)
    templates = {"bare": Template(expose_ports=(7000,))}
    folder = tempfile.mkdtemp(prefix="sbx", dir="/tmp")
    with LocalCollimateBackend(templates, unix_socket=f"{folder}/s.sock", limits=limits) as backend:
        assert backend.unix_socket is not None
        spoken_to, left_alone = (create(backend.unix_socket, "bare") for _ in range(2))
        serve = (
            "import socket, os\ns = socket.create_server(('127.0.0.1', 7000))\n"
            "if os.fork() == 0:\n    os.dup2(os.open('/dev/null', 1), 1); os.dup2(1, 2)\n"
            "    c, _ = s.accept()\n    while d := c.recv(9): c.sendall(d)\n"
        )
        assert spoken_to.exec(code=serve)["exit_code"] == 0
        with spoken_to.connect(7000) as connection:
            eventually(lambda: sessions_of(backend) == [spoken_to.session_id], "the other one is ended", timeout_s=60)
            time.sleep(3)
            connection.sendall(b"ping")
            assert read_exactly(connection, 4) == b"ping"
        assert closed(left_alone.address(7000))
        eventually(lambda: sessions_of(backend) == [], "and this one a while after its last connection", timeout_s=60)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, "as many descriptors as before")
    shutil.rmtree(folder)


def sessions_of(backend: LocalCollimateBackend) -> list[str]:
    assert backend.unix_socket is not None
    return [info["session_id"] for info in call(backend.unix_socket, "GET", "/v1/sessions")[1]]


def test_without_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else: the whole suite runs unprivileged already")
    python = everybodys_python()
    folder = Path(tempfile.mkdtemp(prefix="sbxports", dir="/tmp"))
    try:
        folder.chmod(0o755)
        library = copy_of_the_packages(folder / "lib")
        own = started(folder, "web", command=NOBODY, python=python, env={"PYTHONPATH": str(library), "TMPDIR": "/tmp"})
        try:
            sessions = [create(own.socket_path) for _ in range(4)]
            for one in sessions:
                data = os.urandom(MIB)
                assert one.ask("sum", data).decode() == f"{MIB} {hashlib.sha256(data).hexdigest()}"
                assert one.ask("peer") == b"'127.0.0.1'"
                assert one.exec(code="import os; print(os.listdir('/srv/env'))")["exit_code"] == 0
                one.delete()
            assert all(closed(one.address(port)) for one in sessions for port in (8000, 9000))
        finally:
            assert own.stop() == 0
            shutil.rmtree(own.folder, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _over(connection: socket.socket) -> bool:
    try:
        return read_all(connection) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_no_port_outlives_the_daemon(tmp_path: Path, how: str) -> None:
    own = started(tmp_path, "web")
    sessions = [create(own.socket_path) for _ in range(3)]
    connections = [one.connect(line="echo") for one in sessions]
    for connection in connections:
        connection.sendall(b"x")
        assert read_exactly(connection, 1) == b"x"
    below = descendants(own.pid)
    if how == "stop":
        assert own.stop() == 0
    else:
        own.process.kill()
        own.process.wait()
    for connection in connections:
        with connection:
            assert _over(connection), "a killed daemon's connections just end"
    assert all(closed(one.address(port)) for one in sessions for port in (8000, 9000))
    eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below), "every process gone")
    shutil.rmtree(own.folder, ignore_errors=True)
