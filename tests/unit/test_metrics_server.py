"""The supervisor's small HTTP server: right answers, and nothing that a client does takes it away from the others."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from worker import metrics_server
from worker.metrics_server import MAX_OPEN, MetricsServer, Page

BODY = b"collimate_x 1\n"


def broken() -> Page:
    raise RuntimeError("a fault in a page")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(metrics_server, "PATIENCE_S", 1.0)
    monkeypatch.setattr(metrics_server, "PER_SECOND", 100_000.0)
    page = Page(status=200, content_type="text/plain", body=BODY)
    made = MetricsServer("127.0.0.1", 0, {"/metrics": lambda: page, "/broken": broken})
    made.start()
    yield made
    assert made.stop(30)


def dial(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def heard(peer: socket.socket) -> bytes:
    """Everything until the other side closes, in order or not."""
    found = b""
    try:
        while part := peer.recv(65536):
            found += part
    except ConnectionResetError:
        pass  # it did not wait for what else was being sent
    return found


def ask(server: MetricsServer, request: bytes) -> bytes:
    with dial(server) as peer:
        peer.sendall(request)
        return heard(peer)


def send_on(peer: socket.socket) -> None:
    while True:
        peer.sendall(b"x" * 65536)


def scrape(server: MetricsServer) -> bytes:
    return ask(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_page_is_answered_whole_and_the_connection_closed(server: MetricsServer) -> None:
    head, _, body = scrape(server).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert f"Content-Length: {len(BODY)}".encode() in lines
    assert b"Connection: close" in lines
    assert b"X-Content-Type-Options: nosniff" in lines
    assert body == BODY
    assert ask(server, b"GET /metrics?a=b HTTP/1.0\n\n").endswith(BODY)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /elsewhere HTTP/1.1", b"404"),
        (b"GET /../etc/passwd HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"GET /metrics HTTP/2.0", b"505"),
        (b"GET /metrics", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400"),
        (b"GET /\xff\x00\x1b[31m HTTP/1.1", b"404"),
        (b"", b"400"),
        (b"GET /broken HTTP/1.1", b"500"),
    ],
    ids=["unknown", "dots", "post", "version", "short", "tls", "bytes", "empty", "fault"],
)
def test_what_is_no_good_request_has_its_status_and_harms_nobody(
    server: MetricsServer, request_line: bytes, status: bytes
) -> None:
    assert ask(server, request_line + b"\r\nHost: x\r\n\r\n").split(b" ", 2)[1] == status
    assert scrape(server).endswith(BODY)


def test_head_has_no_body(server: MetricsServer) -> None:
    assert ask(server, b"HEAD /metrics HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


def test_a_head_without_end_is_cut_off(server: MetricsServer) -> None:
    with dial(server) as peer:
        peer.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 9000)
        assert heard(peer).startswith(b"HTTP/1.1 431 ")
    until(lambda: server.open == 0)


def test_one_that_sends_on_and_on_is_left(server: MetricsServer) -> None:
    with dial(server) as peer:
        peer.sendall(b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        with pytest.raises(OSError):
            send_on(peer)
    assert scrape(server).endswith(BODY)


def test_slow_clients_are_dropped_and_keep_nobody_waiting(server: MetricsServer) -> None:
    silent = [dial(server) for _ in range(5)]
    slow = dial(server)
    slow.sendall(b"GET /met")
    assert scrape(server).endswith(BODY)
    until(lambda: server.open == 0)
    for peer in [*silent, slow]:
        with peer:
            assert heard(peer) == b""


def test_a_crowd_pushes_out_its_own_and_a_scraper_comes_through(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "PATIENCE_S", 60.0)
    files = len(os.listdir("/proc/self/fd"))
    crowd = [dial(server) for _ in range(MAX_OPEN + 20)]
    assert scrape(server).endswith(BODY)
    assert server.open <= MAX_OPEN
    for peer in crowd:
        peer.close()
    until(lambda: server.open == 0)
    until(lambda: len(os.listdir("/proc/self/fd")) == files)


def test_requests_beyond_the_rate_wait_and_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still, exactly as many are accepted as there is allowance for; then it goes on."""
    now = [0.0]
    page = Page(status=200, content_type="text/plain", body=BODY)
    server = MetricsServer("127.0.0.1", 0, {"/metrics": lambda: page}, clock=lambda: now[0])
    accepted = 0
    peers: list[socket.socket] = []
    try:
        for _ in range(int(metrics_server.BURST) + 5):
            peers.append(dial(server))
            server._round()
            server._drop_all()
        told = [peer.recv(1) if index < 100 else None for index, peer in enumerate(peers)]
        accepted = told.count(b"")
        assert accepted == metrics_server.BURST
        assert server.open == 0
        now[0] = 1.0
        server._round()
        assert server.open == 1
    finally:
        for peer in peers:
            peer.close()
        assert server.stop(1)


def test_it_stops_with_clients_connected_and_leaves_nothing() -> None:
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    server = MetricsServer("127.0.0.1", 0, {})
    server.start()
    with dial(server) as peer:
        until(lambda: server.open == 1)
        assert server.stop(30)
        assert heard(peer) == b""
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (files, threads)


def test_an_address_that_is_taken_is_an_os_error(server: MetricsServer) -> None:
    with pytest.raises(OSError, match="in use"):
        MetricsServer("127.0.0.1", server.port, {})
