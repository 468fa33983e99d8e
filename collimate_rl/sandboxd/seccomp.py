"""The system call filter of every exec, as a BPF program built here (no libseccomp).

Refused with EPERM: what an honest candidate never calls and the kernel's attack surface is made of (mounting,
tracing, modules, bpf, keyrings, handles to files, clocks, fresh namespaces …). Answered ENOSYS: clone3, since its
flags lie in memory where a filter can't see them and C libraries then fall back to clone, whose flags it can see;
and every number above the last one this table knows, x32 calls included. Sockets are limited to the local, inet and
route families: others, vsock above all, are not bound to a network namespace. A foreign architecture is killed.
Tables: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.1.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_LD, _JEQ, _JGE, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_REFUSED = _ERRNO | errno.EPERM
_MISSING = _ERRNO | errno.ENOSYS
_NUMBER, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24

_CLONE_REFUSED = 0x7E028080
"""CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET, and CLONE_PARENT, which would make
a child of the zygote."""
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX type into a terminal."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture's numbers: the audit id, the last known call, what is refused, and what is looked into."""

    audit: int
    last: int
    refused: Mapping[str, int]
    clone: int
    clone3: int
    socket: int
    ioctl: int


X86_64 = Architecture(
    audit=0xC000003E,
    last=450,
    clone=56,
    clone3=435,
    socket=41,
    ioctl=16,
    refused={
        "ptrace": 101,
        "syslog": 103,
        "uselib": 134,
        "personality": 135,
        "ustat": 136,
        "sysfs": 139,
        "vhangup": 153,
        "modify_ldt": 154,
        "pivot_root": 155,
        "_sysctl": 156,
        "adjtimex": 159,
        "chroot": 161,
        "acct": 163,
        "settimeofday": 164,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "swapoff": 168,
        "reboot": 169,
        "sethostname": 170,
        "setdomainname": 171,
        "iopl": 172,
        "ioperm": 173,
        "create_module": 174,
        "init_module": 175,
        "delete_module": 176,
        "get_kernel_syms": 177,
        "query_module": 178,
        "quotactl": 179,
        "nfsservctl": 180,
        "lookup_dcookie": 212,
        "clock_settime": 227,
        "vserver": 236,
        "mbind": 237,
        "set_mempolicy": 238,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "migrate_pages": 256,
        "unshare": 272,
        "move_pages": 279,
        "perf_event_open": 298,
        "fanotify_init": 300,
        "fanotify_mark": 301,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "clock_adjtime": 305,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "open_tree": 428,
        "move_mount": 429,
        "fsopen": 430,
        "fsconfig": 431,
        "fsmount": 432,
        "fspick": 433,
        "pidfd_getfd": 438,
        "process_madvise": 440,
        "mount_setattr": 442,
        "quotactl_fd": 443,
        "memfd_secret": 447,
        "process_mrelease": 448,
        "set_mempolicy_home_node": 450,
    },
)

ARM64 = Architecture(
    audit=0xC00000B7,
    last=450,
    clone=220,
    clone3=435,
    socket=198,
    ioctl=29,
    refused={
        "lookup_dcookie": 18,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "nfsservctl": 42,
        "chroot": 51,
        "vhangup": 58,
        "quotactl": 60,
        "acct": 89,
        "personality": 92,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "clock_settime": 112,
        "syslog": 116,
        "ptrace": 117,
        "reboot": 142,
        "sethostname": 161,
        "setdomainname": 162,
        "settimeofday": 170,
        "adjtimex": 171,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "swapon": 224,
        "swapoff": 225,
        "mbind": 235,
        "set_mempolicy": 237,
        "migrate_pages": 238,
        "move_pages": 239,
        "perf_event_open": 241,
        "fanotify_init": 262,
        "fanotify_mark": 263,
        "name_to_handle_at": 264,
        "open_by_handle_at": 265,
        "clock_adjtime": 266,
        "setns": 268,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "open_tree": 428,
        "move_mount": 429,
        "fsopen": 430,
        "fsconfig": 431,
        "fsmount": 432,
        "fspick": 433,
        "pidfd_getfd": 438,
        "process_madvise": 440,
        "mount_setattr": 442,
        "quotactl_fd": 443,
        "memfd_secret": 447,
        "process_mrelease": 448,
        "set_mempolicy_home_node": 450,
    },
)

ARCHITECTURES: Mapping[str, Architecture] = {"x86_64": X86_64, "aarch64": ARM64}
"""By `os.uname().machine`."""


_FORK_NEEDS = ("mount", "setns", "unshare")
"""What laying out a fork takes, and so only the second filter refuses."""


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Two programs, each an array of `struct sock_filter`, 8 bytes each (linux/filter.h).

    `base` goes on the zygote and is inherited at no cost; `seal` is small and goes on every exec. What both refuse
    together is what the module says.
    """

    base: bytes
    seal: bytes


class _Program:
    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, int, int]] = []

    def emit(self, code: int, jump_true: int, jump_false: int, value: int) -> None:
        self._instructions.append((code, jump_true, jump_false, value))

    def answer_if_equal(self, value: int, action: int) -> None:
        self.emit(_JEQ, 0, 1, value)
        self.emit(_RET, 0, 0, action)

    def pack(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *instruction) for instruction in self._instructions)


def build_filters(architecture: Architecture) -> Filters:
    """Both programs for one architecture."""
    return Filters(base=_base(architecture), seal=_seal(architecture))


def _base(architecture: Architecture) -> bytes:
    program = _Program()
    program.emit(_LD, 0, 0, _ARCH)
    program.emit(_JEQ, 1, 0, architecture.audit)
    program.emit(_RET, 0, 0, _KILL)
    program.emit(_LD, 0, 0, _NUMBER)
    program.emit(_JGE, 0, 1, architecture.last + 1)
    program.emit(_RET, 0, 0, _MISSING)
    program.answer_if_equal(architecture.clone3, _MISSING)
    for name, number in architecture.refused.items():
        if name not in _FORK_NEEDS:
            program.answer_if_equal(number, _REFUSED)
    families = len(_SOCKET_FAMILIES)
    program.emit(_JEQ, 0, 3 + families, architecture.socket)
    program.emit(_LD, 0, 0, _ARG0)
    for position, family in enumerate(_SOCKET_FAMILIES):
        program.emit(_JEQ, families - position, 0, family)
    program.emit(_RET, 0, 0, _ERRNO | errno.EAFNOSUPPORT)
    program.emit(_RET, 0, 0, _ALLOW)
    requests = len(_TERMINAL_REQUESTS)
    program.emit(_JEQ, 0, 1 + requests, architecture.ioctl)
    program.emit(_LD, 0, 0, _ARG1)
    for position, request in enumerate(_TERMINAL_REQUESTS):
        program.emit(_JEQ, requests - position, 0, request)
    program.emit(_RET, 0, 0, _ALLOW)
    program.emit(_RET, 0, 0, _REFUSED)
    return program.pack()


def _seal(architecture: Architecture) -> bytes:
    program = _Program()
    program.emit(_LD, 0, 0, _NUMBER)
    for name in _FORK_NEEDS:
        program.answer_if_equal(architecture.refused[name], _REFUSED)
    program.emit(_JEQ, 0, 3, architecture.clone)
    program.emit(_LD, 0, 0, _ARG0)
    program.emit(_JSET, 0, 1, _CLONE_REFUSED)
    program.emit(_RET, 0, 0, _REFUSED)
    program.emit(_RET, 0, 0, _ALLOW)
    return program.pack()
