"""A candidate held from outside: what is read of its channels, what is made of its end, and who is read slowly."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from collimate_rl.grading.frames import Report, read_report
from collimate_rl.grading.limits import STARVED
from collimate_rl.guest import held, runner
from collimate_rl.guest.holder import READS
from tests.fixtures.held_jobs import job_of

CANDIDATE = """
import os, sys
from collimate_rl.guest.held import alone
os.write(int(sys.argv[1]), b".")
alone(int(sys.argv[1]))
"""


class Held:
    """One candidate process of this test's own, and the report on a job that it is held through."""

    def __init__(self, folder: Any, code: str, calls: list[Any], *, known: bool = True, **fields: Any) -> None:
        job = job_of(code, calls, **fields)
        mark, count = job["mark"], len(job["ops"])
        frames, theirs = socket.socketpair()
        self.link, ended = socket.socketpair()
        out, printed = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", CANDIDATE, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            pass_fds=[theirs.fileno()],
            cwd=folder,
        )
        theirs.close()
        os.close(printed)
        # As a fork does, it says when it begins: what it takes to start is no part of its time.
        frames.settimeout(60)
        assert frames.recv(1) == b"."
        pidfd = os.pidfd_open(process.pid)
        status = []

        def kill() -> None:
            # Not by Popen: it looks for the end first, and then nobody else is told of it.
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

        def wait() -> None:
            _, wait_status, usage = os.wait4(process.pid, 0)
            process.returncode = 0  # it was waited for
            # The peak of its memory is the tests' own, from before its exec: none is told.
            status.append(b"%d 0 %d\n" % (wait_status, usage.ru_utime * 1000))
            ended.sendall(b".")

        def ending() -> bytes:
            if not known:
                raise OSError("nobody knows")
            self.link.recv(1)
            return status[0]

        waiting = threading.Thread(target=wait)
        waiting.start()
        try:
            places = (self.link, process.pid, frames, out, ending, kill, time.monotonic())
            text, self.ended = held.hold(job, *places)
        finally:
            kill()
            waiting.join()
            os.close(pidfd)
            for end in (self.link, ended, frames):
                end.close()
            os.close(out)
        report = read_report(text, mark, count)
        assert report is not None, text
        self.report: Report = report

    @property
    def kinds(self) -> str:
        return "".join(case.kind for case in (self.report.load, *self.report.cases))


@pytest.fixture
def nobody_floods() -> Iterator[None]:
    yield
    assert held.flooding == set()


@pytest.mark.usefixtures("nobody_floods")
def test_calls_are_answered_and_the_candidate_is_killed_at_the_end(tmp_path: Any) -> None:
    ran = Held(tmp_path, "print('hello')\ndef solve(x): return x * x\n", [2, 3])
    assert (ran.kinds, ran.ended) == ("vvv", None)
    assert [case.line for case in ran.report.cases] == ['{"v":4}', '{"v":9}']
    assert ran.report.tail == b"hello\n"


@pytest.mark.parametrize(
    ("code", "kinds", "status"),
    [
        ("import os\ndef solve(x): os._exit(3)\n", "vd", 3 << 8),
        ("import os\ndef solve(x): os.kill(os.getpid(), 9)\n", "vd", 9),
        ("import os\nos._exit(0)\n", "d", 0),
        ("import time\ndef solve(x): time.sleep(1e6)\n", "vt", None),
        ("import os\ndef solve(x): os.write(1, b'x' * (1 << 20)); return x\n", "vv", None),
        ("def solve(x): return 'x' * (1 << 20)\n", "vl", None),
    ],
    ids=["exits", "kills itself", "exits while loading", "sleeps", "prints a lot", "returns too much"],
)
@pytest.mark.usefixtures("nobody_floods")
def test_how_it_ended_is_told_where_nobody_killed_it(tmp_path: Any, code: str, kinds: str, status: int | None) -> None:
    ran = Held(tmp_path, code, [1], case_s=1.0 if kinds.endswith("t") else 20.0)
    assert (ran.kinds, ran.ended) == (kinds, status)


def test_an_end_of_which_nobody_knows_is_no_report(tmp_path: Any) -> None:
    with pytest.raises(ProcessLookupError, match="the candidate is gone"):
        Held(tmp_path, "import os\ndef solve(x): os._exit(3)\n", [1], known=False)
    assert held.flooding == set()


