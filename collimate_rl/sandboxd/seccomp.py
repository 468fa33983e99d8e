"""The system call filter of every exec, as a BPF program built here (no libseccomp).

Refused with EPERM: what an honest candidate never calls and the kernel's attack surface is made of (mounting, tracing,
modules, bpf, keyrings, handles to files, clocks, fresh namespaces …). Answered ENOSYS: clone3, since its flags lie in
memory where a filter can't see them and C libraries then fall back to clone, whose flags it can see; and every number
above the last one known here, also those of x32. Sockets, pairs of them too, are limited to the local family, to TCP
and UDP, and to netlink's routes: others, vsock above all, are not bound to a network namespace, and the mere question
for a protocol has the host load its module. None joins a multicast group: what the kernel sends for one that was left
would come after the exec, in a network that is another's by then. None leases a flow label: where one was ever leased
alone, the kernel refuses labels that nobody leased. The limit on core files can't be changed: it keeps a crash from
starting a helper of the host. A foreign architecture is killed.
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
_DONE = _ERRNO
"""Errno 0: the call does nothing and succeeds."""
_REFUSED = _ERRNO | errno.EPERM
_MISSING = _ERRNO | errno.ENOSYS
_NUMBER, _ARCH = 0, 4
_ARG0, _ARG1, _ARG2 = 16, 24, 32
"""Offsets in `struct seccomp_data`; of an argument, its lower half on machines that store that first."""
_UPPER_HALF = 4

_CLONE_REFUSED = 0x7E028080
"""CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET, and CLONE_PARENT, which would make
a child of the zygote."""
_LOCAL, _NETLINK, _INET_FAMILIES = 1, 16, (2, 10)
"""AF_UNIX, AF_NETLINK, AF_INET and AF_INET6."""
_TYPE_MASK, _INET_TYPES, _INET_PROTOCOLS = 0xF, (1, 2, 3), (0, 6, 17)
"""SOCK_STREAM, SOCK_DGRAM and SOCK_RAW (which takes a capability); the family's own, TCP, UDP."""
_NETLINK_ROUTE = 0
_LASTING = {0: (35, 39, 41, 42, 46, 48), 41: (20, 27, 32, 42, 46, 48)}
"""By level, IPPROTO_IP and IPPROTO_IPV6: what joins a group or an anycast address, or leases a label (in.h, in6.h)."""
_RLIMIT_CORE = 4
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
    socketpair: int
    setsockopt: int
    ioctl: int
    setrlimit: int
    prlimit64: int


