"""The connection pool against a real server: reuse, staleness, deadlines, and what each failure says."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from collimate_rl._connection import Endpoint
from collimate_rl._http import HttpPool
from collimate_rl.errors import AmbiguousError, MalformedAnswer, UnreachableError
from tests.fixtures.scripted_server import ScriptedServer, answer, drip, frame, hang_up, raw, reset, then_hang_up


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["unix", "tcp"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScriptedServer]:
    path = Path(os.path.relpath(tmp_path / "s")) if request.param == "unix" else None
    with ScriptedServer(path) as started:
        yield started


@pytest.fixture
def pool(server: ScriptedServer) -> Iterator[HttpPool]:
    made = HttpPool(Endpoint.parse(server.base_url))
    yield made
    made.close()


def get(pool: HttpPool, timeout_s: float = 20.0) -> bytes:
    return pool.request("GET", "/x", timeout_s=timeout_s).body


def test_one_connection_serves_many_requests(server: ScriptedServer, pool: HttpPool) -> None:
    for _ in range(5):
        assert b"hello" in pool.request("POST", "/v1/exec", b"{}", timeout_s=20).body
    assert server.connections == 1
    assert [request.body for request in server.requests] == [b"{}"] * 5


def test_threads_share_connections_and_the_one_used_last_is_taken_first(server: ScriptedServer, pool: HttpPool) -> None:
    gate = threading.Barrier(4)
    server.script = [lambda peer, request: (gate.wait(20), answer({})(peer, request))[1]] * 4
    threads = [threading.Thread(target=get, args=(pool,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.connections == 4
    last = [get(pool), get(pool), get(pool)]
    assert len(last) == 3
    assert len({request.connection for request in server.requests[-3:]}) == 1
    assert server.connections == 4


def test_a_connection_that_the_peer_closed_while_idle_is_not_used(server: ScriptedServer, pool: HttpPool) -> None:
    server.script = [then_hang_up(answer({"n": 1}))] * 3
    for _ in range(3):
        assert get(pool) == b'{"n": 1}'
        _until_stale(pool)
    assert len(server.requests) == 3
    assert server.connections == 3


def test_bytes_that_nobody_asked_for_end_a_connection(server: ScriptedServer, pool: HttpPool) -> None:
    server.script = [raw(frame(b"{}") + frame(b'"stray"')), answer({"n": 2})]
    assert get(pool) == b"{}"
    assert get(pool) == b'{"n": 2}'


def test_an_idle_connection_is_dropped_after_twenty_seconds(server: ScriptedServer) -> None:
    clock = FakeClock()
    pool = HttpPool(Endpoint.parse(server.base_url), clock=clock)
    get(pool)
    clock.now += 20.0
    get(pool)
    assert server.connections == 1
    clock.now += 20.1
    get(pool)
    assert server.connections == 2
    server.wait_until(lambda: server.closed_by_client == 1)
    pool.close()


def test_the_pool_keeps_a_bounded_number_of_idle_connections(server: ScriptedServer) -> None:
    pool = HttpPool(Endpoint.parse(server.base_url), max_idle=1)
    gate = threading.Barrier(3)
    server.script = [lambda peer, request: (gate.wait(20), answer({})(peer, request))[1]] * 3
    threads = [threading.Thread(target=get, args=(pool,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.wait_until(lambda: server.closed_by_client == 2)
    pool.close()
    server.wait_until(lambda: server.closed_by_client == 3)


def test_a_closed_pool_still_answers_and_keeps_no_connection_from_before(
    server: ScriptedServer, pool: HttpPool
) -> None:
    def close_meanwhile(peer: socket.socket, request: object) -> bool:
        pool.close()
        peer.sendall(frame(b"{}"))
        return True

    server.script = [close_meanwhile]
    assert get(pool) == b"{}"
    server.wait_until(lambda: server.closed_by_client == 1)
    get(pool)
    assert server.connections == 2


def test_a_pool_that_is_dropped_closes_its_connections(server: ScriptedServer) -> None:
    pool = HttpPool(Endpoint.parse(server.base_url))
    get(pool)
    del pool
    server.wait_until(lambda: server.closed_by_client == 1)


def test_a_forked_child_opens_its_own_connection(server: ScriptedServer, pool: HttpPool) -> None:
    get(pool)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, get(pool))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert b"hello" in pipe.read()
    os.waitpid(child, 0)
    get(pool)
    assert [request.connection for request in server.requests] == [1, 2, 1]


# What each failure says


def test_nothing_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "unix:" + os.path.relpath(tmp_path / "none")):
        with pytest.raises(UnreachableError, match="is the server running"):
            get(HttpPool(Endpoint.parse(url)))


def test_a_host_that_no_lookup_takes_is_unreachable() -> None:
    with pytest.raises(UnreachableError):
        get(HttpPool(Endpoint.parse(f"http://{'a' * 70}.invalid")))


@pytest.mark.parametrize("behave", [hang_up, reset])
def test_a_connection_that_breaks_after_the_send_is_ambiguous(
    server: ScriptedServer, pool: HttpPool, behave: object
) -> None:
    server.script = [behave]  # type: ignore[list-item]
    with pytest.raises(AmbiguousError):
        pool.request("POST", "/v1/exec", b"{}", timeout_s=20)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"",
    ],
)
def test_an_answer_cut_short_is_ambiguous(server: ScriptedServer, pool: HttpPool, content: bytes) -> None:
    server.script = [raw(content, keep=False)]
    with pytest.raises(AmbiguousError) as caught:
        get(pool)
    assert not isinstance(caught.value, MalformedAnswer)


@pytest.mark.parametrize(
    "content",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\xff\xfe garbage\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_malformed(server: ScriptedServer, pool: HttpPool, content: bytes) -> None:
    server.script = [raw(content, keep=False)]
    with pytest.raises(MalformedAnswer):
        get(pool)


@pytest.mark.parametrize("extra", ["", "Transfer-Encoding: chunked\r\n", "Connection: close\r\n"])
def test_an_answer_has_a_bounded_size(server: ScriptedServer, extra: str) -> None:
    pool = HttpPool(Endpoint.parse(server.base_url), max_answer_bytes=1000)
    body = b"x" * 1001
    if "chunked" in extra:
        content = b"HTTP/1.1 200 OK\r\n" + extra.encode() + b"\r\n3e9\r\n" + body + b"\r\n0\r\n\r\n"
    elif extra:
        content = b"HTTP/1.1 200 OK\r\n" + extra.encode() + b"\r\n" + body
    else:
        content = frame(body)
    server.script = [raw(content, keep=False)]
    with pytest.raises(MalformedAnswer, match="1000"):
        get(pool)
    pool.close()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"{}"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + frame(b"{}"), b"{}"),
        (b"HTTP/1.1 200\r\ncontent-length:2\r\n\r\n{}", b"{}"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_other_forms_of_http_keep_the_connection(
    server: ScriptedServer, pool: HttpPool, content: bytes, expected: bytes
) -> None:
    server.script = [raw(content), raw(content)]
    assert [get(pool), get(pool)] == [expected, expected]
    assert server.connections == 1


@pytest.mark.parametrize(
    "content",
    [
        frame(b"{}", extra="Connection: close\r\n"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
    ],
)
def test_an_answer_that_ends_the_connection(server: ScriptedServer, pool: HttpPool, content: bytes) -> None:
    server.script = [raw(content, keep=False), raw(content, keep=False)]
    assert [get(pool), get(pool)] == [b"{}", b"{}"]
    assert server.connections == 2


def test_silence_ends_at_the_deadline(server: ScriptedServer, pool: HttpPool) -> None:
    never = threading.Event()
    server.script = [lambda peer, request: never.wait(20)]
    with pytest.raises(AmbiguousError, match="before its deadline"):
        get(pool, timeout_s=0.05)
    never.set()


def test_a_peer_that_drips_bytes_is_held_to_the_whole_deadline(server: ScriptedServer, pool: HttpPool) -> None:
    server.script = [drip(frame(b"x" * 10_000), 0.02)]
    with pytest.raises(AmbiguousError, match="before its deadline"):
        get(pool, timeout_s=0.2)


def test_a_refusal_that_comes_before_the_whole_body_was_read_is_the_answer(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)

        def refuse_early() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(frame(b'{"error":"too large"}', 413, "Connection: close\r\n"))

        thread = threading.Thread(target=refuse_early)
        thread.start()
        got = HttpPool(Endpoint.unix(path)).request("POST", "/v1/exec", b"x" * 5_000_000, timeout_s=20)
        thread.join()
    assert (got.status, got.body) == (413, b'{"error":"too large"}')


def test_a_full_backlog_of_a_unix_socket_is_waited_for(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        pool = HttpPool(Endpoint.unix(path))
        results: list[bytes] = []
        threads = [threading.Thread(target=lambda: results.append(get(pool))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in threads:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(frame(b"{}", extra="Connection: close\r\n"))
        for thread in threads:
            thread.join()
    assert results == [b"{}"] * 8


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:80",
        "ftp://h",
        "http://",
        "http://u@h",
        "http://h/?q",
        "http://h/a b",
        "http://ü",
        "unix:",
    ],
)
def test_an_address_that_cannot_be(url: str) -> None:
    with pytest.raises(ValueError):
        Endpoint.parse(url)


def test_a_socket_path_must_fit_an_address() -> None:
    with pytest.raises(ValueError, match="107"):
        Endpoint.unix("/" + "x" * 107)


def test_addresses() -> None:
    assert str(Endpoint.parse("http://h:8080/a/b/")) == "http://h:8080/a/b"
    assert Endpoint.parse("http://[::1]:9").host_header == "[::1]:9"
    assert str(Endpoint.parse("https://h/a")) == "https://h/a"
    assert Endpoint.parse("https://h:8443").host_header == "h:8443"
    assert Endpoint.parse("unix:///run/s").unix_path == "/run/s"
    assert Endpoint.parse("unix:/run/s").unix_path == "/run/s"


def _until_stale(pool: HttpPool) -> None:
    """Wait, bounded, until the peer's close has reached the idle connection."""
    (idle,) = pool._by_pid.values()
    connection = idle.stack[-1]
    for _ in range(2000):
        if connection.is_stale():
            return
        threading.Event().wait(0.005)
    raise AssertionError("the peer never closed")
