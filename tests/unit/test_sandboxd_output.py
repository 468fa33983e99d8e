"""Collecting output, frames on the channel, files inside a fork, and programs that are recognised."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collimate_rl.sandboxd.guests import GuestPrograms
from collimate_rl.sandboxd.inside import channel as frames
from collimate_rl.sandboxd.inside.execs import exit_code
from collimate_rl.sandboxd.inside.files import receive_files
from collimate_rl.sandboxd.inside.forkhooks import DeferredHooks
from collimate_rl.sandboxd.output import Collector, Output


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        yield ours, theirs


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            # The test closed it.
            continue


def test_output_up_to_a_cap() -> None:
    output = Output(cap=5)
    for chunk in (b"abc", b"de"):
        output.add(chunk)
    assert (bytes(output.data), output.truncated) == (b"abcde", False)
    output.add(b"f")
    assert (bytes(output.data), output.truncated) == (b"abcde", True)


def test_a_report_after_output(pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int]) -> None:
    ours, theirs = pair
    read, write = pipe
    collector = Collector(pipe=read, reports=ours, pidfd=None, cap=1 << 20)

    def fork() -> None:
        for _ in range(10):
            os.write(write, b"x" * 50_000)
        frames.send_report(theirs, {"exit_code": 3})
        os.write(write, b"end")
        os.close(write)

    thread = threading.Thread(target=fork)
    thread.start()
    assert collector.until_report(time.monotonic() + 10) == {"exit_code": 3}
    assert collector.until_closed(time.monotonic() + 10)
    thread.join()
    assert bytes(collector.output.data) == b"x" * 500_000 + b"end"


def test_no_report_in_time_keeps_what_was_said(
    pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int]
) -> None:
    read, write = pipe
    collector = Collector(pipe=read, reports=pair[0], pidfd=None, cap=10)
    os.write(write, b"partial")
    assert collector.until_report(time.monotonic() + 0.05) is None
    assert collector.output.data == b"partial"
    assert not collector.until_closed(time.monotonic() + 0.05)


def test_a_report_that_was_there_in_time_counts_when_it_is_read_later(
    pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int]
) -> None:
    ours, theirs = pair
    collector = Collector(pipe=pipe[0], reports=ours, pidfd=None, cap=1 << 20)
    assert collector.until_report(time.monotonic() - 1) is None
    os.write(pipe[1], b"text")
    frames.send_report(theirs, {"exit_code": 3})
    assert collector.until_report(time.monotonic() - 1) == {"exit_code": 3}
    assert collector.until_report(time.monotonic() - 1) is None


def test_a_background_writer_is_not_waited_for(
    pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int]
) -> None:
    read, write = pipe
    collector = Collector(pipe=read, reports=pair[0], pidfd=None, cap=1 << 20)
    os.write(write, b"a" * 1000)
    collector.what_is_there()
    assert len(collector.output.data) == 1000


def test_a_fork_that_dies_without_a_word(pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int]) -> None:
    ours, theirs = pair
    collector = Collector(pipe=pipe[0], reports=ours, pidfd=None, cap=10)
    theirs.close()
    with pytest.raises(frames.ChannelClosed):
        collector.until_report(time.monotonic() + 5)


def test_a_death_is_told_by_the_pidfd_and_a_last_report_still_counts(
    pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int]
) -> None:
    ours, theirs = pair
    dead_read, dead_write = os.pipe()
    os.close(dead_write)
    collector = Collector(pipe=pipe[0], reports=ours, pidfd=dead_read, cap=10)
    frames.send_report(theirs, {"exit_code": 0})
    assert collector.until_report(time.monotonic() + 5) == {"exit_code": 0}
    with pytest.raises(frames.ChannelClosed):
        collector.until_report(time.monotonic() + 5)
    os.close(dead_read)


def test_output_behind_a_report_is_read_with_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    collector = Collector(pipe=None, reports=ours, pidfd=None, cap=400_000)
    sender = threading.Thread(
        target=lambda: frames.send_report(theirs, {"exit_code": 3, "output": 500_000}, payload=(b"x" * 500_000,))
    )
    sender.start()
    assert collector.until_report(time.monotonic() + 60) == {"exit_code": 3}
    sender.join()
    assert (bytes(collector.output.data), collector.output.truncated) == (b"x" * 400_000, True)
    assert collector.is_closed
    assert collector.until_closed(time.monotonic() + 60)


def test_a_report_in_pieces_and_no_more_output_than_it_tells_of(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    collector = Collector(pipe=None, reports=ours, pidfd=None, cap=100)
    report = json.dumps({"exit_code": 0, "output": 3}).encode()
    for piece in (b"\0", b"\0\0" + bytes([len(report)]), report[:5], report[5:] + b"a"):
        theirs.sendall(piece)
        assert collector.until_report(time.monotonic() + 0.02) is None
    theirs.sendall(b"bcd")
    assert collector.until_report(time.monotonic() + 60) == {"exit_code": 0}
    assert (bytes(collector.output.data), collector.is_closed) == (b"abc", True)


def test_output_that_comes_too_late_or_not_at_all_is_no_report(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    collector = Collector(pipe=None, reports=ours, pidfd=None, cap=100)
    frames.send_report(theirs, {"exit_code": 0, "output": 5}, payload=(b"ab",))
    assert collector.until_report(time.monotonic() + 0.05) is None
    assert not collector.until_closed(time.monotonic() + 0.05)
    theirs.sendall(b"c")
    theirs.close()
    with pytest.raises(frames.ChannelClosed):
        collector.until_report(time.monotonic() + 60)
    assert collector.until_closed(time.monotonic() + 60)


def test_a_second_report_is_waited_for_anew(pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int]) -> None:
    ours, theirs = pair
    collector = Collector(pipe=pipe[0], reports=ours, pidfd=None, cap=100)
    for report in ({"exit_code": 1}, {"killed": True}):
        assert collector.until_report(time.monotonic() + 0.05) is None
        frames.send_report(theirs, report)
        assert collector.until_report(time.monotonic() + 60) == report


def test_requests_carry_payload_and_descriptors(
    pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int]
) -> None:
    ours, theirs = pair
    header = {"kind": "code", "code": "ä" * 1000, "files": [("a", 3)], "seed": "ab"}
    big = b"x" * 300_000
    sender = threading.Thread(target=lambda: frames.send_request(ours, header, (pipe[1],), (b"abc", big)))
    sender.start()
    received, fds = frames.receive_request(theirs)
    assert received == header
    assert theirs.recv(3, socket.MSG_WAITALL) == b"abc"
    assert theirs.recv(len(big), socket.MSG_WAITALL) == big
    sender.join()
    (fd,) = fds
    os.write(fd, b"through")
    assert os.read(pipe[0], 100) == b"through"
    os.close(fd)


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0", struct.pack(">I", 10) + b"{}", struct.pack(">I", 2) + b"[]", struct.pack(">I", 4) + b"null"]
)
def test_reports_that_are_none(pair: tuple[socket.socket, socket.socket], raw: bytes) -> None:
    ours, theirs = pair
    theirs.sendall(raw)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(frames.ChannelClosed):
        frames.receive_report(ours)


def test_reports_are_json(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    frames.send_report(theirs, {"exit_code": 1})
    assert json.loads(ours.recv(100)[4:]) == {"exit_code": 1}


def put(pair: tuple[socket.socket, socket.socket], folder: Path, *files: tuple[str, bytes]) -> str | None:
    ours, theirs = pair
    ours.sendall(b"".join(content for _, content in files))
    return receive_files(theirs, [(path, len(content)) for path, content in files], str(folder))


def test_files_are_put_in_place(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    assert put(pair, tmp_path, ("a", b"1\n"), ("b/c/d", b"2\n"), ("./e", b""), ("a", b"3\n")) is None
    assert {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == {
        "a": b"3\n",
        "b/c/d": b"2\n",
        "e": b"",
    }


def test_links_are_replaced_or_refused_and_the_channel_stays_in_step(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    outside, box = tmp_path / "outside", tmp_path / "box"
    outside.mkdir()
    box.mkdir()
    (outside / "kept").write_text("kept")
    (box / "link").symlink_to(outside / "kept")
    (box / "folder").symlink_to(outside)
    os.mkfifo(box / "pipe")
    (box / ".collimate-partial").symlink_to(outside / "kept")
    assert put(pair, box, ("link", b"new"), ("pipe", b"file")) is None
    assert (outside / "kept").read_text() == "kept"
    assert (box / "link").read_text() == "new"
    assert (box / "pipe").read_text() == "file"
    problem = put(pair, box, ("folder/x", b"never"), ("after", b"never"))
    assert problem is not None
    assert "folder/x" in problem
    assert os.listdir(outside) == ["kept"]
    (box / "sub").mkdir()
    assert "sub" in str(put(pair, box, ("sub", b"no file over a folder")))
    assert put(pair, box, ("after", b"in step")) is None
    assert sorted(os.listdir(box)) == ["after", "folder", "link", "pipe", "sub"]


def test_programs_are_recognised_by_their_whole_text() -> None:
    programs = GuestPrograms({"one": "print(1)\n", "two": "print(2)\n"})
    assert programs.name_of("print(1)\n") == "one"
    assert programs.name_of("print(2)\n") == "two"
    assert programs.name_of("print(3)\n") is None
    assert programs.name_of("print(1)") is None
    assert set(GuestPrograms.known().texts) >= {"runner"}


def test_exit_codes() -> None:
    assert [exit_code(status) for status in (0, 3 << 8, 9, 15, 139)] == [0, 3, 137, 143, 139]


def test_hooks_are_deferred_only_for_modules_not_imported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here both modules are there long since: nothing is kept, and nothing is left patched."""
    register = os.register_at_fork
    hooks = DeferredHooks()
    assert os.register_at_fork is register
    assert hooks._hooks == []
    hooks.register()