X86_64 = Architecture(
    audit=0xC000003E,
    last=450,
    clone=56,
    clone3=435,
    socket=41,
    socketpair=53,
    setsockopt=54,
    ioctl=16,
    setrlimit=160,
    prlimit64=302,
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
        "io_setup": 206,
        "io_destroy": 207,
        "io_getevents": 208,
        "io_submit": 209,
        "io_cancel": 210,
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
        "io_pgetevents": 333,
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
    socketpair=199,
    setsockopt=208,
    ioctl=29,
    setrlimit=164,
    prlimit64=261,
    refused={
        "io_setup": 0,
        "io_destroy": 1,
        "io_submit": 2,
        "io_cancel": 3,
        "io_getevents": 4,
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
        "io_pgetevents": 292,
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

    def allow_if_among(self, values: tuple[int, ...], otherwise: int) -> None:
        for position, value in enumerate(values):
            self.emit(_JEQ, len(values) - position, 0, value)
        self.emit(_RET, 0, 0, otherwise)
        self.emit(_RET, 0, 0, _ALLOW)

    def answer_if_among(self, values: tuple[int, ...], action: int) -> None:
        for value in values:
            self.answer_if_equal(value, action)
        self.emit(_RET, 0, 0, _ALLOW)

    def when(self, value: int, rules: _Program) -> None:
        """Rules of their own, each way through them ending in an answer, for when the accumulator has this value."""
        self.emit(_JEQ, 0, len(rules._instructions), value)
        self._instructions += rules._instructions

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
    program.when(architecture.socket, _socket_rules())
    program.when(architecture.socketpair, _socketpair_rules())
    program.when(architecture.setsockopt, _setsockopt_rules())
    program.when(architecture.setrlimit, _setrlimit_rules())
    program.when(architecture.prlimit64, _prlimit_rules())
    requests = len(_TERMINAL_REQUESTS)
    program.emit(_JEQ, 0, 1 + requests, architecture.ioctl)
    program.emit(_LD, 0, 0, _ARG1)
    for position, request in enumerate(_TERMINAL_REQUESTS):
        program.emit(_JEQ, requests - position, 0, request)
    program.emit(_RET, 0, 0, _ALLOW)
    program.emit(_RET, 0, 0, _REFUSED)
    return program.pack()


def _socket_rules() -> _Program:
    netlink = _Program()
    netlink.emit(_LD, 0, 0, _ARG2)
    netlink.allow_if_among((_NETLINK_ROUTE,), _ERRNO | errno.EPROTONOSUPPORT)
    inet = _Program()
    inet.emit(_LD, 0, 0, _ARG1)
    inet.emit(_AND, 0, 0, _TYPE_MASK)
    for position, kind in enumerate(_INET_TYPES):
        inet.emit(_JEQ, len(_INET_TYPES) - position, 0, kind)
    inet.emit(_RET, 0, 0, _ERRNO | errno.ESOCKTNOSUPPORT)
    inet.emit(_LD, 0, 0, _ARG2)
    inet.allow_if_among(_INET_PROTOCOLS, _ERRNO | errno.EPROTONOSUPPORT)
    rules = _Program()
    rules.emit(_LD, 0, 0, _ARG0)
    rules.answer_if_equal(_LOCAL, _ALLOW)
    rules.when(_NETLINK, netlink)
    for family in _INET_FAMILIES:
        rules.when(family, inet)
    rules.emit(_RET, 0, 0, _ERRNO | errno.EAFNOSUPPORT)
    return rules


def _socketpair_rules() -> _Program:
    rules = _Program()
    rules.emit(_LD, 0, 0, _ARG0)
    rules.allow_if_among((_LOCAL,), _ERRNO | errno.EAFNOSUPPORT)
    return rules


def _setsockopt_rules() -> _Program:
    """Answered as by a kernel that has no interface for any of it."""
    rules = _Program()
    rules.emit(_LD, 0, 0, _ARG1)
    for level, options in _LASTING.items():
        lasting = _Program()
        lasting.emit(_LD, 0, 0, _ARG2)
        lasting.answer_if_among(options, _ERRNO | errno.ENODEV)
        rules.when(level, lasting)
    rules.emit(_RET, 0, 0, _ALLOW)
    return rules


def _setrlimit_rules() -> _Program:
    """Answered as if it had been done: programs that want no core file have none."""
    rules = _Program()
    rules.emit(_LD, 0, 0, _ARG0)
    rules.answer_if_equal(_RLIMIT_CORE, _DONE)
    rules.emit(_RET, 0, 0, _ALLOW)
    return rules


def _prlimit_rules() -> _Program:
    """The same; a mere question, without values to set, is answered by the kernel."""
    change = _Program()
    change.emit(_LD, 0, 0, _ARG2)
    change.emit(_JEQ, 0, 3, 0)
    change.emit(_LD, 0, 0, _ARG2 + _UPPER_HALF)
    change.answer_if_equal(0, _ALLOW)
    change.emit(_RET, 0, 0, _DONE)
    rules = _Program()
    rules.emit(_LD, 0, 0, _ARG1)
    rules.when(_RLIMIT_CORE, change)
    rules.emit(_RET, 0, 0, _ALLOW)
    return rules


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
