"""One-shot execs that follow each other in a network: only where nothing is left, lives on, or was counted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.sandbox_daemon import RunningDaemon, small_daemon
from tests.fixtures.sandboxd_wire import call, code, descendants

COOKIE = 71
"""SO_NETNS_COOKIE: a network's number, which no later one gets."""
CACHEINFO = 12
"""RTA_CACHEINFO (linux/rtnetlink.h)."""
LONG_AGO = 20
LOOK = f"""
import json, os, socket, struct
seen = {{}}
# What the whole machine counts, or which addresses in memory are not shown.
others = "protocols", "softnet_stat", "sockstat6", "rt_cache", "rt_acct", "netlink", "unix", "ptype", "packet"
for name in sorted(os.listdir("/proc/self/net")):
    if name not in others:
        try:
            with open("/proc/self/net/" + name) as file:
                seen[name] = file.read()
        except OSError:
            pass
seen["sockstat"] = seen["sockstat"].splitlines()[0]
# The kernel's answer on a route it remembers tells when that was first looked up, in hundredths of a second.
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as routes:
    routes.send(struct.pack("=IHHII12BHH4s", 36, 26, 1, 1, 0, 2, 32, *[0] * 10, 8, 1, socket.inet_aton("127.0.0.1")))
    answer = routes.recv(65536)
at, told = 28, {{}}
while at < len(answer):
    length, kind = struct.unpack_from("=HH", answer, at)
    told[kind], at = answer[at + 4 : at + length], at + (length + 3 & ~3)
clients, age = struct.unpack_from("=II", told[{CACHEINFO}])
seen["a route that was looked up before"] = age >= {LONG_AGO}
with socket.socket() as probe:
    cookie = probe.getsockopt(socket.SOL_SOCKET, {COOKIE}, 8).hex()
print(json.dumps([cookie, seen]))
"""
USES = {
    "a packet to itself": """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(("127.0.0.1", 7001)); s.sendto(b"x", ("127.0.0.1", 7001)); s.recv(1)
""",
    "a connection that waits for its end": """
import socket
with socket.create_server(("127.0.0.1", 7002)) as s, socket.create_connection(("127.0.0.1", 7002)) as c:
    s.accept()[0].close(); c.recv(1)
""",
    "a place that can't be reached, IPv4": """
import socket
for _ in range(77):
    try: socket.socket().connect(("192.0.2.1", 80))
    except OSError: pass
""",
    "a place that can't be reached, IPv6": """
import socket
for _ in range(77):
    try: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 80))
    except OSError: pass
""",
    "a route that the kernel remembers": """
import socket, time
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9))
time.sleep(0.3)
""",
    "a flow label that it wants for itself alone": """
import socket, struct
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
leased = struct.pack("!I", 0x4711) + struct.pack("BBHHHI", 0, 1, 1, 6, 6, 0)
try: s.setsockopt(socket.IPPROTO_IPV6, 32, socket.inet_pton(socket.AF_INET6, "::1") + leased); print("leased")
except OSError: pass
""",
    "groups that it wants to join": """
import socket, struct
v4, v6 = socket.inet_aton("239.1.2.3"), socket.inet_pton(socket.AF_INET6, "ff05::7")
here = socket.inet_aton("127.0.0.1")
any_group = struct.pack("I4xHH4s120x", 1, socket.AF_INET, 0, v4)
tries = [(socket.IPPROTO_IP, 35, v4 + here), (socket.IPPROTO_IP, 39, v4 + here + here)]
tries += [(socket.IPPROTO_IP, 42, any_group), (socket.IPPROTO_IPV6, 20, v6 + struct.pack("I", 1))]
for s in (socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)):
    for level, option, value in tries:
        try: s.setsockopt(level, option, value); print("joined", s, level, option)
        except OSError: pass
""",
    "a server that lives on": """
import os, socket, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        s = socket.create_server(("127.0.0.1", 7003)); time.sleep(60)
    os._exit(0)
os.wait()
""",
    "a server's socket that is under way to itself": """
import array, os, socket
s = socket.create_server(("127.0.0.1", 7004))
a, b = socket.socketpair()
carried = array.array("i", [s.fileno(), a.fileno(), b.fileno()])
for end in (a, b):
    end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, carried)])
""",
    "a name of the local family": """
import socket
socket.socket(socket.AF_UNIX).bind("\\0left")
""",
}


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with small_daemon() as own:
        yield own


