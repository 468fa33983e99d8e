"""The clean process from which candidates are forked, and what every one of them finds on waking up."""

from __future__ import annotations

import array
import atexit
import gc
import os
import resource
import signal
import socket
import sys
from typing import Any, Callable, NoReturn, Optional

RECURSION = 50_000
STACK = 120 << 20  # bytes; Linux keeps 128 MiB free below the main thread's stack, whose limit counts as it grows
REAPS = 100
FDS = 1024
DEATH_SIGNAL, DUMPABLE, SUBREAPER = 1, 4, 36  # prctl(2)
KILL = int(signal.SIGKILL)


def _find_prctl() -> Any:
    """prctl(2), where ctypes and Linux are at hand: what it adds here is a second fence, not the first."""
    try:
        import ctypes

        return ctypes.pythonapi.prctl
    except (ImportError, OSError, AttributeError):
        return lambda *_: 0


prctl = _find_prctl()


def slurp(path: str) -> bytes:
    """A file's bytes, by system calls alone: what is warm in a forked process is worth keeping so."""
    fd, parts = os.open(path, os.O_RDONLY), [b"-"]
    while parts[-1]:
        parts.append(os.read(fd, 1 << 20))
    os.close(fd)
    return b"".join(parts)[1:]


def nursery(link: socket.socket, candidate: Callable[[int], int], draws: Any) -> NoReturn:
    """Forks a candidate per message, which carries its frame socket, stdin, stdout and stderr as descriptors.

    Where the message is b"b" it becomes the candidate itself, and its parent has to `reap` it.
    Every candidate begins with `draws`, the state of `random` (None where that isn't loaded).
    Answers two lines: the pid (-1: none could be forked), then, when it is dead and all that it left running with it,
    its wait status, peak memory in KiB and milliseconds on a processor.
    """
    prctl(DEATH_SIGNAL, KILL, 0, 0, 0)
    prctl(SUBREAPER, 1, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    while True:
        fds = array.array("i")
        word, carried, _, _ = link.recvmsg(1, socket.CMSG_SPACE(4 * fds.itemsize))
        if not word:
            os._exit(0)
        fds.frombytes(carried[0][2])
        pid = 0
        if word == b"b":
            prctl(SUBREAPER, 0, 0, 0, 0)
        else:
            try:
                pid = os.fork()
            except OSError:
                pid = -1
        if pid == 0:
            try:
                link.close()
                for fd in (0, 1, 2):
                    os.dup2(fds[fd + 1], fd)
                for fd in set(fds[1:]):
                    os.close(fd)
                os.setsid()
                wake_up(draws)
                open_streams()
                os._exit(candidate(fds[0]))
            finally:
                os._exit(1)
        for fd in set(fds):
            os.close(fd)
        link.sendall(b"%d\n" % pid)
        if pid > 0:
            link.sendall(reap(pid, 0) or b"")


def reap(pid: int, options: int) -> Optional[bytes]:
    """A dead candidate's line, when all that it left running is dead, too; None where wait4(2) says that it lives."""
    done, status, usage = os.wait4(pid, options)
    if not done:
        return None
    end_orphans()
    return b"%d %d %d\n" % (status, usage.ru_maxrss, (usage.ru_utime + usage.ru_stime) * 1000)


def end_orphans() -> None:
    """Kill and reap what a dead candidate left running: as its subreaper, this process is now the parent."""
    for _ in range(REAPS):
        try:
            pids = [int(pid) for pid in slurp("/proc/self/task/%d/children" % os.getpid()).split()]
        except OSError:
            return
        if not pids:
            return
        for pid in pids:
            os.kill(pid, KILL)
        for pid in pids:
            os.waitpid(pid, 0)


def wake_up(draws: Any) -> None:
    """What honest code may expect: deep recursion, long integers, no exit handlers but its own."""
    prctl(DEATH_SIGNAL, KILL, 0, 0, 0)
    room = STACK
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"1000")
        os.close(fd)
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        room = min(STACK, hard) if hard > 0 else STACK  # RLIM_INFINITY is below 0
        resource.setrlimit(resource.RLIMIT_STACK, (room, hard))
        # Too few to keep anybody else, the holder among them, from passing descriptors on (see unix(7), ETOOMANYREFS).
        fds = min(FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (fds, fds))
    except (OSError, ValueError):
        room = STACK // 16  # no Linux
    sys.setrecursionlimit(max(1000, room // (STACK // RECURSION)))
    getattr(sys, "set_int_max_str_digits", int)(0)
    atexit._clear()
    if draws is not None:
        sys.modules["random"].setstate(draws)  # forking has reseeded it
    gc.enable()
    sys.argv = ["solution.py"]


def open_streams() -> None:
    """Fresh standard streams, which honest code may expect, too."""
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        try:
            # Nothing was read or is left to be written, so it serves whatever the descriptor is now.
            stream.reconfigure(encoding="utf-8", errors="surrogateescape", line_buffering=False, write_through=False)
            ours = stream.fileno() == fd
        except (AttributeError, ValueError, OSError):
            ours = False
        if not ours:
            stream = os.fdopen(fd, "w" if fd else "r", encoding="utf-8", errors="surrogateescape", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)
