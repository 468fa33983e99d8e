"""What a hostile candidate tries: it gets nowhere, its neighbour notices nothing, and the daemon is as it was."""

from __future__ import annotations

import os
import sys
import threading
import time
from ast import literal_eval
from collections.abc import Iterator
from typing import Any

import pytest

from collimate_rl.sandboxd.jail import environment
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.sandboxd_wire import call, code, control_groups, eventually, footprint, run, session_exec

NEIGHBOUR = """
import subprocess, sys, threading, time
data = bytearray(64 << 20)
for step in range(8):
    data[step << 20] = step
    open(f"file{step}", "wb").write(b"x" * 100_000)
    assert subprocess.run(["sh", "-c", "echo ok"], capture_output=True).stdout == b"ok\\n"
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    time.sleep(0.05)
print("neighbour", sum(data))
"""

TOP = "import ctypes, os, signal, socket, subprocess, sys, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"

CONNECT = """
import socket
s = socket.socket(socket.AF_UNIX)
try: s.connect(%r)
except OSError as e: print(e.errno)
"""

# Name, code after TOP, what it prints.
REFUSED: list[tuple[str, str, str]] = [
    ("mount", "print(libc.mount(b'x', b'/box', b'tmpfs', 0, None), ctypes.get_errno())", "-1 1\n"),
    ("umount", "print(libc.umount2(b'/proc', 2), ctypes.get_errno())", "-1 1\n"),
    ("unshare user", "print(libc.unshare(0x10000000), ctypes.get_errno())", "-1 1\n"),
    ("unshare mount", "print(libc.unshare(0x20000), ctypes.get_errno())", "-1 1\n"),
    ("setns", "print(libc.setns(os.open('/proc/self/ns/net', os.O_RDONLY), 0), ctypes.get_errno())", "-1 1\n"),
    ("chroot", "print(libc.chroot(b'/tmp'), ctypes.get_errno())", "-1 1\n"),
    ("ptrace init", "print(libc.ptrace(16, 1, 0, 0), ctypes.get_errno())", "-1 1\n"),
    ("clone3", "print(libc.syscall(435, 0, 0), ctypes.get_errno())", "-1 38\n"),
    ("clone newuser", "print(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0), ctypes.get_errno())", "-1 1\n"),
    ("io_uring", "print(libc.syscall(425, 8, 0), ctypes.get_errno())", "-1 1\n"),
    ("bpf", "print(libc.syscall(321, 0, 0, 0), ctypes.get_errno())", "-1 1\n"),
    ("keyctl", "print(libc.syscall(250, 0, 0, 0), ctypes.get_errno())", "-1 1\n"),
    ("module", "print(libc.syscall(175, 0, 0, b''), ctypes.get_errno())", "-1 1\n"),
    ("reboot", "print(libc.reboot(0x1234567), ctypes.get_errno())", "-1 1\n"),
    ("vsock", "print(libc.socket(40, 1, 0), ctypes.get_errno())", "-1 97\n"),
    ("packet", "print(libc.socket(17, 3, 0), ctypes.get_errno())", "-1 97\n"),
    ("memory of init", "try: open('/proc/1/mem', 'rb')\nexcept OSError as e: print(e.errno)", "13\n"),
    ("descriptors of init", "try: os.listdir('/proc/1/fd')\nexcept OSError as e: print(e.errno)", "13\n"),
    ("environment of init", "try: print(open('/proc/1/environ').read())\nexcept OSError as e: print(e.errno)", "13\n"),
    ("root stays read-only", "try: open('/x', 'w')\nexcept OSError as e: print(e.errno)", "30\n"),
    ("usr stays read-only", "try: open('/usr/x', 'w')\nexcept OSError as e: print(e.errno)", "30\n"),
    ("dev stays read-only", "try: open('/dev/x', 'w')\nexcept OSError as e: print(e.errno)", "30\n"),
    ("own descriptors", "print(sorted(os.listdir('/proc/self/fd')))", "['0', '1', '2', '3']\n"),
    (
        "no rights",
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith(('Cap', 'NoNew', 'Seccomp:'))])",
        f"{['0' * 16] * 5 + ['1', '2']}\n",
    ),
]


