"""Malformed, half-sent and dribbled requests against the real daemon, beside honest ones.

REPEAT=<n> in the environment sends n times as many (10: the ten thousand). The seed of a failure is in its message.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from collimate_rl.client import CollimateClient
from collimate_rl.local_backend import LocalCollimateBackend
from collimate_rl.sandboxd.backend import IsolationUnavailable
from collimate_rl.sandboxd.config import Limits
from tests.fixtures.sandbox_daemon import NoIsolation, RunningDaemon, start_daemon
from tests.fixtures.sandboxd_wire import at_rest, call, code, eventually, footprint

COUNT = 1000 * int(os.environ.get("REPEAT", "1"))
PATIENCE_S = 120.0
"""Far above every deadline of the daemon: a connection that is still open by then is stuck."""
EXEC = {"template_id": "py", "code": "print(1)"}
ODDITIES = [
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\0", b"\xff\xfe", b"\x16\x03\x01", b"HTTP/2.0", b"PRI * ",
    b"Content-Length: 5\r\n", b"Content-Length: " + b"9" * 4400 + b"\r\n", b"Content-Length: -1\r\n", b"{", b"]", b'"',
    b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b" folded: x\r\n", b"X: " + b"y" * 17_000 + b"\r\n",
    b"1e999", b"NaN", b'"\\ud800"', b"null", b"[" * 3000, b'"seed": "zz",', b'"timeout_seconds": 0,', b"..", b"%00",
]  # fmt: skip


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """A daemon of this test's own, so that what it holds is nobody else's."""
    try:
        own = start_daemon()
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")
    try:
        yield own
        assert own.process.poll() is None, own.log.read_text(errors="replace")
    finally:
        status = own.stop()
        words = own.log.read_text(errors="replace")
        shutil.rmtree(own.folder, ignore_errors=True)
    assert status == 0, words
    assert "Traceback" not in words, words


def well_formed(chance: random.Random) -> bytes:
    target, method = chance.choice(
        [("/v1/exec", "POST"), ("/v1/sessions", "POST"), ("/v1/sessions", "GET"), ("/v1/health", "GET"),
         ("/v1/sessions/none", "DELETE"), ("/v1/sessions/none/exec", "POST")]
    )  # fmt: skip
    body = json.dumps({**EXEC, "template_id": chance.choice(["none", "none", "none", "py"])}).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n"
    if method == "POST":
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    return f"{head}\r\n".encode()


def malformed(chance: random.Random) -> bytes:
    """A request with something wrong in one to three places, or noise from the start."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(200))
    text = well_formed(chance)
    for _ in range(chance.randrange(1, 4)):
        place, length = chance.randrange(len(text) + 1), chance.randrange(8)
        match chance.randrange(5):
            case 0:
                text = text[:place]
            case 1:
                text = text[:place] + text[place + length :]
            case 2:
                text = text[:place] + chance.choice(ODDITIES) + text[place:]
            case 3:
                text = text[:place] + chance.randbytes(length) + text[place + length :]
            case _:
                text = text[:place] + text[place : place + 40] * 2 + text[place:]
    return text


def exchange(path: str, text: bytes, chance: random.Random) -> bytes:
    """Send it, whole or in two pieces, end the stream, and read all that is answered to its end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(path)
        cut = chance.randrange(len(text) + 1)
        answer = b""
        # The daemon may answer and close before all is sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(text[:cut])
            connection.sendall(text[cut:])
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while received := connection.recv(1 << 16):
                answer += received
        return answer


def statuses(answer: bytes) -> list[int]:
    """The statuses of the answers one after the other, each of which must be whole and of the wire's shape."""
    found = []
    while answer:
        head, separator, rest = answer.partition(b"\r\n\r\n")
        assert separator, answer
        assert head.startswith(b"HTTP/1.1 "), answer
        status = int(head.split()[1])
        if status == 100:
            answer = rest
            continue
        (length,) = (int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))
        body = json.loads(rest[:length])
        assert status < 400 or (isinstance(body["error"], str) and isinstance(body["error_code"], str))
        found.append(status)
        answer = rest[length:]
    return found


def test_malformed_requests_are_the_senders_fault(daemon: RunningDaemon) -> None:
    path = daemon.socket_path
    before = at_rest(daemon.pid, daemon.socket_path)

    def one(seed: int) -> list[int]:
        chance = random.Random(seed)
        text = malformed(chance)
        try:
            found = statuses(exchange(path, text, chance))
            assert all(status in (200, 201) or 400 <= status < 500 for status in found)
        except (AssertionError, TimeoutError, ValueError) as exc:
            raise AssertionError(f"seed {seed}: {text!r}: {exc!r}") from exc
        return found

    with ThreadPoolExecutor(16) as pool:
        honest = [pool.submit(code, path, f"print({number})") for number in range(20)]
        answers = list(pool.map(one, range(COUNT)))
        assert [answer.result(PATIENCE_S)["stdout"] for answer in honest] == [f"{n}\n" for n in range(20)]
    seen = {status for answer in answers for status in answer}
    assert {200, 400, 404} <= seen
    assert sum(400 in answer for answer in answers) > COUNT // 10
    for session in call(path, "GET", "/v1/sessions")[1]:
        assert call(path, "DELETE", f"/v1/sessions/{session['session_id']}")[0] == 200
    eventually(lambda: footprint(daemon.pid) == before, f"at rest again: {before}", timeout_s=60)
    assert code(path, "print('served')")["stdout"] == "served\n"


