"""Who may stay connected, and how long a request may take to come."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from collimate_rl.sandboxd.http_connections import ConnectionTable
from collimate_rl.sandboxd.http_wire import ConnectionEnded, Patience, RequestReader, send_within


class Peers:
    """Connected pairs: the daemon's end by number, and whether it was ended."""

    def __init__(self, count: int) -> None:
        self.pairs = [socket.socketpair() for _ in range(count)]

    def __getitem__(self, number: int) -> socket.socket:
        return self.pairs[number][0]

    def is_ended(self, number: int) -> bool:
        theirs = self.pairs[number][1]
        theirs.setblocking(False)
        try:
            return theirs.recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        for pair in self.pairs:
            for end in pair:
                end.close()


@pytest.fixture
def peers() -> Peers:
    found = Peers(5)
    yield found  # type: ignore[misc]
    found.close()


THREAD = threading.current_thread()


def test_whoever_has_waited_longest_makes_room(peers: Peers) -> None:
    table = ConnectionTable(3)
    assert [table.admit(peers[n], THREAD) for n in range(3)] == [True] * 3
    assert table.begin_request(peers[0])
    assert table.wait_again(peers[0])
    assert table.admit(peers[3], THREAD)
    assert [peers.is_ended(n) for n in range(4)] == [False, True, False, False]
    assert not table.begin_request(peers[1])
    assert table.admit(peers[4], THREAD)
    assert [peers.is_ended(n) for n in (0, 2, 3, 4)] == [False, True, False, False]


def test_requests_in_hand_are_never_ended(peers: Peers) -> None:
    table = ConnectionTable(2)
    for n in range(2):
        assert table.admit(peers[n], THREAD)
        assert table.begin_request(peers[n])
    assert not table.admit(peers[2], THREAD)
    assert not table.make_room()
    assert not any(peers.is_ended(n) for n in range(2))
    table.remove(peers[0])
    assert table.admit(peers[2], THREAD)


def test_closing_ends_those_that_wait_and_nobody_else(peers: Peers) -> None:
    table = ConnectionTable(9)
    for n in range(3):
        assert table.admit(peers[n], THREAD)
    assert table.begin_request(peers[0])
    table.close()
    assert [peers.is_ended(n) for n in range(3)] == [False, True, True]
    assert not table.begin_request(peers[1])
    assert not table.wait_again(peers[0])
    assert not table.admit(peers[3], THREAD)


class Ticking:
    """A clock that every look moves on by a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("sent", "looks"),
    [
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 1000, 40),
        (b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n" + b"a" * 500, 80),
        (b"POST / HTTP/1.1\r\nContent-Length: 9000\r\n\r\n" + b"a" * 5000, 80),
    ],
)
def test_a_request_that_comes_byte_by_byte_has_a_deadline_for_the_whole(sent: bytes, looks: int) -> None:
    """Each byte is there at once, and each look at the clock is a second."""

    class OneByteAtATime:
        def __init__(self) -> None:
            self.rest = sent

        def setsockopt(self, level: int, option: int, value: bytes) -> None:
            assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVTIMEO)
            assert struct.unpack("@ll", value) > (0, 0)

        def recv(self, _most: int) -> bytes:
            byte, self.rest = self.rest[:1], self.rest[1:]
            assert byte
            return byte

    clock = Ticking()
    reader = RequestReader(
        OneByteAtATime(),  # type: ignore[arg-type]
        4096,
        Patience(idle_s=5, head_s=60, body_s=30) if b"POST" in sent else Patience(idle_s=5, head_s=30, body_s=1),
        clock=clock,
    )
    with pytest.raises(ConnectionEnded, match="in time"):
        reader.next()
    assert clock.now <= looks + 10


def test_an_answer_is_sent_whole_or_given_up_in_time() -> None:
    ours, theirs = socket.socketpair()
    answer = bytes(range(256)) * 40_000
    with ours, theirs:
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(theirs.recv(len(answer), socket.MSG_WAITALL)))
        reader.start()
        send_within(ours, answer, 60)
        reader.join()
        assert got == [answer]
        assert ours.gettimeout() is None
        with pytest.raises(TimeoutError):
            send_within(ours, answer, 0.05)