@pytest.fixture(scope="module")
def at_rest(sandbox_daemon: RunningDaemon) -> Iterator[dict[str, int]]:
    """The daemon's footprint before this module's attacks; after them it must be the same."""
    code(sandbox_daemon.socket_path, "pass")
    call(sandbox_daemon.socket_path, "GET", "/v1/health")
    eventually(lambda: footprint(sandbox_daemon.pid) == footprint(sandbox_daemon.pid), "the daemon at rest")
    before, groups = footprint(sandbox_daemon.pid), control_groups(sandbox_daemon.pid)
    yield before
    eventually(lambda: footprint(sandbox_daemon.pid) == before, f"{footprint(sandbox_daemon.pid)} back to {before}")
    health = call(sandbox_daemon.socket_path, "GET", "/v1/health")
    assert health[0] == 200
    assert health[1]["unclean_forks"] == 0
    # Empty control groups are kept for reuse: at most as many as there were forks at once, health's own included.
    assert control_groups(sandbox_daemon.pid) <= groups + 3 * (health[1]["max_inflight"] + 1)


@pytest.fixture
def beside(daemon_socket: str, at_rest: dict[str, int]) -> Iterator[str]:
    """The daemon's socket, while an honest neighbour runs there; the neighbour must end as ever."""
    answers: list[dict[str, Any]] = []
    neighbour = threading.Thread(target=lambda: answers.append(code(daemon_socket, NEIGHBOUR)))
    neighbour.start()
    yield daemon_socket
    neighbour.join(60)
    assert [(answer["exit_code"], answer["stdout"]) for answer in answers] == [(0, "neighbour 28\n")]
    assert code(daemon_socket, "print('served')")["stdout"] == "served\n"


