"""The few system calls that the standard library does not offer, through ctypes."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct

_CLONE_VM = 0x00000100
CLONE_PIDFD = 0x00001000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CLONE_NUMBER = {"x86_64": 56, "aarch64": 220}
_PIDFD_SEND_SIGNAL, _CLOSE_RANGE = 424, 436
"""The same numbers on every architecture."""
_PLACEHOLDER_STACK = 16384
_M_MMAP_THRESHOLD, _M_ARENA_MAX, _LARGE_BYTES = -3, -8, 128 << 10
_MADV_COLLAPSE = 25

# PyDLL keeps the GIL: between PyOS_BeforeFork and its counterparts nothing else may run.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# Looked up here: ctypes makes a function of each when it is first asked for, in each fork anew.
_before_fork, _after_fork_in_child = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_in_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_mount, _capset, _prctl, _socket, _ioctl = _libc.mount, _libc.capset, _libc.prctl, _libc.socket, _libc.ioctl
_syscall, _setns = _libc.syscall, _libc.setns
_ZERO = ctypes.c_long(0)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


_clone_flags: dict[int, ctypes.c_long] = {}
_CLONE = ctypes.c_long(_CLONE_NUMBER.get(os.uname().machine, -1))


def clone(flags: int) -> tuple[int, int]:
    """fork() into fresh namespaces: (0, -1) in the child, (pid, pidfd) in the parent.

    CPython's own fork hooks run around the raw call, so the child's interpreter is as sound as after os.fork().
    """
    pidfd = ctypes.c_int(-1)
    if flags not in _clone_flags:
        _clone_flags[flags] = ctypes.c_long(flags | CLONE_PIDFD | int(signal.SIGCHLD))
    _before_fork()
    pid = _syscall(_CLONE, _clone_flags[flags], _ZERO, ctypes.byref(pidfd), _ZERO, _ZERO)
    if pid == 0:
        _after_fork_in_child()
        return 0, -1
    number_of_error = ctypes.get_errno() if pid < 0 else 0
    _after_fork_in_parent()
    if pid < 0:
        raise OSError(number_of_error, "clone: " + os.strerror(number_of_error))
    return int(pid), int(pidfd.value)


def setns(fd: int, flags: int) -> None:
    """Enter the namespaces that a pidfd or a file of /proc/PID/ns stands for; for pids, the children will be there."""
    _checked(_setns(fd, flags), "setns")


def kill_by_pidfd(pidfd: int) -> None:
    """SIGKILL; a process that is gone already is fine."""
    _syscall(ctypes.c_long(_PIDFD_SEND_SIGNAL), ctypes.c_long(pidfd), ctypes.c_long(9), _ZERO, _ZERO)


def close_from(first: int, ceiling: int) -> None:
    """Close every descriptor from `first` on. Before Linux 5.9 only those below `ceiling`, one by one."""
    if _syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_long(first), ctypes.c_long(0xFFFFFFFF), _ZERO) != 0:
        os.closerange(first, ceiling)


def keep_one(fd: int, number: int, ceiling: int) -> None:
    """Have `fd` as descriptor `number`, which it may be already, closed where a program is started, and none above."""
    # Inheritable at first: dup3 refuses two equal numbers.
    os.dup2(fd, number)
    os.set_inheritable(number, False)
    close_from(number + 1, ceiling)


class Placeholders:
    """Makes processes 1 of fresh pid namespaces that do nothing but be there.

    Each is a clone that shares this process's memory and sleeps in the C library's pause(): it costs no copy of
    anything, runs no Python, and holds nothing. Its end is the end of all in its namespace. Orphans become its
    children and are reaped by the kernel, since SIGCHLD must be ignored here, and stays so in the clone.
    """

    def __init__(self) -> None:
        self._pause = ctypes.cast(_libc.pause, ctypes.c_void_p)
        # One stack does for all: what pause() puts there never changes and is never read back.
        self._stack = mmap.mmap(-1, _PLACEHOLDER_STACK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._stack))
        self._top = ctypes.c_void_p((base + _PLACEHOLDER_STACK - 64) & ~63)

    def make(self) -> int:
        """The pidfd of a fresh one."""
        pidfd = ctypes.c_int(-1)
        flags = ctypes.c_int(_CLONE_VM | CLONE_NEWPID | CLONE_PIDFD | int(signal.SIGCHLD))
        _checked(_libc.clone(self._pause, self._top, flags, None, ctypes.byref(pidfd)), "clone")
        return int(pidfd.value)


def trim_heap() -> None:
    """Give the kernel back what the C library's heap holds free: every fork would copy and unmap its page tables."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        # glibc's own: others have none.
        trim(ctypes.c_size_t(0))


