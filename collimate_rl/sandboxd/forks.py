"""One fork seen from the host."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct

from collimate_rl.errors import CollimateError
from collimate_rl.sandboxd.cgroups import Group
from collimate_rl.sandboxd.inside.channel import bound_sends
from collimate_rl.sandboxd.zygotes import Forked, Zygote

_EXITING = 0x4
"""PF_EXITING among a process' flags (proc(5), linux/sched.h): set before it ends what is in its pid namespace."""
_FLAGS = 6
"""Their place in /proc/PID/stat after the name."""
_GET_INFO, _INFO_BYTES = 0xC040FF0B, 64
"""PIDFD_GET_INFO of linux/pidfd.h, with the first version of `struct pidfd_info`: one system call instead of three."""
_INFO_PID = struct.Struct("16xI")
_TAKE_S = 10
"""A fork that takes no bytes for so long is broken; nothing waits on it for ever."""


def session_gone(message: str) -> CollimateError:
    """410: permanent."""
    return CollimateError(message, 410, "session_gone")


class Fork:
    """A fork's channel, the pidfd of its process 1, and its control group.

    `out_of_reach`: process 1 is a placeholder that nothing inside can kill or starve, so its death came from outside.
    """

    def __init__(self, zygote: Zygote, forked: Forked, group: Group, *, out_of_reach: bool) -> None:
        self.out_of_reach = out_of_reach
        self.zygote = zygote
        self.channel = forked.channel
        self.pidfd = forked.first
        self.pid = forked.pid
        self.main = forked.main
        """The pidfd of the process that the zygote forked; -1 once it is let go of."""
        self._group = group
        self._killed = False
        bound_sends(self.channel, _TAKE_S)

    def let_go_of_main(self) -> None:
        """Close that one: a fork that stays would keep it open for nothing."""
        if self.main >= 0:
            os.close(self.main)
            self.main = -1

    def kill(self) -> None:
        """Kill its init, and so, by the kernel's hand, everything in its pid namespace."""
        if self._killed:
            return
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            # It is dead already.
            pass
        self._killed = True

    def is_dead(self, within_s: float = 0.0) -> bool:
        """Whether everything in it is gone: the kernel lets an init end only after all others."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def is_ending(self, within_s: float = 0.0) -> bool:
        """Whether process 1 is dead, or dies by now: all else in its pid namespace was killed by that, then. A hand
        that kills everything one by one may take up to `within_s` to come to it.
        """
        return _exits(self.pidfd) or self.is_dead(within_s) or _exits(self.pidfd)

    def is_cut_short(self) -> bool:
        """Whether something in it was killed for memory that its own limit would have allowed."""
        return self._group.is_cut_short()

    def dispose(self, kill_timeout_s: float) -> bool:
        """Kill, confirm, and give everything back; False when something would not die in time."""
        self.channel.close()
        self.let_go_of_main()
        self.kill()
        dead = self.is_dead(kill_timeout_s)
        os.close(self.pidfd)
        if not dead:
            self._group.remove()
            return False
        self._group.release()
        return True


def pid_of(pidfd: int) -> int:
    """The process's pid as seen from here; -1 once it is reaped."""
    try:
        told = fcntl.ioctl(pidfd, _GET_INFO, bytes(_INFO_BYTES))
    except ProcessLookupError:
        return -1
    except OSError:
        return _pid_by_text(pidfd)
    return _INFO_PID.unpack_from(told)[0]  # type: ignore[no-any-return]


def _pid_by_text(pidfd: int) -> int:
    """For kernels before 6.13."""
    fd = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY)
    try:
        text = os.read(fd, 1024)
    finally:
        os.close(fd)
    return int(text.partition(b"Pid:")[2].split(None, 1)[0])


def _exits(pidfd: int) -> bool:
    try:
        with open(f"/proc/{pid_of(pidfd)}/stat", "rb") as stream:
            return bool(int(stream.read().rpartition(b")")[2].split()[_FLAGS]) & _EXITING)
    except (FileNotFoundError, ProcessLookupError):
        # It was reaped.
        return True