HALVES = [
    b"",
    b"G",
    b"POST /v1/exec HTTP/1.1\r\n",
    b"POST /v1/exec HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
    b"POST /v1/exec HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n",
    b"POST /v1/exec HTTP/1.1\r\nContent-Length: 50000000\r\n\r\n" + b" " * 100,
]


class Dribblers:
    """Connections that begin a request and then send a byte now and then, from one thread, until the daemon ends them.

    One whose request is begun with nothing stays silent: it is idle, not slow.
    """

    def __init__(self, address: str | tuple[str, int], count: int) -> None:
        self._open: list[socket.socket] = []
        self._stop = threading.Event()
        for number in range(count):
            family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
            connection = socket.socket(family)
            connection.settimeout(PATIENCE_S)
            connection.connect(address)
            with contextlib.suppress(OSError):
                connection.sendall(HALVES[number % len(HALVES)])
            connection.setblocking(False)
            self._open.append(connection)
        self._slow = {connection for number, connection in enumerate(self._open) if HALVES[number % len(HALVES)]}
        self._thread = threading.Thread(target=self._dribble)
        self._thread.start()

    @property
    def left(self) -> int:
        """How many the daemon has not ended yet."""
        return len(self._open)

    @property
    def slow_left(self) -> int:
        """Of those that dribble."""
        return len(self._slow.intersection(self._open))

    def _dribble(self) -> None:
        while not self._stop.wait(0.2):
            for connection in list(self._open):
                if self._has_ended(connection):
                    self._open.remove(connection)
                    connection.close()

    def _has_ended(self, connection: socket.socket) -> bool:
        try:
            while select.select([connection], [], [], 0)[0]:
                if not connection.recv(4096):
                    return True
            if connection in self._slow:
                connection.send(b" ")
        except BlockingIOError:
            # Its buffers are full, since the daemon reads no more.
            return False
        except OSError:
            return True
        return False

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for connection in self._open:
            connection.close()


def test_slow_requests_are_ended_and_honest_ones_served_meanwhile(daemon: RunningDaemon) -> None:
    path = daemon.socket_path
    before = at_rest(daemon.pid, daemon.socket_path)
    slow = Dribblers(path, 300)
    try:
        eventually(lambda: footprint(daemon.pid)["threads"] > before["threads"] + 200, "their threads", timeout_s=60)
        assert [code(path, f"print({number})")["stdout"] for number in range(20)] == [f"{n}\n" for n in range(20)]
        eventually(lambda: slow.slow_left == 0, "every slow request ended", timeout_s=PATIENCE_S)
    finally:
        slow.close()
    eventually(lambda: footprint(daemon.pid) == before, f"at rest again: {before}", timeout_s=60)


def test_more_slow_connections_than_there_is_room_for() -> None:
    """None of them would be ended for its slowness yet: who has waited longest makes room."""
    before = threading.active_count()
    try:
        served = LocalCollimateBackend(isolation="namespaces", limits=Limits(max_connections=32))
        served.start()
    except IsolationUnavailable as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")
    try:
        host, _, port = served.base_url.removeprefix("http://").rpartition(":")
        slow = Dribblers((host, int(port)), 200)
        try:
            eventually(lambda: slow.left <= 32, "room made by the first ones", timeout_s=60)
            with CollimateClient(served.base_url, retries=0) as client:
                for number in range(20):
                    assert client.exec_once("py", code=f"print({number})")["stdout"] == f"{number}\n"
        finally:
            slow.close()
    finally:
        served.close()
    eventually(lambda: threading.active_count() <= before, "threads back", timeout_s=60)


def test_an_answer_that_nobody_reads_holds_nothing() -> None:
    """The caller asks for 15 MiB, and reads nothing of them until the daemon has given up."""
    before = threading.active_count()
    try:
        served = LocalCollimateBackend(isolation="namespaces", limits=Limits(keepalive_s=2.0))
        served.start()
    except IsolationUnavailable as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")
    try:
        host, _, port = served.base_url.removeprefix("http://").rpartition(":")
        body = json.dumps({**EXEC, "code": "print('x' * (15 << 20))"}).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            connection.settimeout(PATIENCE_S)
            resting = threading.active_count()
            connection.connect((host, int(port)))
            connection.sendall(f"POST /v1/exec HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            eventually(lambda: threading.active_count() > resting, "its thread", timeout_s=60)
            eventually(lambda: threading.active_count() == resting, "its thread is gone", timeout_s=60)
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(1 << 16):
                    received += len(chunk)
            assert received < 15 << 20
    finally:
        served.close()
    eventually(lambda: threading.active_count() <= before, "threads back", timeout_s=60)
