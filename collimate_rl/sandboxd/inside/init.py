"""What a fork lays out around itself, and process 1 of a session.

The init of a session starts execs, reaps whatever is orphaned and reports exit codes. It is not dumpable and keeps the
capabilities of the jail's user namespace, so the processes that it starts (which have none) can neither trace it nor
read it, and as process 1 it gets no signal of theirs but one that it has a handler for: SIGCHLD, which changes nothing.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Any, NoReturn

from . import syscalls
from .channel import ChannelClosed, receive_request, send_report
from .execs import Execs, exit_code, now
from .files import receive_files
from .ports import PortHelper

FORK_FLAGS = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET
"""What every fork has of its own, beside its pids. The network of a one-shot fork is made, or was, before it."""
_QUIET_SCANS, _SCANS = 2, 8
_NOT_STARTED = 126
_OOM_SCORE, _ENTRY_OOM_SCORE = 400, 200
"""Above the init's 0, so that the init outlives its execs; the entry server goes before it and after them."""


class Layout:
    """The file systems of a fork's own, their mount arguments made once; `rebinds` are what they would hide."""

    def __init__(self, tmpfs_bytes: int, workdir: str, rebinds: list[tuple[str, str]]) -> None:
        plain = syscalls.MS_NOSUID | syscalls.MS_NODEV
        size = b"size=%d,nr_inodes=%d,mode=" % (tmpfs_bytes, max(1024, tmpfs_bytes // 4096))
        self._mounts: tuple[tuple[bytes, bytes, bytes, int, bytes | None], ...] = (
            (b"proc", b"/proc", b"proc", plain | syscalls.MS_NOEXEC, None),
            (b"tmpfs", workdir.encode(), b"tmpfs", plain, size + b"0755"),
            (b"tmpfs", b"/tmp", b"tmpfs", plain, size + b"1777"),
            (b"tmpfs", b"/dev/shm", b"tmpfs", plain, size + b"1777"),
        )
        self._rebinds = rebinds

    @classmethod
    def that_changes_nothing(cls) -> Layout:
        """One whose mounts are private already, and made so once more."""
        layout = cls(0, "/", [])
        private = (b"none", b"/", b"none", syscalls.MS_REC | syscalls.MS_PRIVATE, None)
        layout._mounts = (private,) * len(layout._mounts)
        return layout

    def lay_out(self) -> None:
        """In a fork: mount them."""
        for arguments in self._mounts:
            syscalls.mount(*arguments)
        for copy, root in self._rebinds:
            os.makedirs(root, exist_ok=True)
            syscalls.mount(copy.encode(), root.encode(), b"none", syscalls.MS_BIND | syscalls.MS_REC)


def _wake_on_children() -> int:
    """The read end of a pipe that becomes readable whenever a child has ended."""
    wake, wake_write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _wake_only)
    return wake


def _mute() -> dict[int, Any]:
    """Ignore every signal that has a handler (SIGINT, at least); what those handlers were."""
    known = {number: signal.getsignal(number) for number in signal.valid_signals()}
    handlers = {int(number): handler for number, handler in known.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, signal.SIG_IGN)
    return handlers


class SessionInit:
    """The init of a fork that stays: execs side by side, each reporting on a descriptor that came with it."""

    def __init__(self, channel: socket.socket, execs: Execs) -> None:
        self._channel = channel
        self._execs = execs
        self._handlers: dict[int, Any] = {}
        """What execs are to have for signals that are muted here."""
        self._running: dict[int, tuple[str, int, int]] = {}
        """pid of the exec's main process -> (exec id, its tag, its report descriptor)"""

    def serve(self) -> NoReturn:
        """Until the daemon closes the channel or kills the namespace."""
        self._handlers = _mute()
        wake = _wake_on_children()
        try:
            # Not a word before the daemon has the zygote's own, which travels on the same channel.
            _, fds = receive_request(self._channel)
        except ChannelClosed:
            os._exit(0)
        send_report(self._channel, {"ready": True})
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(wake, select.POLLIN)
        helpers = {fd: PortHelper(socket.socket(fileno=fd)) for fd in fds}
        for fd in helpers:
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    _empty(wake)
                    self._reap()
                elif fd in helpers:
                    if not helpers[fd].answer():
                        poll.unregister(fd)
                else:
                    self._take_request()

    def _take_request(self) -> None:
        try:
            request, fds = receive_request(self._channel)
        except ChannelClosed:
            os._exit(0)
        if "kill" in request:
            self._kill(request["kill"])
            return
        begun, output, answer = fds
        # A uts namespace of its own marks everything that the exec starts; without capabilities nobody sheds it.
        syscalls.unshare(syscalls.CLONE_NEWUTS)
        tag = os.stat("/proc/self/ns/uts").st_ino
        problem = receive_files(self._channel, request["files"], self._execs.workdir)
        os.write(begun, now())
        try:
            pid = os.fork()
        except OSError as exc:
            # What the session runs fills its limits: that is its candidate's doing, and no end of the session.
            os.write(output, f"[collimate] the exec could not be started: {exc.strerror}\n".encode())
            _tell(answer, {"exit_code": _NOT_STARTED})
            os.close(output)
            os.close(begun)
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            # `kill 0` is for what this exec started.
            os.setsid()
            score = _ENTRY_OOM_SCORE if request["id"] == "entry" else _OOM_SCORE
            self._execs.run(request, output, problem, oom_score=score)
        self._running[pid] = (request["id"], tag, answer)
        os.close(output)
        os.close(begun)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:
                _, _, answer = self._running.pop(pid)
                _tell(answer, {"exit_code": exit_code(status)})

    def _kill(self, exec_id: str) -> None:
        for pid, (running, tag, answer) in list(self._running.items()):
            if running == exec_id:
                del self._running[pid]
                kill_tagged(tag)
                self._reap()
                _tell(answer, {"killed": True})


def kill_tagged(tag: int) -> None:
    """Kill every process that carries the tag, and return when none is left.

    They are stopped first: a stopped process forks no more but still fills its place under the pids limit, so even a
    fork bomb comes to rest; only then is everything killed. A scan counts only when nothing was born meanwhile, since
    a process that forks and exits is no longer where it was seen. When births don't cease, the whole session is
    stopped at one blow, which no fork escapes, and what is not the exec's goes on afterwards.
    """
    stopped: set[int] = set()
    scans, quiet = 0, 0
    while quiet < _QUIET_SCANS:
        born = _last_born()
        fresh = [pid for pid in _tagged(tag) if pid not in stopped]
        _signal(fresh, signal.SIGSTOP)
        stopped.update(fresh)
        quiet = 0 if fresh or _last_born() != born else quiet + 1
        scans += 1
        if scans == _SCANS:
            _signal([-1], signal.SIGSTOP)
    while True:
        left = _tagged(tag)
        if not left:
            break
        _signal(left, signal.SIGKILL)
        _reap_strays(left)
        time.sleep(0.001)
    if scans >= _SCANS:
        _signal([-1], signal.SIGCONT)


def _last_born() -> str:
    """The pid that was given out last in this namespace."""
    with open("/proc/loadavg") as stream:
        return stream.read().rsplit(None, 1)[1]


def _tagged(tag: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        if _carries(f"/proc/{name}", tag) or any(_carries(task, tag) for task in _other_threads(name)):
            found.append(int(name))
    return found


def _carries(task: str, tag: int) -> bool:
    try:
        return os.stat(f"{task}/ns/uts").st_ino == tag
    except PermissionError:
        # It became a program that it may run but not read, and hides so: then the mark is not to be trusted.
        return True
    except OSError:
        # Gone, or a zombie.
        return False


def _other_threads(pid: str) -> list[str]:
    """Of a process whose first thread has ended, which bears no mark any more; the others may run on."""
    try:
        return [f"/proc/{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task") if name != pid]
    except OSError:
        return []


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
            send_report(channel, report)
    except OSError:
        # The daemon no longer waits for this exec.
        pass


def _empty(fd: int) -> None:
    """Read a non-blocking pipe to the last byte that is there."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
