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
from tests.fixtures.sandboxd_wire import call, code, control_groups, eventually, footprint, session_exec

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
