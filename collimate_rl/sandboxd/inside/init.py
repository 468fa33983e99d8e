"""Process 1 of a fork: lays out its namespaces, starts execs, reaps whatever is orphaned, reports exit codes.

It is not dumpable and keeps the capabilities of the jail's user namespace, so the processes that it starts (which
have none) can neither trace it nor read it, and as process 1 no signal of theirs reaches it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from . import syscalls
from .channel import ChannelClosed, receive_frame, send_frame
from .execs import ExecStart, exit_code
from .files import receive_files

FORK_FLAGS = (
    syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET
)
_QUIET_SCANS = 2
_BEGUN = (1).to_bytes(8, sys.byteorder)
"""Added to the eventfd that comes with an exec: from here on, what dies is the exec's own doing."""


def lay_out(tmpfs_bytes: int, workdir: str, rebinds: list[list[str]]) -> None:
    """The fork's own /proc, temporary file systems and loopback; `rebinds` are what these would hide."""
    plain = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount(b"proc", b"/proc", b"proc", plain | syscalls.MS_NOEXEC)
    size = b"size=%d,nr_inodes=%d,mode=" % (tmpfs_bytes, max(1024, tmpfs_bytes // 4096))
    syscalls.mount(b"tmpfs", workdir.encode(), b"tmpfs", plain, size + b"0755")
    syscalls.mount(b"tmpfs", b"/tmp", b"tmpfs", plain, size + b"1777")
    syscalls.mount(b"tmpfs", b"/dev/shm", b"tmpfs", plain, size + b"1777")
    for copy, root in rebinds:
        os.makedirs(root, exist_ok=True)
        syscalls.mount(copy.encode(), root.encode(), b"none", syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.bring_loopback_up()


def run_once(channel: socket.socket, execs: ExecStart) -> NoReturn:
    """One exec, its exit code on the channel, and the end: the namespace dies with this process."""
    request, fds = receive_frame(channel)
    report = _begin(channel, request, fds, execs)
    if "pid" in report:
        pid = report.pop("pid")
        while True:
            ended, status = os.wait()
            if ended == pid:
                break
        report.update(exit_code=exit_code(status), ended=time.monotonic())
    send_frame(channel, report)
    os._exit(0)


def _begin(channel: socket.socket, request: dict[str, Any], fds: list[int], execs: ExecStart) -> dict[str, Any]:
    problem = receive_files(channel, request["files"], execs.workdir)
    os.write(fds[1], _BEGUN)
    started = time.monotonic()
    if problem is not None:
        return {"exit_code": 1, "problem": problem, "started": started, "ended": started}
    return {"pid": execs.start(request, fds[0]), "started": started}


class SessionInit:
    """The init of a fork that stays: execs side by side, each reporting on a descriptor that came with it."""

    def __init__(self, channel: socket.socket, execs: ExecStart) -> None:
        self._channel = channel
        self._execs = execs
        self._running: dict[int, tuple[str, int, int, dict[str, Any]]] = {}
        """pid of the exec's main process -> (exec id, its tag, its report descriptor, its report so far)"""

    def serve(self) -> NoReturn:
        """Until the daemon closes the channel or kills the namespace."""
        wake, wake_write = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake_only)
        try:
            # Not a word before the daemon has the zygote's own, which travels on the same channel.
            receive_frame(self._channel)
        except ChannelClosed:
            os._exit(0)
        send_frame(self._channel, {"ready": True})
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    _empty(wake)
                    self._reap()
                else:
                    self._take_request()

    def _take_request(self) -> None:
        try:
            request, fds = receive_frame(self._channel)
        except ChannelClosed:
            os._exit(0)
        if "kill" in request:
            self._kill(request["kill"])
            return
        # A uts namespace of its own marks everything that the exec starts; without capabilities nobody sheds it.
        syscalls.unshare(syscalls.CLONE_NEWUTS)
        tag = os.stat("/proc/self/ns/uts").st_ino
        report = _begin(self._channel, request, fds, self._execs)
        os.close(fds[0])
        os.close(fds[1])
        if "pid" in report:
            self._running[report.pop("pid")] = (request["id"], tag, fds[2], report)
        else:
            _tell(fds[2], report)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:
                _, _, answer, report = self._running.pop(pid)
                report.update(exit_code=exit_code(status), ended=time.monotonic())
                _tell(answer, report)

    def _kill(self, exec_id: str) -> None:
        for pid, (running, tag, answer, report) in list(self._running.items()):
            if running == exec_id:
                del self._running[pid]
                kill_tagged(tag)
                self._reap()
                report["killed"] = True
                _tell(answer, report)


def kill_tagged(tag: int) -> None:
    """Kill every process that carries the tag, and return when none is left.

    They are stopped first: a stopped process forks no more but still fills its place under the pids limit, so even a
    fork bomb comes to rest; only then is everything killed.
    """
    stopped: list[int] = []
    quiet = 0
    while quiet < _QUIET_SCANS:
        fresh = [pid for pid in _tagged(tag) if pid not in stopped]
        quiet = 0 if fresh else quiet + 1
        _signal(fresh, signal.SIGSTOP)
        stopped.extend(fresh)
    while True:
        left = _tagged(tag)
        if not left:
            return
        _signal(left, signal.SIGKILL)
        _reap_strays(left)
        time.sleep(0.001)


def _tagged(tag: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                if os.stat(f"/proc/{name}/ns/uts").st_ino == tag:
                    found.append(int(name))
            except OSError:
                # Gone, or a zombie.
                continue
    return found


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap_strays(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            # Not this process's child: its own parent, or this process later, reaps it.
            continue


def _wake_only(*_: Any) -> None:
    """A handler must be set for the wakeup descriptor to be written to."""


def _tell(answer: int, report: dict[str, Any]) -> None:
    try:
        with socket.socket(fileno=answer) as channel:
            send_frame(channel, report)
    except OSError:
        # The daemon no longer waits for this exec.
        pass


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