@pytest.mark.parametrize(("text", "said"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_refused(daemon_socket: str, at_rest: dict[str, int], text: str, said: str) -> None:
    answer = code(daemon_socket, TOP + text)
    assert (answer["stdout"], answer["exit_code"]) == (said, 0)


def test_fork_bomb(beside: str) -> None:
    answer = code(beside, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", timeout_seconds=1)
    assert answer["exit_code"] == -1
    assert "timed out" in answer["stdout"]


def test_fork_bomb_is_bounded(beside: str) -> None:
    text = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\n        n += 1\n"
    answer = code(beside, text + "except OSError as e: print(n < 64, e.errno)")
    assert (answer["stdout"], answer["exit_code"]) == ("True 11\n", 0)


def test_processes_that_spin_take_no_more_than_one_execs_share(daemon_socket: str, at_rest: dict[str, int]) -> None:
    if not call(daemon_socket, "GET", "/v1/health")[1]["cgroups"].startswith("v"):
        pytest.skip("no control groups on this machine")
    spin = """
import os
for _ in range(55):
    if os.fork() == 0:
        os.setsid()
        while True: pass
while True: pass
"""
    spinner = threading.Thread(target=code, args=(daemon_socket, spin), kwargs={"timeout_seconds": 11})
    spinner.start()
    time.sleep(1)
    text = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\nprint('done')"
    answer = code(daemon_socket, text, timeout_seconds=10)
    spinner.join()
    assert answer["stdout"] == "done\n"


def test_shell_fork_bomb(beside: str) -> None:
    assert run(beside, command="b() { b | b & }; b; sleep 100", timeout_seconds=1)["exit_code"] in (-1, 1, 2)


def test_memory_bomb(beside: str) -> None:
    answer = code(beside, "x = []\nwhile True: x.append(bytearray(16 << 20))")
    assert answer["exit_code"] in (137, 1)
    assert answer["exit_code"] == 137 or "MemoryError" in answer["stdout"]


def test_memory_bomb_in_a_child_leaves_its_parent(beside: str) -> None:
    text = """
import os
pid = os.fork()
if pid == 0:
    open("/proc/self/oom_score_adj", "w").write("1000")
    x = []
    while True: x.append(bytearray(16 << 20))
print("parent sees", os.waitpid(pid, 0)[1] != 0)
"""
    answer = code(beside, text)
    assert (answer["stdout"], answer["exit_code"]) == ("parent sees True\n", 0)


def test_memory_bomb_in_shared_memory(beside: str) -> None:
    text = """
import mmap
kept = []
while True:
    kept.append(mmap.mmap(-1, 16 << 20))
    kept[-1].write(b"x" * (16 << 20))
"""
    answer = code(beside, text)
    assert answer["exit_code"] in (137, 1)


def test_disk_fill(beside: str) -> None:
    text = """
import os
for place in ("/box", "/tmp", "/dev/shm"):
    size = 0
    try:
        with open(place + "/fill", "wb", buffering=0) as f:
            while True: size += f.write(b"x" * (1 << 20))
    except OSError as e:
        print(place, size >> 20, e.errno)
        os.unlink(place + "/fill")
"""
    answer = code(beside, text)
    assert answer["stdout"] == "/box 64 28\n/tmp 64 28\n/dev/shm 64 28\n"


def test_inode_fill(beside: str) -> None:
    text = """
import os
n = 0
try:
    while True:
        os.mkdir(f"d{n}")
        n += 1
except OSError as e:
    print(n < 20_000, e.errno)
"""
    answer = code(beside, text)
    assert answer["stdout"] == "True 28\n"


def test_descriptor_exhaustion(beside: str) -> None:
    text = """
import os
n = 0
try:
    while True:
        os.dup(0)
        n += 1
except OSError as e:
    print(n <= 1024, e.errno)
"""
    answer = code(beside, text)
    assert answer["stdout"] == "True 24\n"


def test_spin(beside: str) -> None:
    answer = code(beside, "print('before', flush=True)\nwhile True: pass", timeout_seconds=1)
    assert answer["exit_code"] == -1
    assert answer["stdout"].startswith("before\n")


def test_spin_in_c(beside: str) -> None:
    assert code(beside, "print(9 ** 9 ** 9)", timeout_seconds=1)["exit_code"] == -1


def test_signals_ignored(beside: str) -> None:
    text = """
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
time.sleep(100)
"""
    assert code(beside, text, timeout_seconds=1)["exit_code"] == -1


def test_daemon_that_holds_stdout(beside: str) -> None:
    text = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
print("done")
"""
    answer = code(beside, text)
    assert (answer["stdout"], answer["exit_code"]) == ("done\n", 0)


def test_daemon_that_holds_stdout_past_the_time_limit(beside: str) -> None:
    text = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(300)
    os._exit(0)
print("begun", flush=True)
time.sleep(300)
"""
    answer = code(beside, text, timeout_seconds=1)
    assert answer["exit_code"] == -1
    assert answer["stdout"].startswith("begun\n")


def test_kill_of_process_1(beside: str) -> None:
    answer = code(beside, TOP + "os.kill(1, signal.SIGKILL)\nos.kill(1, signal.SIGTERM)\nprint('still here')")
    assert (answer["stdout"], answer["exit_code"]) == ("still here\n", 0)


EVERY_SIGNAL = """
import os, signal, time
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
for number in signal.valid_signals():
    for _ in range(3): os.kill(1, number)
time.sleep(0.2)
print('still here')
"""


def test_every_signal_to_process_1(beside: str) -> None:
    answer = code(beside, EVERY_SIGNAL)
    assert (answer["stdout"], answer["exit_code"]) == ("True\nstill here\n", 0)
    # As many forks as were at hand when the signals came: they, too, are as they were.
    assert [code(beside, "print(1)")["stdout"] for _ in range(8)] == ["1\n"] * 8


def test_every_signal_to_the_init_of_a_session(beside: str, sandbox_session: str) -> None:
    for _ in range(2):
        answer = session_exec(beside, sandbox_session, code=EVERY_SIGNAL)
        assert (answer["stdout"], answer["exit_code"]) == ("True\nstill here\n", 0)


def test_kill_of_its_parent(beside: str) -> None:
    """Its parent is outside of its pid namespace: all that it can name is its own process group."""
    answer = code(beside, TOP + "print(os.getppid(), flush=True)\nos.kill(os.getppid(), signal.SIGKILL)")
    assert (answer["stdout"], answer["exit_code"]) == ("0\n", 137)


def test_kill_of_everything(beside: str) -> None:
    text = """
child = subprocess.Popen(["sleep", "100"])
os.kill(-1, signal.SIGKILL)
print("child", child.wait())
"""
    answer = code(beside, TOP + text)
    assert (answer["stdout"], answer["exit_code"]) == ("child -9\n", 0)


def test_limits_put_on_init(beside: str) -> None:
    """The candidate may hurt its own init; then its exec is what died."""
    text = """
import resource
for limit in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_AS):
    resource.prlimit(1, limit, (0, 0))
print("done")
"""
    answer = code(beside, text)
    assert answer["exit_code"] in (0, 1, 137)


def test_host_files_are_not_there(beside: str) -> None:
    text = """
import os
for path in (
    "/etc/shadow", "/root/.bashrc", "/home", "/var", "/sys", "/run", "/boot", "/proc/1/root", %r, %r,
):
    print(path, os.path.exists(path))
print(sorted(os.listdir("/etc")))
print([p for p in os.listdir("/proc") if p.isdigit()])
print(sorted(os.environ))
"""
    own = os.path.abspath(__file__)
    said = code(beside, text % (own, os.path.dirname(own)))["stdout"].splitlines()
    assert [line.split()[1] for line in said[:10]] == ["False"] * 10
    known = {"alternatives", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "passwd"}
    assert set(literal_eval(said[10])) <= known
    assert said[11] == "['1', '2']"
    assert set(literal_eval(said[12])) == {*environment(sys.executable), "PWD"}


def test_nothing_passes_from_fork_to_fork(beside: str) -> None:
    leave = "open('/tmp/x', 'w').write('x'); open('/box/x', 'w').write('x'); open('/dev/shm/x', 'w').write('x')"
    look = "import os\nprint(os.listdir('/tmp'), os.listdir('/box'), os.listdir('/dev/shm'))"
    # An interpreter that lies below /tmp is bound there: its folder is all that a fork may find.
    untouched = code(beside, look)["stdout"]
    assert code(beside, leave)["exit_code"] == 0
    assert code(beside, look)["stdout"] == untouched
    assert "'x'" not in untouched


def test_network(beside: str) -> None:
    text = """
import socket
tries = (
    (socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET, ("127.0.0.1", 22)), (socket.AF_INET6, ("2001:db8::1", 80)),
)
for family, place in tries:
    with socket.socket(family) as s:
        s.settimeout(2)
        try: s.connect(place); print("connected")
        except OSError as e: print(type(e).__name__, e.errno)
print(open("/proc/net/dev").read().count(":"))
"""
    said = code(beside, text)["stdout"].splitlines()
    assert said == ["OSError 101", "ConnectionRefusedError 111", "OSError 101", "1"]


def test_daemon_socket_is_out_of_reach(beside: str) -> None:
    answer = code(beside, CONNECT % beside)
    assert answer["stdout"] == "2\n"


def test_abstract_sockets_are_the_forks_own(beside: str) -> None:
    listen = "import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0meet')\ns.listen()\ntime.sleep(2)"
    listener = threading.Thread(target=lambda: code(beside, listen))
    listener.start()
    connect = "import time\ntime.sleep(0.5)\n" + CONNECT % "\0meet"
    assert code(beside, connect)["stdout"] == "111\n"
    listener.join(30)


def test_hundred_megabytes_of_stdout(beside: str) -> None:
    answer = code(beside, "import os\nfor _ in range(100): os.write(1, b'x' * (1 << 20))\nprint('end')")
    assert answer["exit_code"] == 0
    assert len(answer["stdout"]) == 16 << 20
    assert answer["truncated"] is True


def test_endless_stdout(beside: str) -> None:
    answer = run(beside, command="yes", timeout_seconds=1)
    assert answer["exit_code"] == -1
    assert answer["truncated"] is True
    assert answer["stdout"].endswith("was killed\n")


def test_bytes_that_are_no_text(beside: str) -> None:
    answer = code(beside, "import os\nos.write(1, b'a\\x00b\\xffc\\xc3')\nos.write(2, b'\\xa4!')")
    assert answer["stdout"] == "a\x00b\ufffdcä!"
    assert answer["exit_code"] == 0


def test_deep_directory(beside: str) -> None:
    text = "import os\nfor n in range(10_000):\n    os.mkdir('d'); os.chdir('d')\nprint(n)"
    assert code(beside, text)["stdout"] == "9999\n"


def test_deep_recursion_and_a_crash(beside: str) -> None:
    crash = code(beside, "import ctypes\nctypes.string_at(0)")
    assert crash["exit_code"] == 139
    deep = code(beside, "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()")
    assert deep["exit_code"] in (1, 137, 139)


def test_answers_of_the_attacks_of_the_field(beside: str) -> None:
    """A candidate that closes, floods or replaces what the exec stands on harms itself only."""
    for text in (
        "import os\nfor fd in range(256):\n    try: os.close(fd)\n    except OSError: pass",
        "import sys\nsys.stdout = sys.stderr = None",
        "import os\nos._exit(0)",
        "import sys\nsys.excepthook = None\n1/0",
        "import atexit, os\natexit.register(os._exit, 7)",
        "import threading\nthreading._shutdown = None",
        "import signal, os\nos.kill(os.getpid(), signal.SIGSTOP)",
    ):
        assert code(beside, text, timeout_seconds=2)["exit_code"] in (0, 1, 7, 120, -1)
