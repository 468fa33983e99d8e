"""What listens by the kernel's tables, and bytes passed between two sockets in all the ways that they end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from collimate_rl.sandboxd.config import Template
from collimate_rl.sandboxd.inside.ports import listening_ports
from collimate_rl.sandboxd.interpreter import language_folders
from collimate_rl.sandboxd.portloop import LoopClosed, PortLoop
from collimate_rl.sandboxd.relay import CHUNK, Relay

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(address: str, port: int, state: str = "0A") -> str:
    return (
        f"   0: {address}:{port:04X} {'0' * len(address)}:0000 {state} 00000000:00000000 00:00000000 00000000  1000\n"
    )


def test_listening_ports() -> None:
    tcp = HEAD + row("0100007F", 8000) + row("00000000", 8001) + row("0A00000A", 8002) + row("0100007F", 8003, "01")
    tcp6 = (
        HEAD
        + row("0" * 32, 9000)
        + row("0" * 24 + "01000000", 9001)
        + row("0" * 16 + "FFFF0000" + "0100007F", 9002)
        + row("B80D0120" + "0" * 24, 9003)
    )
    assert listening_ports(tcp, tcp6) == {8000, 8001, 9000, 9001, 9002}
    assert listening_ports("", "") == set()
    assert listening_ports("nonsense\n\n", HEAD) == set()


@pytest.fixture
def loop() -> Iterator[PortLoop]:
    loop = PortLoop()
    yield loop
    loop.close()


class Pair:
    """Two outer ends with a relay between them."""

    def __init__(self, loop: PortLoop) -> None:
        self._loop = loop
        self.one, inner_one = socket.socketpair()
        self.other, inner_other = socket.socketpair()
        self.closed = threading.Event()
        for end in (inner_one, inner_other):
            end.setblocking(False)
        for end in (self.one, self.other):
            end.settimeout(30)
        self.relay = Relay(loop, inner_one, inner_other, self.closed.set)
        loop.call(self.relay.start)

    def close(self) -> None:
        self.one.close()
        self.other.close()
        # The loop may end before it has heard of that, and closes nothing of what it serves.
        self._loop.call(self.relay.close)


@pytest.fixture
def pair(loop: PortLoop) -> Iterator[Pair]:
    pair = Pair(loop)
    yield pair
    pair.close()


def read_all(connection: socket.socket) -> bytes:
    data = bytearray()
    while chunk := connection.recv(1 << 16):
        data += chunk
    return bytes(data)


def test_each_direction_ends_by_itself(pair: Pair) -> None:
    pair.one.sendall(b"question")
    pair.one.shutdown(socket.SHUT_WR)
    assert read_all(pair.other) == b"question"
    assert not pair.closed.is_set()
    pair.other.sendall(b"answer")
    pair.other.shutdown(socket.SHUT_WR)
    assert read_all(pair.one) == b"answer"
    assert pair.closed.wait(30)


def send_until_full(connection: socket.socket) -> int:
    connection.settimeout(0.5)
    sent = 0
    try:
        while True:
            sent += connection.send(b"x" * CHUNK)
    except TimeoutError:
        return sent


def test_what_is_not_read_waits_outside(pair: Pair) -> None:
    """A sender stalls once the buffers are full: the relay holds one chunk, and reads no more before it is gone."""
    sent = send_until_full(pair.one)
    assert sent < 32 * CHUNK
    got = 0
    while got < sent:
        got += len(pair.other.recv(1 << 20))
    assert got == sent


def test_a_side_that_is_gone_ends_both(pair: Pair) -> None:
    pair.other.close()
    assert pair.one.recv(1) == b""
    pair.one.close()
    assert pair.closed.wait(30)


def test_the_loop_raises_what_its_work_raised_and_ends_once(loop: PortLoop) -> None:
    def fails() -> None:
        raise ValueError("by design")

    with pytest.raises(ValueError, match="by design"):
        loop.call(fails)
    loop.call(lambda: None)
    loop.close()
    loop.close()
    with pytest.raises(LoopClosed):
        loop.call(lambda: None)


def test_timers_run_in_order(loop: PortLoop) -> None:
    ran: list[int] = []
    over = threading.Event()

    def plan() -> None:
        for at in (3, 1, 2):
            loop.later(at / 100, partial(ran.append, at))
        loop.later(0.05, over.set)

    loop.call(plan)
    assert over.wait(30)
    assert ran == [1, 2, 3]


def test_where_another_languages_program_lives() -> None:
    assert language_folders("/bin/sh") <= {"/bin", "/usr/bin", "/usr"}
    with pytest.raises(ValueError, match="install it"):
        language_folders("/usr/bin/no-such-program")


def test_what_isolation_a_template_needs() -> None:
    assert Template().needs_isolation() == []
    assert Template(expose_ports=(8000,), data=(("/data", "/srv/d"),)).needs_isolation() == ["expose_ports", "data"]
