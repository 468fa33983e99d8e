"""The system call filters, run here instruction by instruction."""

from __future__ import annotations

import errno
import struct

import pytest

from collimate_rl.sandboxd.seccomp import ARCHITECTURES, ARM64, X86_64, Architecture, Filters, build_filters

ALLOW, KILL = 0x7FFF0000, 0x80000000
DONE = 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = (DONE | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
ENODEV = DONE | errno.ENODEV
ESOCKTNOSUPPORT, EPROTONOSUPPORT = DONE | errno.ESOCKTNOSUPPORT, DONE | errno.EPROTONOSUPPORT


def run_bpf(program: bytes, *, number: int, audit: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would answer to a call with these arguments."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=IIQ6Q", number, audit, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, jump_true, jump_false, value = instructions[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
            continue
        if code == 0x54:
            accumulator &= value
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
        at += jump_true if holds else jump_false


def decide(filters: Filters, architecture: Architecture, number: int, *arguments: int) -> int:
    """Both filters on one call: the kernel takes the stricter answer, which has the smaller action value."""
    answers = [
        run_bpf(program, number=number, audit=architecture.audit, arguments=arguments)
        for program in (filters.base, filters.seal)
    ]
    refusals = [answer for answer in answers if answer != ALLOW]
    return refusals[0] if refusals else ALLOW


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return ARCHITECTURES[request.param]


def test_every_refused_call_is_refused(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    for name, number in architecture.refused.items():
        assert decide(filters, architecture, number) == EPERM, name


def test_everything_else_is_allowed(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    looked_into = {architecture.clone, architecture.clone3, architecture.socket, architecture.socketpair}
    looked_into |= {architecture.setsockopt, architecture.ioctl, architecture.setrlimit, architecture.prlimit64}
    for number in set(range(architecture.last + 1)) - set(architecture.refused.values()) - looked_into:
        assert decide(filters, architecture, number) == ALLOW, number


def test_unknown_calls_and_clone3_do_not_exist(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    for number in (architecture.clone3, architecture.last + 1, 0x40000000 + 1, 0xFFFFFFFF):
        assert decide(filters, architecture, number) == ENOSYS


def test_clone_makes_processes_and_threads_but_no_namespaces(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    thread = 0x3D0F00
    for flags in (17, thread, 0x01200011, 0x4111):
        assert decide(filters, architecture, architecture.clone, flags) == ALLOW
    for flag in (0x80, 0x8000, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(filters, architecture, architecture.clone, flag | 17) == EPERM, hex(flag)


def test_only_socket_families_that_a_network_namespace_holds(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    for family in range(50):
        expected = ALLOW if family in (1, 2, 10, 16) else EAFNOSUPPORT
        assert decide(filters, architecture, architecture.socket, family, 1) == expected, family
        expected = ALLOW if family == 1 else EAFNOSUPPORT
        assert decide(filters, architecture, architecture.socketpair, family, 1) == expected, family


@pytest.mark.parametrize("family", [2, 10])
def test_inet_sockets_are_of_tcp_and_udp(architecture: Architecture, family: int) -> None:
    filters = build_filters(architecture)
    for flags in (0, 0x800, 0x80000, 0x80800):
        for kind in range(16):
            expected = ALLOW if kind in (1, 2, 3) else ESOCKTNOSUPPORT
            assert decide(filters, architecture, architecture.socket, family, kind | flags, 0) == expected, kind
        for protocol in (*range(300), 0xFFFFFFFF):
            expected = ALLOW if protocol in (0, 6, 17) else EPROTONOSUPPORT
            assert decide(filters, architecture, architecture.socket, family, 1 | flags, protocol) == expected, protocol


def test_netlink_is_for_routes(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    for protocol in range(32):
        expected = EPROTONOSUPPORT if protocol else ALLOW
        assert decide(filters, architecture, architecture.socket, 16, 3, protocol) == expected


def test_no_group_is_joined_and_no_flow_label_leased(architecture: Architecture) -> None:
    """By number: IP_ADD_MEMBERSHIP, IP_ADD_SOURCE_MEMBERSHIP, IP_MSFILTER, the protocol-independent ones, IPV6_*;
    IPV6_FLOWLABEL_MGR."""
    filters = build_filters(architecture)
    lasting = {0: {35, 39, 41, 42, 46, 48}, 41: {20, 27, 32, 42, 46, 48}}
    for level in range(300):
        for option in range(80):
            expected = ENODEV if option in lasting.get(level, ()) else ALLOW
            assert decide(filters, architecture, architecture.setsockopt, 3, level, option) == expected, (level, option)


def test_the_limit_on_core_files_stays_and_can_be_asked_for(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    for limit in range(16):
        changed = DONE if limit == 4 else ALLOW
        assert decide(filters, architecture, architecture.setrlimit, limit, 0x7F0000001000) == changed
        for values in (0x1000, 0x7F0000000000, 0x7F0000001000):
            assert decide(filters, architecture, architecture.prlimit64, 0, limit, values) == changed
        assert decide(filters, architecture, architecture.prlimit64, 0, limit, 0, 0x7F0000001000) == ALLOW


def test_no_typing_into_terminals(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    for request, expected in ((0x5412, EPERM), (0x541C, EPERM), (0x5401, ALLOW), (0x541B, ALLOW)):
        assert decide(filters, architecture, architecture.ioctl, 0, request) == expected


def test_a_foreign_architecture_is_killed() -> None:
    for architecture, foreign in ((X86_64, ARM64.audit), (ARM64, X86_64.audit), (X86_64, 0x40000003)):
        program = build_filters(architecture).base
        assert run_bpf(program, number=0, audit=foreign) == KILL


def test_a_fork_can_lay_itself_out_under_the_base_filter(architecture: Architecture) -> None:
    """The zygote's own needs pass the first filter; the second takes them from every exec."""
    filters = build_filters(architecture)
    for name in ("mount", "setns", "unshare"):
        number = architecture.refused[name]
        assert run_bpf(filters.base, number=number, audit=architecture.audit) == ALLOW
        assert run_bpf(filters.seal, number=number, audit=architecture.audit) == EPERM
    assert run_bpf(filters.base, number=architecture.clone, audit=architecture.audit, arguments=(0x6C020000,)) == ALLOW


def test_jumps_stay_inside_the_program(architecture: Architecture) -> None:
    filters = build_filters(architecture)
    for program in (filters.base, filters.seal):
        instructions = list(struct.iter_unpack("=HBBI", program))
        assert len(instructions) < 4096
        for at, (code, jump_true, jump_false, _) in enumerate(instructions):
            if code in (0x15, 0x35, 0x45):
                assert at + 1 + max(jump_true, jump_false) < len(instructions)
        assert instructions[-1][0] == 0x06
