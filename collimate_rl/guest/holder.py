"""The process that holds the job: hands out one op at a time, watches the clock, and takes down what came back."""

from __future__ import annotations

import array
import marshal
import os
import select
import signal
import socket
import time
from typing import Any, List, Optional, Tuple

from collimate_rl.guest.nursery import SUBREAPER, prctl, reap
from collimate_rl.guest.waits import waited

LARGE_KIB = 96 << 10  # a process killed by others above that is taken for one that ran out of memory
TAIL = 4096
READS = 40  # at least what a channel can hold: more of it comes from whoever goes on writing
REAP_S = 10
KINDS = tuple("vxolem")


class Holder:
    """One candidate at a time, through the nursery behind `link`; `keep` says whether its output is wanted.

    `sole`: the nursery's pid where it is to become the one candidate there will be, else 0.
    """

    def __init__(self, link: socket.socket, keep: bool, sole: int = 0) -> None:
        self.link, self.keep, self.sole = link, keep, sole
        self.pid = 0
        self.lost = False  # the nursery is gone: no further candidate can be had
        self.tail, self.seen = b"", 0
        self.late: List[
            Any
        ] = []  # per candidate that ran out of time: milliseconds on a processor, waiting for one, alive
        self.pending, self.printed = bytearray(), bytearray()
        self.ended: Optional[bytes] = None
        self.fds: List[int] = []

    def spawn(self, stdin: Optional[str] = None) -> None:
        """Have a candidate started, with a standard error of its own where it has a standard input."""
        self.frames, theirs = socket.socketpair()
        self.out, out = os.pipe()
        self.fds, err = [self.out], out
        if stdin is None:
            given = os.open(os.devnull, os.O_RDONLY)
        else:
            given = stdin_file(stdin)
            errors, err = os.pipe()
            self.fds.append(errors)
        for fd in self.fds:
            os.set_blocking(fd, False)
        self.frames.setblocking(False)
        self.pending, self.printed, self.ended = bytearray(), bytearray(), None
        self.born = time.monotonic()
        try:
            carried = array.array("i", [theirs.fileno(), given, out, err])
            if self.sole:
                prctl(SUBREAPER, 1, 0, 0, 0)
                wake, wakes = socket.socketpair()
                wakes.setblocking(False)
                signal.signal(signal.SIGCHLD, lambda *_: None)
                signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)
            self.link.sendmsg([b"b" if self.sole else b"c"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, carried)])
            if self.sole:
                self.link, self.pid = wake, self.sole
            else:
                self.pid = int(self.line() or 0)
        except (OSError, ValueError):
            self.pid = -1
        self.lost = self.pid <= 0
        theirs.close()
        for fd in {given, out, err}:
            os.close(fd)

    def line(self) -> Optional[bytes]:
        """The nursery's next line; OSError when there will be none. Of a sole candidate, None while it lives."""
        if self.sole:
            self.link.recv(TAIL)
            return reap(self.pid, os.WNOHANG)
        got = b""
        while got[-1:] != b"\n":
            piece = self.link.recv(1)
            if not piece:
                raise OSError("the nursery is gone")
            got += piece
        return got

    def kill(self) -> None:
        """Kill the candidate and its session."""
        if self.pid > 0 and self.ended is None:
            for blow in (os.kill, os.killpg):
                try:
                    blow(self.pid, signal.SIGKILL)
                except OSError:
                    pass  # gone already, or not yet the leader of its session

    def end(self, late: bool = False) -> None:
        """Kill the candidate, and wait until it and all that it left is dead. `late`: its time ran out."""
        waits = waited(self.pid) if late and self.pid > 0 else None
        self.kill()
        if self.pid > 0 and self.ended is None and not self.lost:
            self.link.settimeout(REAP_S)
            try:
                while self.ended is None:
                    self.ended = self.line()
            except OSError:
                self.lost = True
            self.link.settimeout(None)
        if waits is not None and self.ended:
            age = int((time.monotonic() - self.born) * 1000)
            self.late.append([int(self.ended.split()[2]), waits / 1e6, age])
        if self.fds:
            self.frames.close()
            for fd in self.fds:
                os.close(fd)
        self.pid, self.fds = 0, []

    def ask(self, index: int, message: Any, until: float, most: int, whole: bool = False) -> Tuple[str, str]:
        """Hand a message to the candidate and wait for the frame that answers it; its kind and its text, unread."""
        if self.pid <= 0:
            return "b", "null"
        data = memoryview(packed(message))
        stop = self.watch(data, until, most, whole)
        if stop == "frame":
            return self.frame(index)
        if stop == "end":
            return self.death()
        return stop, "null"

    def watch(self, data: memoryview, until: float, most: int, whole: bool) -> str:
        """Serve the candidate's channels until its frame is there (`whole`: until it is dead)."""
        poll, seen = select.poll(), 0
        frames, link = self.frames.fileno(), self.link.fileno()
        try:
            data = data[self.frames.send(data) :]
        except OSError:
            pass  # no room yet, or its end is closed: the poll tells
        poll.register(frames, select.POLLIN | (select.POLLOUT if data else 0))
        for fd in [link, *self.fds]:
            poll.register(fd, select.POLLIN)
        while True:
            if self.ended is not None:
                for fd in [frames, *self.fds]:
                    self.drain(fd, most)
            if len(self.printed) > most if whole else len(self.pending) > most + TAIL:
                return "l"
            complete = self.pending.find(10, seen) >= 0
            if complete and (self.ended is not None or not whole):
                return "frame"
            seen = 0 if complete else len(self.pending)
            if self.ended is not None:
                return "end"
            left = until - time.monotonic()
            if left <= 0:
                return "t"
            for fd, what in poll.poll(left * 1000 + 1):
                if fd == link:
                    try:
                        self.ended = self.line()
                    except OSError:
                        self.lost = True
                        return "b"
                elif fd == frames and data and what & select.POLLOUT:
                    try:
                        data = data[self.frames.send(data) :]
                    except OSError:
                        data = data[:0]  # it has closed its end
                    if not data:
                        poll.modify(frames, select.POLLIN)
                elif self.take(fd, most) is None:
                    poll.unregister(fd)

    def drain(self, fd: int, most: int) -> None:
        """Read what a channel held when this was called, and not for ever what comes."""
        for _ in range(READS):
            if not self.take(fd, most):
                break

    def take(self, fd: int, most: int) -> Optional[bool]:
        """Read what a channel holds now: whether there was anything; None at its end."""
        try:
            piece = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if fd not in self.fds:
            self.pending += piece
        else:
            self.seen += len(piece)
            self.tail = (self.tail + piece)[-TAIL:]
            if fd == self.out and self.keep and len(self.printed) <= most:
                self.printed += piece
        return True if piece else None

    def frame(self, index: int) -> Tuple[str, str]:
        """The line that came, if it is one and the one that was due."""
        line, self.pending = self.pending, bytearray()
        try:
            number, kind, text = line.decode("ascii").split(" ", 2)
        except ValueError:
            return "b", "null"
        text, _, rest = text.partition("\n")
        if rest or number != str(index) or kind not in KINDS:
            return "b", "null"
        return kind, text

    def death(self) -> Tuple[str, str]:
        """How a candidate ended: "d" and its exit code, or minus the signal that killed it."""
        status, peak, _ = [int(n) for n in (self.ended or b"0 0 0").split()]
        if not os.WIFSIGNALED(status):
            return "d", "%d" % os.WEXITSTATUS(status)
        if os.WTERMSIG(status) == signal.SIGKILL and peak > LARGE_KIB:
            return "m", "null"
        return "d", "-%d" % os.WTERMSIG(status)


def packed(message: Any) -> bytes:
    """A message as a candidate's `heard` takes it."""
    data = marshal.dumps(message, 2)
    return b"%d\n" % len(data) + data


def stdin_file(stdin: str) -> int:
    """A nameless file that holds the text, at its beginning."""
    name = "collimate-stdin-%d" % os.getpid()
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(stdin.encode("utf-8", "surrogatepass"))
    os.lseek(fd, 0, 0)
    return fd
