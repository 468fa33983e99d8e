"""Who a process is across pid reuse and reboots, how a child is tied to its parent's life, and how it ends."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def boot_id() -> str:
    """The kernel's random name for this boot: the same pid under another boot is another process."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> str:
    """The number of the pid namespace: pids of another container mean nothing here."""
    return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))


def start_time(pid: int) -> int | None:
    """Clock ticks between boot and the start of a live process; None when there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # no such process, or it went while being read
    # The second field is the command in parentheses and may hold anything, so count from the last parenthesis.
    rest = stat.rpartition(")")[2].split()
    return None if rest[0] in ("Z", "X") else int(rest[19])


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """One process, named so that no later process can be taken for it."""

    boot: str
    namespace: str
    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now; None when there is none."""
        started = start_time(pid)
        return None if started is None else cls(boot=boot_id(), namespace=pid_namespace(), pid=pid, started=started)

    @classmethod
    def own(cls) -> ProcessId:
        """This process."""
        identity = cls.of(os.getpid())
        assert identity is not None, "a running process is alive"
        return identity

    @classmethod
    def parse(cls, text: str) -> ProcessId | None:
        """What `str` wrote; None for anything else."""
        parts = text.split(".")
        if len(parts) != 4 or not (parts[2].isdecimal() and parts[3].isdecimal()):
            return None
        return cls(boot=parts[0], namespace=parts[1], pid=int(parts[2]), started=int(parts[3]))

    def __str__(self) -> str:
        """Fit for a name on the queue: letters, digits, dashes and dots."""
        return f"{self.boot}.{self.namespace}.{self.pid}.{self.started}"

    def alive(self) -> bool | None:
        """True or False; None where it cannot be seen from here: another machine (or boot), another pid namespace."""
        if self.boot != boot_id() or self.namespace != pid_namespace():
            return None
        return start_time(self.pid) == self.started


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; `parent` is the pid that must be it.

    Ends the process at once when the parent is gone already: then no signal will ever come.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage while modules are imported: there is none, and looking takes a sixth of a process' start."""
    looks = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looks:
            gc.enable()


def leave(code: int) -> NoReturn:
    """End this process with an exit code, once all that it said is written.

    Not by `sys.exit`, which takes the interpreter apart module by module: a tenth of a second of a processor for each
    process of a node that stops. Where a thread is left that has to be waited for, it is.
    """
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # whoever read it is gone, or it was closed: there is nobody to tell
    os._exit(code)
