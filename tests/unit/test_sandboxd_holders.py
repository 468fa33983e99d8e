"""The holders' process: a thread per job while there are threads, and a failure that is the job's alone."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.config import Limits
from collimate_rl.sandboxd.held import HeldRunning
from collimate_rl.sandboxd.inside import holders
from collimate_rl.sandboxd.inside.channel import (
    ChannelClosed,
    receive_report,
    receive_request,
    send_report,
    send_request,
)
from collimate_rl.sandboxd.wire import Exec


class Control:
    """The crew's end of its control socket. Where its process would end, the thread does."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def recvmsg(self, *sizes: int) -> Any:
        got = self._end.recvmsg(*sizes)
        if not got[0]:
            raise SystemExit
        return got


class Threads(holders._Crew):
    """The crew itself, in threads that end."""

    def serve(self, *, leaves: bool = False) -> None:
        try:
            super().serve(leaves=leaves)
        except SystemExit:
            pass


class Crew:
    """A crew in threads of this process, asked as the daemon asks it. `hold` is given the job and what is held."""

    def __init__(self, hold: Any) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.their_end = theirs
        self.crew = Threads(Control(theirs), hold)  # type: ignore[arg-type]
        threading.Thread(target=self.crew.serve).start()

    def ask(self, job: Any, *, begins: bool = True, fds: int = 3) -> tuple[dict[str, Any] | None, bytes]:
        """The report, None when there is none, and the output behind it."""
        reports, asked = socket.socketpair()
        channel, fork = socket.socketpair()
        begun = os.eventfd(0)
        nobody = os.open("/dev/null", os.O_WRONLY)
        with reports, fork:
            with asked:
                socket.send_fds(self._control, [b"h"], [asked.fileno()])
            with channel:
                given = (begun, nobody, channel.fileno())[:fds]
                send_request(reports, {"frame": {"kind": "held"}, "job": job, "pid": 2}, given)
            os.close(nobody)
            if fds == 3:
                request, (frames, printed) = receive_request(fork)
                assert request == {"kind": "held"}
                if begins:
                    os.write(frames, struct.pack("q", 1))
                else:
                    send_report(fork, {"error": "no room"})
                os.close(frames)
                os.close(printed)
            try:
                report = receive_report(reports)[0]
            except ChannelClosed:
                report = None
            with reports.makefile("rb") as stream:
                text = stream.read()
            assert len(text) == (report or {}).pop("output", 0)
        os.close(begun)
        return report, text

    def close(self) -> None:
        self._control.close()


def echo(job: Any, *places: Any) -> tuple[str, int | None]:
    if isinstance(job, float):
        time.sleep(job)
    if job == "wrong":
        raise KeyError("no such field")
    if job == "deep":
        raise RecursionError
    if job == "short":
        raise OSError("no descriptors")
    if job == "gone":
        raise ProcessLookupError("the candidate is gone")
    return f"{job}\n", 9 if job == "killed" else None


@pytest.fixture
def crew() -> Iterator[Crew]:
    before = threading.active_count()
    made = Crew(echo)
    yield made
    made.close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before:
        assert time.monotonic() < deadline, "its threads don't end"
        time.sleep(0.01)
    made.their_end.close()


def test_what_a_job_comes_to(crew: Crew) -> None:
    assert crew.ask("right") == ({"exit_code": 0}, b"right\n")
    assert crew.ask("killed") == ({"exit_code": 0, "ended": 137}, b"killed\n")
    assert crew.ask("x", begins=False) == ({"error": "no room"}, b"")


def test_a_holders_own_failure_is_an_error_and_no_verdict(crew: Crew) -> None:
    report, text = crew.ask("wrong")
    assert (report, text) == ({"error": "its holder failed: KeyError: 'no such field'"}, b"")
    assert all("error" in (crew.ask(job)[0] or {}) for job in ("deep", "short"))
    assert crew.ask("gone") == (None, b"")
    assert crew.ask("x", fds=2) == (None, b"")
    assert crew.ask("right") == ({"exit_code": 0}, b"right\n")


def test_jobs_run_side_by_side_and_few_threads_stay(crew: Crew) -> None:
    with ThreadPoolExecutor(12) as pool:
        reports = list(pool.map(crew.ask, [0.2 + n / 100 for n in range(12)]))
    assert [report for report, _ in reports] == [{"exit_code": 0}] * 12
    deadline = time.monotonic() + 60
    while crew.crew._waiting > holders._IDLE + 1:
        assert time.monotonic() < deadline, crew.crew._waiting
        time.sleep(0.01)


def test_without_threads_jobs_wait_for_each_other(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread:
        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    started = threading.Thread
    monkeypatch.setattr(holders.threading, "Thread", NoThread)
    answers: list[Any] = []
    askers = [started(target=lambda: answers.append(crew.ask("right"))) for _ in range(3)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    monkeypatch.undo()
    assert answers == [({"exit_code": 0}, b"right\n")] * 3


class StuckFork:
    """Of `Fork`, what a `HeldRunning` looks at."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel, self.pidfd, self.pid = channel, None, 2


def held_running(channel: socket.socket, *, total_s: float) -> HeldRunning:
    job = {"total_s": total_s}
    return HeldRunning(StuckFork(channel), Exec(code="", seed="0" * 64), job, Limits())  # type: ignore[arg-type]


def test_a_holder_that_says_nothing_when_its_own_time_is_over_stood_still() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        running = held_running(ours, total_s=29.5)
        try:
            running._close_theirs()
            assert running.collector.until_closed(time.monotonic() + 60)
            with pytest.raises(CollimateError, match="stood still") as stood:
                running.outcome(None, 1.0)
            assert stood.value.error_code == "session_bringup_failed"
        finally:
            running.close()


def test_a_holder_that_lets_nothing_go_is_stuck_and_no_timeout() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        running = held_running(ours, total_s=60.0)
        try:
            with pytest.raises(CollimateError) as stuck:
                running.outcome(None, 1.0)
            assert (stuck.value.status, stuck.value.error_code) == (503, "session_bringup_failed")
            running._close_theirs()
            assert running.collector.until_closed(time.monotonic() + 60)
            assert running.outcome(None, 1.0).exit_code == -1
        finally:
            running.close()