@pytest.mark.usefixtures("nobody_floods")
def test_time_in_which_the_holder_stood_still_counts_as_waiting(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stood = iter([1.0, 4.0])
    monkeypatch.setattr(held, "pulse", SimpleNamespace(begin=lambda: None, still=lambda: next(stood)))
    ran = Held(tmp_path, "import time\ndef solve(x): time.sleep(1e6)\n", [1], case_s=1.0)
    (late,) = ran.report.late
    assert ran.kinds == "vt"
    assert late.waited_ms is not None
    assert late.waited_ms >= 3000
    assert late.flag == STARVED


@pytest.mark.usefixtures("nobody_floods")
def test_time_that_is_up_between_two_calls_is_told_as_any(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lefts = iter([20.0, 0.0])
    monkeypatch.setattr(runner, "left", lambda _: next(lefts))
    ran = Held(tmp_path, "def solve(x): return x\n", [1, 2])
    assert ran.kinds == "vv"
    assert len(ran.report.late) == 1


def test_a_pulse_tells_a_process_that_stands_still() -> None:
    pulse = held.Pulse()
    assert pulse.still() == 0.0
    pulse.begin()
    pulse._beat = (2.0, time.monotonic() - 60.0)
    assert 61.0 < pulse.still() < 65.0


def outside(frames: socket.socket, out: int, link: socket.socket, **fields: Any) -> held.Outside:
    places: dict[str, Any] = {"ending": lambda: b"0 0 0\n", "strike": lambda: None, "born": time.monotonic()}
    holder = held.Outside(True, link, 1, frames, out, *{**places, **fields}.values())
    holder.spawn()
    return holder


Channels = Callable[[], tuple[held.Outside, socket.socket, int, socket.socket]]


@pytest.fixture
def channels() -> Iterator[Channels]:
    """A holder, and the candidate's ends: of the frames, of the output, and what tells its end."""
    undo: list[Callable[[], None]] = []

    def make() -> tuple[held.Outside, socket.socket, int, socket.socket]:
        frames, theirs = socket.socketpair()
        link, ended = socket.socketpair()
        out, printed = os.pipe()
        holder = outside(frames, out, link)

        def close() -> None:
            holder.pid = 0
            holder.end()
            for end in (theirs, link, ended):
                end.close()
            os.close(out)
            os.close(printed)

        undo.append(close)
        return holder, theirs, printed, ended

    yield make
    for close in undo:
        close()
    held.flooding.clear()


def test_who_goes_on_writing_after_its_end_is_not_read_for_ever(channels: Channels) -> None:
    """An orphan of the candidate's has its channels, too, and writes faster than anybody reads."""
    holder, frames, printed, ended = channels()
    over = threading.Event()
    os.set_blocking(printed, False)
    frames.setblocking(False)

    def write() -> None:
        while not over.is_set():
            select.select([], [printed, frames], [], 1)
            for put in (lambda: os.write(printed, b"x" * 65536), lambda: frames.send(b"x" * 65536)):
                try:
                    put()
                except BlockingIOError:
                    continue

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    ended.sendall(b".")
    try:
        kind, _ = holder.ask(0, None, time.monotonic() + 60, 1 << 30)
    finally:
        over.set()
        for writer in writers:
            writer.join()
    assert kind == "d"
    assert len(holder.pending) <= (READS + 2) << 16


def test_a_line_in_many_pieces_is_read_as_one(channels: Channels) -> None:
    holder, frames, _, _ = channels()
    line = b'0 v {"v":"' + b"x" * 3000 + b'"}\n'

    def write() -> None:
        for at in range(0, len(line), 10):
            frames.sendall(line[at : at + 10])

    writer = threading.Thread(target=write)
    writer.start()
    kind, text = holder.ask(0, None, time.monotonic() + 60, 1 << 20)
    writer.join()
    assert (kind, text) == ("v", line.decode().split(" ", 2)[2].strip())


@pytest.mark.parametrize(
    "line", [b"0 v 1\n0 v 1\n", b"1 v 1\n", b"0 q 1\n", b"0 v\n", b"\n", b"0 v \xff\n", b"-1 v null\n"]
)
def test_what_is_no_frame_of_this_call_is_none(channels: Channels, line: bytes) -> None:
    holder, frames, _, _ = channels()
    frames.sendall(line)
    assert holder.ask(0, None, time.monotonic() + 60, 1 << 20) == ("b", "null")


def test_only_who_floods_is_read_slowly(channels: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("collimate_rl.guest.held.time.sleep", slept.append)
    one, one_frames, _, _ = channels()
    other, other_frames, _, _ = channels()
    for holder, frames in ((one, one_frames), (other, other_frames)):
        for _ in range(held.SUDDEN):
            frames.sendall(b"x")
            holder.take(holder.frames.fileno(), 0)
    assert (slept, held.flooding) == ([], set())
    for holder, frames in ((one, one_frames), (other, other_frames)):
        frames.sendall(b"x")
        holder.take(holder.frames.fileno(), 0)
    # All that are read slowly share what one alone would have.
    assert slept == [held.PAUSE_S, 2 * held.PAUSE_S]
    one.take(one.frames.fileno(), (1 << 30) + held.PIECE)
    assert len(slept) == 2
    other_frames.sendall(b"0 v 1\n")
    other.ask(0, None, time.monotonic() + 60, 1 << 20)
    assert held.flooding == {one}