def keep_no_heap() -> None:
    """Have the C library give large blocks back as they are freed, and share its heaps among threads."""
    adjust = getattr(_libc, "mallopt", None)
    if adjust is not None:
        adjust(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        adjust(_M_ARENA_MAX, 1)


def part_in_use(place: int, length: int) -> float:
    """The part of so many bytes of this process's memory that has pages; 0.0 where the kernel does not say."""
    pages = length // mmap.PAGESIZE
    told = ctypes.create_string_buffer(max(pages, 1))
    if not pages or _libc.mincore(ctypes.c_void_p(place), ctypes.c_size_t(length), told) != 0:
        return 0.0
    return sum(each & 1 for each in told.raw) / pages


def make_large(place: int, length: int) -> bool:
    """Have one large page there instead of small ones, with what they hold; False where there is none to be had."""
    # Linux 6.1 and later, whatever it does by itself.
    advice = ctypes.c_int(_MADV_COLLAPSE)
    return int(_libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(length), advice)) == 0


def unshare(flags: int) -> None:
    """Move this process into fresh namespaces."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: bytes, target: bytes, kind: bytes, flags: int, data: bytes | None = None) -> None:
    """mount(2)."""
    if _mount(source, target, kind, ctypes.c_ulong(flags), data) != 0:
        _checked(-1, "mount " + os.fsdecode(target))


def make_mounts_private() -> None:
    """Stop mount events from travelling between this namespace and others."""
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "mount private")


def set_dumpable(on: bool) -> None:
    """Whether /proc/self is readable by processes of the same user, and the process traceable by them."""
    _checked(_prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(on), 0, 0, 0), "PR_SET_DUMPABLE")


def forbid_new_privileges() -> None:
    """No exec may ever gain rights again: no_new_privs, an empty bounding set, no ambient capabilities."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    _libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_PR_CAP_AMBIENT_CLEAR_ALL), 0, 0, 0)
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) == 0:
        capability += 1


_CAPSET_HEADER = _CapHeader(0x20080522, 0)
_NO_CAPABILITIES = (ctypes.byref(_CAPSET_HEADER), (ctypes.c_uint32 * 6)())


def drop_capabilities() -> None:
    """Empty the effective, permitted and inheritable sets."""
    _checked(_capset(*_NO_CAPABILITIES), "capset")


class SeccompFilter:
    """A BPF program kept ready in memory, so that installing it costs one call."""

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._program = ctypes.byref(_FilterProgram(len(program) // 8, ctypes.addressof(self._buffer)))

    def install(self) -> None:
        """Put the filter on this process and all that it starts; it can't be taken off again."""
        _checked(_prctl(_PR_SET_SECCOMP, ctypes.c_ulong(2), self._program, 0, 0), "seccomp")


_AF_INET, _SOCK_DGRAM_CLOEXEC = 2, 2 | 0x80000
_SIOCSIFFLAGS = 0x8914
_LOOPBACK_UP = ctypes.create_string_buffer(struct.pack("16sH22x", b"lo", 0x1), 40)


def bring_loopback_up() -> None:
    """A fresh network namespace has `lo`, but down. By hand: the socket module costs ten times as much in a fork."""
    probe = _checked(_socket(_AF_INET, _SOCK_DGRAM_CLOEXEC, 0), "socket")
    try:
        _checked(_ioctl(probe, ctypes.c_ulong(_SIOCSIFFLAGS), _LOOPBACK_UP), "bring lo up")
    finally:
        os.close(probe)
