"""What every transport does, over every kind of connection: against real servers, a real proxy and real TLS."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest

from collimate_rl._transport import Transport
from collimate_rl.errors import AmbiguousError, MalformedAnswer, UnreachableError
from tests.fixtures.scripted_server import answer, drip, frame, hang_up, raw, reset, then_hang_up
from tests.fixtures.transports import KINDS, World, build

BY_TCP = [kind for kind in KINDS if kind != "std-unix"]


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def transport(world: World) -> Transport:
    return world.make()


def get(transport: Transport, timeout_s: float = 20.0) -> bytes:
    return transport.request("GET", "/x", timeout_s=timeout_s).body


def post(transport: Transport, body: bytes = b"{}") -> bytes:
    return transport.request("POST", "/v1/exec", body, timeout_s=20).body


# What goes and what comes


def test_a_request_arrives_as_it_was_given(world: World, transport: Transport) -> None:
    body = b'{"code":"\\ud800"}'
    path = "/v1/sessions/../%2e%2F%61?a=b&c=%20"
    transport.request("POST", path, body, headers={"Authorization": "Bearer col_pro_x"}, timeout_s=20)
    (request,) = world.server.requests
    assert (request.method, request.path.lower(), request.body) == ("POST", path.lower(), body)
    assert request.headers["authorization"] == "Bearer col_pro_x"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept"] == "application/json"
    assert "cookie" not in request.headers
    assert request.headers.get("accept-encoding", "identity") == "identity"


def test_an_answer_comes_with_status_headers_and_bytes(world: World, transport: Transport) -> None:
    world.server.script = [raw(frame(b"\0\xff", 503, "Retry-After:  7 \r\nX-Thing: a, b\r\n"))]
    got = transport.request("GET", "/x", timeout_s=20)
    assert (got.status, got.body) == (503, b"\0\xff")
    assert (got.headers["retry-after"], got.headers["x-thing"]) == ("7", "a, b")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer_and_nobody_gets_the_key(world: World, transport: Transport, status: int) -> None:
    world.server.script = [answer({}, status, f"Location: {world.server.base_url}/elsewhere\r\n")]
    got = transport.request("POST", "/x", b"{}", headers={"Authorization": "Bearer k"}, timeout_s=20)
    assert got.status == status
    assert len(world.server.requests) == 1


def test_cookies_and_netrc_change_nothing(
    world: World, transport: Transport, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login user password word\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    world.server.script = [answer({}, 200, "Set-Cookie: a=b; Path=/\r\n")]
    for _ in range(2):
        transport.request("GET", "/x", headers={"Authorization": "Bearer k"}, timeout_s=20)
    assert [request.headers["authorization"] for request in world.server.requests] == ["Bearer k"] * 2
    assert all("cookie" not in request.headers for request in world.server.requests)


@pytest.mark.parametrize("size", [0, 1, 16_384, 5_000_000])
def test_bodies_of_every_size_go_both_ways(world: World, transport: Transport, size: int) -> None:
    body = os.urandom(size)
    world.server.script = [lambda peer, request: (peer.sendall(frame(request.body)), True)[1]]
    assert post(transport, body) == body


@pytest.mark.parametrize("header", ["a\r\nX-Injected: yes", "a\nb", "\u2028"])
def test_a_header_that_cannot_be_is_refused_before_anything_is_sent(
    world: World, transport: Transport, header: str
) -> None:
    with pytest.raises(ValueError):
        transport.request("GET", "/x", headers={"Authorization": header}, timeout_s=20)
    assert world.server.requests == []
    assert b"hello" in get(transport)


@pytest.mark.parametrize("path", ["", "x", "/a b", "/a\r\nX: y", "/ü", "/\x7f"])
def test_a_path_that_cannot_be_is_refused_before_anything_is_sent(
    world: World, transport: Transport, path: str
) -> None:
    with pytest.raises(ValueError):
        transport.request("GET", path, timeout_s=20)
    assert world.server.requests == []


def test_the_address_is_for_messages(world: World, transport: Transport) -> None:
    assert transport.address == world.server.base_url


# Connections


def test_one_connection_serves_many_requests(world: World, transport: Transport) -> None:
    for _ in range(5):
        assert b"hello" in post(transport)
    assert world.server.connections == 1
    assert [request.body for request in world.server.requests] == [b"{}"] * 5


def test_threads_share_a_transport(world: World, transport: Transport) -> None:
    gate = threading.Barrier(4)
    world.server.script = [lambda peer, request: (gate.wait(20), answer({})(peer, request))[1]] * 4
    threads = [threading.Thread(target=get, args=(transport,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(3):
        get(transport)
    assert world.server.connections == 4


def test_a_connection_that_the_peer_closed_while_idle_is_not_used(world: World, transport: Transport) -> None:
    world.server.script = [then_hang_up(answer({"n": 1}))] * 3
    for _ in range(3):
        assert get(transport) == b'{"n": 1}'
        wait_for_the_close(world)
    assert len(world.server.requests) == 3
    assert world.server.connections == 3


def test_an_idle_connection_is_dropped_after_twenty_seconds(world: World) -> None:
    clock = FakeClock()
    transport = world.make(clock=clock)
    get(transport)
    clock.now += 20.0
    get(transport)
    assert world.server.connections == 1
    clock.now += 20.1
    get(transport)
    assert world.server.connections == 2


@pytest.mark.parametrize("ending", [hang_up, reset])
def test_a_large_request_on_a_connection_that_closes_meanwhile_is_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch, ending: Any
) -> None:
    # The look at an idle connection sees nothing, and then the peer closes it: the write breaks off.
    blind(world, monkeypatch)
    transport = world.make()
    arrived = threading.Event()
    world.server.script = [
        lambda peer, request: (answer({})(peer, request), arrived.wait(20), ending(peer, request))[2]
    ]
    get(transport)
    arrived.set()
    wait_for_the_close(world)
    assert b"hello" in post(transport, bytes(8_000_000))
    assert [len(request.body) for request in world.server.requests] == [0, 8_000_000]
    assert world.server.connections == 2


@pytest.mark.parametrize("world", BY_TCP, indirect=True)  # a closed unix socket takes no byte
def test_a_small_request_that_left_whole_is_not_sent_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    blind(world, monkeypatch)
    transport = world.make()
    gate = threading.Event()

    def close_when_asked(peer: socket.socket, request: object) -> bool:
        peer.sendall(frame(b"{}"))
        peer.recv(1 << 16)  # the next request arrives, and is dropped: for the client it is the same as an old close
        gate.set()
        return False

    world.server.script = [close_when_asked]
    get(transport)
    with pytest.raises(AmbiguousError):
        post(transport)
    assert gate.is_set()
    assert len(world.server.requests) == 1


def test_a_closed_transport_still_answers(world: World, transport: Transport) -> None:
    get(transport)
    transport.close()
    world.server.wait_until(lambda: world.server.closed_by_client == 1)
    assert b"hello" in get(transport)
    assert world.server.connections == 2


def test_a_forked_child_opens_its_own_connection(world: World, transport: Transport) -> None:
    get(transport)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, get(transport))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert b"hello" in pipe.read()
    os.waitpid(child, 0)
    get(transport)
    assert [request.connection for request in world.server.requests] == [1, 2, 1]


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
    world: World, transport: Transport, content: bytes, expected: bytes
) -> None:
    world.server.script = [raw(content), raw(content)]
    assert [get(transport), get(transport)] == [expected, expected]
    assert world.server.connections == 1


@pytest.mark.parametrize(
    "content",
    [
        frame(b"{}", extra="Connection: close\r\n"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
    ],
)
def test_an_answer_that_ends_the_connection(world: World, transport: Transport, content: bytes) -> None:
    world.server.script = [raw(content, keep=False), raw(content, keep=False)]
    assert [get(transport), get(transport)] == [b"{}", b"{}"]
    assert world.server.connections == 2


def test_bytes_that_nobody_asked_for_end_a_connection(world: World, transport: Transport) -> None:
    world.server.script = [raw(frame(b"{}") + frame(b'"stray"')), answer({"n": 2})]
    assert get(transport) == b"{}"
    assert get(transport) == b'{"n": 2}'


# What each failure says


@pytest.mark.parametrize("world", [kind for kind in BY_TCP if kind != "requests-proxy"], indirect=True)
def test_nothing_listens(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for host in ("127.0.0.1", f"{'a' * 70}.invalid", "nowhere.invalid"):
        with pytest.raises(UnreachableError):
            get(build(world.kind, f"http://{host}:{port}"))


@pytest.mark.parametrize("behave", [hang_up, reset])
def test_a_connection_that_breaks_after_the_send_is_ambiguous(world: World, transport: Transport, behave: Any) -> None:
    world.server.script = [behave]
    with pytest.raises(AmbiguousError) as caught:
        post(transport)
    assert not isinstance(caught.value, MalformedAnswer)
    assert len(world.server.requests) == 1


def test_a_first_request_that_breaks_off_is_ambiguous(world: World, transport: Transport) -> None:
    world.server.cut_bodies = 1
    with pytest.raises(AmbiguousError):
        post(transport, bytes(8_000_000))
    assert world.server.requests == []
    assert world.server.connections == 1


@pytest.mark.parametrize(
    "content",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"",
    ],
)
def test_an_answer_cut_short_is_ambiguous(world: World, transport: Transport, content: bytes) -> None:
    world.server.script = [raw(content, keep=False)]
    with pytest.raises(AmbiguousError) as caught:
        get(transport)
    assert not isinstance(caught.value, MalformedAnswer)


@pytest.mark.parametrize(
    "content",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\xff\xfe garbage\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nxxxxx\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"e" * 70_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_malformed(world: World, transport: Transport, content: bytes) -> None:
    world.server.script = [raw(content, keep=False)]
    with pytest.raises(MalformedAnswer):
        get(transport)


@pytest.mark.parametrize("extra", ["", "Transfer-Encoding: chunked\r\n", "Connection: close\r\n"])
def test_an_answer_has_a_bounded_size(world: World, extra: str) -> None:
    transport = world.make(max_answer_bytes=1000)
    body = b"x" * 1001
    if "chunked" in extra:
        content = b"HTTP/1.1 200 OK\r\n" + extra.encode() + b"\r\n3e9\r\n" + body + b"\r\n0\r\n\r\n"
    elif extra:
        content = b"HTTP/1.1 200 OK\r\n" + extra.encode() + b"\r\n" + body
    else:
        content = frame(body)
    world.server.script = [raw(content, keep=False)]
    with pytest.raises(MalformedAnswer, match="1000"):
        get(transport)


def test_silence_ends_at_the_deadline(world: World, transport: Transport) -> None:
    get(transport)
    never = threading.Event()
    world.server.script = [lambda peer, request: never.wait(20)]
    with pytest.raises(AmbiguousError, match="before its deadline"):
        get(transport, timeout_s=0.3)
    never.set()


@pytest.mark.parametrize("content", [frame(b"x" * 10_000), b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000])
def test_a_peer_that_drips_bytes_is_held_to_the_whole_deadline(
    world: World, transport: Transport, content: bytes
) -> None:
    get(transport)
    world.server.script = [drip(content, 0.02)]
    with pytest.raises(AmbiguousError, match="before its deadline"):
        get(transport, timeout_s=0.5)


@pytest.mark.parametrize("kind", ["std-tcp", "requests-tcp"])
def test_a_peer_that_takes_nothing_is_held_to_the_deadline(kind: str) -> None:
    body = bytes(16_000_000)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        transport = build(kind, f"http://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(AmbiguousError):
            transport.request("POST", "/x", body, timeout_s=1.0)
        transport.close()


@pytest.mark.parametrize("world", ["std-unix", "std-tcp", "requests-tcp"], indirect=True)
def test_a_refusal_that_comes_before_the_whole_body_was_read_is_the_answer(world: World, transport: Transport) -> None:
    ready = threading.Event()

    def refuse_early(peer: socket.socket) -> bool:
        peer.sendall(frame(b'{"error":"too large"}', 413, "Connection: close\r\n"))
        ready.set()
        while peer.recv(1 << 20):  # a reset would take the answer with it
            pass
        return True

    world.server._cuts = refuse_early  # type: ignore[method-assign]
    got = transport.request("POST", "/v1/exec", b"x" * 5_000_000, timeout_s=20)
    assert ready.is_set()
    assert (got.status, got.body) == (413, b'{"error":"too large"}')


def blind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no look at an idle connection see that it was closed."""
    if world.is_std:
        monkeypatch.setattr("collimate_rl._connection.Connection.is_stale", lambda self: False)
    else:
        monkeypatch.setattr(
            "collimate_rl._requests_transport._Watched.is_connected", property(lambda self: self.sock is not None)
        )


def wait_for_the_close(world: World) -> None:
    """Until the server has closed its connections, and that has had time to show."""
    world.server.wait_until(lambda: not world.server._serving)
    threading.Event().wait(0.05)