def look(daemon: RunningDaemon) -> tuple[str, dict[str, Any]]:
    """The network of an exec, and all that it finds there."""
    cookie, seen = json.loads(code(daemon.socket_path, LOOK)["stdout"])
    return cookie, seen


@pytest.fixture(scope="module")
def fresh(daemon: RunningDaemon) -> dict[str, Any]:
    """What there is to be found before anybody has used anything."""
    return look(daemon)[1]


def test_execs_that_use_none_follow_each_other_in_few(daemon: RunningDaemon, fresh: dict[str, Any]) -> None:
    # Where the kernel counts the routes of IPv4 that were looked up, one who looks at everything has used it.
    text = f"import socket\nprint(socket.socket().getsockopt(socket.SOL_SOCKET, {COOKIE}, 8).hex())"
    assert len({code(daemon.socket_path, text)["stdout"] for _ in range(40)}) < 40
    assert [look(daemon)[1] for _ in range(16)] == [fresh] * 16


@pytest.mark.parametrize("use", USES)
def test_what_was_done_in_one_is_not_to_be_seen_by_those_that_follow(
    daemon: RunningDaemon, fresh: dict[str, Any], use: str
) -> None:
    for _ in range(3):
        answer = code(daemon.socket_path, USES[use])
        assert (answer["exit_code"], answer["stdout"]) == (0, "")
    for _ in range(24):
        assert look(daemon)[1] == fresh


def test_the_same_ports_can_be_had_again_and_again(daemon: RunningDaemon) -> None:
    text = "import socket\nfor port in (7001, 7002, 7003, 7004):\n    socket.create_server(('', port))\nprint('had')"
    for use in USES.values():
        code(daemon.socket_path, use)
    assert [code(daemon.socket_path, text)["stdout"] for _ in range(24)] == ["had\n"] * 24


def test_nothing_can_be_set_up_in_one(daemon: RunningDaemon) -> None:
    text = """
import os, socket, fcntl, struct
for folder, _, names in os.walk("/proc/sys/net"):
    for name in names:
        try: os.close(os.open(f"{folder}/{name}", os.O_WRONLY)); print("opened", folder, name)
        except OSError: pass
for number in (0x8914, 0x8916, 0x890B, 0x8923, 0x8943):
    try: fcntl.ioctl(socket.socket(), number, struct.pack("16s24x", b"lo")); print("done", number)
    except OSError: pass
print("none")
"""
    assert code(daemon.socket_path, text)["stdout"] == "none\n"


def test_a_sessions_init_holds_nothing_of_the_warm_interpreters(daemon: RunningDaemon) -> None:
    look(daemon)  # a network is kept, and its process 1 known
    before = descendants(daemon.pid)
    known = set(map(network, before))
    session = call(daemon.socket_path, "POST", "/v1/sessions", {"template_id": "py"})[1]["session_id"]
    try:
        fresh = [pid for pid in descendants(daemon.pid) - before if network(pid) not in known]
        (init,) = (pid for pid in fresh if pid_inside(pid) == 1)
        fds = [fd for fd in os.listdir(f"/proc/{init}/fd") if int(fd) > 2]
        held = [os.readlink(f"/proc/{init}/fd/{fd}").split(":")[0] for fd in fds]
    finally:
        call(daemon.socket_path, "DELETE", f"/v1/sessions/{session}")
    # Its channel, and what wakes it when a child has ended.
    assert sorted(held) == ["pipe", "pipe", "socket"]


def network(pid: int) -> str:
    """Where a process is; nowhere, when it went meanwhile."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def pid_inside(pid: int) -> int:
    """In the innermost of its pid namespaces."""
    status = Path(f"/proc/{pid}/status").read_text()
    (pids,) = (line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(pids.split()[-1])