def test_what_somebody_else_read_first_is_not_waited_for(
    pair: tuple[socket.socket, socket.socket], pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of the fork may open the pipe and read it, too, between the count and the reading."""
    collector = Collector(pipe=pipe[0], reports=pair[0], pidfd=None, cap=100)
    os.write(pipe[1], b"ab")
    monkeypatch.setattr("collimate_rl.sandboxd.output.fcntl.ioctl", lambda *_: struct.pack("i", 5))
    collector.what_is_there()
    assert bytes(collector.output.data) == b"ab"


HIGH_DESCRIPTORS = """
import fcntl, os, resource, socket
from collimate_rl.sandboxd.inside.channel import wait_readable
from collimate_rl.sandboxd.inside.syscalls import close_from
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
ours, theirs = socket.socketpair()
high = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, 1500))
print(high.fileno(), wait_readable(high, timeout_s=0), end=" ")
theirs.send(b"x")
print(wait_readable(high, timeout_s=5))
os.dup2(0, 2040)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
close_from(3, 64)
print(os.listdir("/proc/self/fd"))
os._exit(0)
"""


def test_descriptors_of_every_number() -> None:
    """Above 1023, which select does not know, and above a limit that was lowered since they were made."""
    said = subprocess.run([sys.executable, "-u", "-c", HIGH_DESCRIPTORS], capture_output=True, text=True, check=True)
    assert said.stdout == "1500 False True\n['0', '1', '2', '3']\n"
