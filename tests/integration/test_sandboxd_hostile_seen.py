"""What passes between two forks, and from the daemon and the host to a fork: nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.hostile_attacks import TOP
from tests.fixtures.hostile_daemon import daemon_of_its_own
from tests.fixtures.sandboxd_wire import call, code, descendants, eventually, session_exec

NEEDLE = "needle-" * 3 + "5c1e"


@contextmanager
def _neighbour(path: str, text: str) -> Iterator[None]:
    """A session in which `text` has begun, and goes on until the block ends."""
    status, created = call(path, "POST", "/v1/sessions", {"template_id": "py", "label": NEEDLE})
    assert status == 201
    try:
        begun = f"{TOP}{text}\nopen('/tmp/begun', 'w').close()\nif os.fork() == 0:\n    time.sleep(300)\n"
        assert session_exec(path, created["session_id"], code=begun)["exit_code"] == 0
        yield
    finally:
        call(path, "DELETE", f"/v1/sessions/{created['session_id']}")


def test_no_fork_finds_what_another_has_in_memory_in_files_or_in_arguments(daemon_socket: str) -> None:
    hold = f"""
kept = {NEEDLE!r} * 1000
for place in ("/tmp", "/box", "/dev/shm"): open(place + "/" + kept[:25], "w").write(kept)
os.environ["KEPT"] = kept[:25]
subprocess.Popen(["sh", "-c", "sleep 300", kept[:25]])
"""
    search = f"""
wanted = bytes(b ^ 1 for b in {bytes(b ^ 1 for b in NEEDLE[:25].encode())!r})
hits = []
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    for name in ("environ", "cmdline", "mem"):
        try:
            with open(f"/proc/{{pid}}/{{name}}", "rb", 0) as f:
                if name != "mem":
                    if wanted in f.read(1 << 20): hits.append((pid, name))
                    continue
                for line in open(f"/proc/{{pid}}/maps"):
                    start, end = (int(x, 16) for x in line.split()[0].split("-"))
                    try:
                        f.seek(start)
                        chunk = f.read(end - start)
                    except (OSError, OverflowError): continue
                    # Its own copies of what it looks for don't count: none is a thousand long.
                    if chunk.count(wanted) > 100: hits.append((pid, line))
                    del chunk
        except OSError: pass
for top in ("/tmp", "/box", "/dev/shm"):
    for folder, folders, names in os.walk(top):
        if any(wanted.decode() in name for name in names): hits.append(folder)
print(hits)
"""
    with _neighbour(daemon_socket, hold):
        assert code(daemon_socket, TOP + search, timeout_seconds=60)["stdout"] == "[]\n"


IPC = """
libc.shmat.restype = ctypes.c_void_p
librt = ctypes.CDLL("librt.so.1", use_errno=True)
key = 0x51AB
def look():
    return [
        libc.shmget(key, 4096, 0), libc.msgget(key, 0), libc.semget(key, 1, 0), librt.mq_open(b"/kept", 0),
        open("/proc/sysvipc/shm").read().count("\\n") - 1, os.path.exists("/dev/shm/kept"),
    ]
"""
MAKE = """
libc.shmget(key, 4096, 0o1666), libc.msgget(key, 0o1666), libc.semget(key, 1, 0o1666)
assert librt.mq_open(b"/kept", os.O_CREAT | os.O_RDWR, 0o666, None) >= 0
open("/dev/shm/kept", "w").close()
assert -1 not in look()
"""


def test_shared_memory_and_queues_are_the_forks_own_and_end_with_it(daemon_socket: str) -> None:
    nothing = "[-1, -1, -1, -1, 0, False]\n"
    with _neighbour(daemon_socket, IPC + MAKE):
        assert code(daemon_socket, TOP + IPC + "print(look())")["stdout"] == nothing
    for _ in range(8):
        assert code(daemon_socket, TOP + IPC + MAKE)["exit_code"] == 0
        assert code(daemon_socket, TOP + IPC + "print(look())")["stdout"] == nothing


def test_no_socket_reaches_from_fork_to_fork(daemon_socket: str) -> None:
    listen = """
kept = []
for family, place in (
    (socket.AF_UNIX, "\\0kept"), (socket.AF_UNIX, "/tmp/kept"), (socket.AF_INET, ("0.0.0.0", 7777)),
    (socket.AF_INET6, ("::", 7778)),
):
    kept.append(socket.socket(family))
    if family == socket.AF_INET6: kept[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    kept[-1].bind(place)
    kept[-1].listen()
"""
    reach = """
for family, place in (
    (socket.AF_UNIX, "\\0kept"), (socket.AF_UNIX, "/tmp/kept"), (socket.AF_INET, ("127.0.0.1", 7777)),
    (socket.AF_INET6, ("::1", 7778)),
):
    with socket.socket(family) as s:
        s.settimeout(5)
        print(s.connect_ex(place))
print(open("/proc/net/unix").read().count("\\n"))
"""
    with _neighbour(daemon_socket, listen):
        assert code(daemon_socket, TOP + reach)["stdout"] == "111\n2\n111\n111\n1\n"


def test_no_signal_reaches_from_fork_to_fork(daemon_socket: str) -> None:
    status, created = call(daemon_socket, "POST", "/v1/sessions", {"template_id": "py"})
    assert status == 201
    session = created["session_id"]
    pid = session_exec(daemon_socket, session, command="sleep 300 & echo $!")["stdout"].strip()
    everything = """
for number in (9, 15, 19):
    for pid in (*range(2, 5000), *range(-5000, -1)):
        if pid not in (os.getpid(), -os.getpid(), -os.getpgid(0)):
            try: os.kill(pid, number)
            except OSError: pass
for which in (0, 1, 2): libc.setpriority(which, 0, 19)
print("done")
"""
    try:
        assert code(daemon_socket, TOP + everything)["stdout"] == "done\n"
        alive = f"kill -0 {pid} && cut -d' ' -f3,19 /proc/{pid}/stat"
        assert session_exec(daemon_socket, session, command=alive)["stdout"] == "S 0\n"
    finally:
        call(daemon_socket, "DELETE", f"/v1/sessions/{session}")


def test_what_a_fork_sees_in_proc(daemon_socket: str) -> None:
    """Of processes its own, of the network its own, of mounts its own; of limits a group's name."""
    look = """
print(sorted(int(p) for p in os.listdir("/proc") if p.isdigit())[-1] < 8)
places = [line.split()[4] for line in open("/proc/self/mountinfo")]
print([place for place in places if place in ("/sys", "/run", "/home", "/var")])
print([line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]])
print(open("/proc/locks").read() == "")
print({line.strip().rsplit("/", 1)[0].split(":")[2] for line in open("/proc/self/cgroup")})
print(os.path.exists("/proc/1/root"))
"""
    said = code(daemon_socket, TOP + look)["stdout"].splitlines()
    assert said[:4] == ["True", "[]", "['lo']", "True"]
    host = [Path(line.split(":", 2)[2]) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    assert not any(folder in said[4] for path in host for folder in path.parts[1:])
    assert said[5] == "False"


def test_the_daemons_words_are_not_in_a_fork() -> None:
    """Its environment, its arguments and its working directory are not inherited by anything inside."""
    first, second = "daemon-secret-", os.urandom(6).hex()
    secret = first + second
    with daemon_of_its_own(env={"A_SECRET": secret}) as daemon:
        look = f"""
first, second = {first.encode()!r}, {second.encode()!r}
def hits(text):
    # The two halves never lie beside each other but in the daemon's own words.
    return [part[:12] for part in text.split(first)[1:]].count(second)
print(hits("|".join(os.environ.values()).encode()), os.getcwd())
print(sum(hits(open(f"/proc/self/{{name}}", "rb").read()) for name in ("environ", "cmdline")))
found = 0
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps"):
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
        try: memory.seek(start); found += hits(memory.read(end - start))
        except (OSError, OverflowError): pass
print(found)
"""
        assert code(daemon.socket_path, TOP + look)["stdout"] == "0 /box\n0\n0\n"
        # Nor in the zygotes that every fork is a copy of.
        for pid in descendants(daemon.pid):
            assert secret.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_no_descriptor_of_another_exec_is_open_however_many_run() -> None:
    """More execs at once than the warm interpreter was reckoned to have descriptors."""
    with daemon_of_its_own("--max-sessions", "1", "--max-inflight", "330") as daemon:
        path = daemon.socket_path
        waiting = [
            threading.Thread(target=code, args=(path, "import time\ntime.sleep(12)"), kwargs={"timeout_seconds": 60})
            for _ in range(290)
        ]
        for thread in waiting:
            thread.start()
        eventually(lambda: call(path, "GET", "/v1/health")[1]["running"] >= 270, "the execs at once", 60)
        look = "import os\nprint(sorted(os.listdir('/proc/self/fd')))"
        for _ in range(4):
            assert code(path, look)["stdout"] == "['0', '1', '2', '3']\n"
        for thread in waiting:
            thread.join(60)


@pytest.mark.parametrize("place", ["/usr/bin/env", "/usr/lib"])
def test_what_all_forks_see_is_nobodys_to_change(daemon_socket: str, place: str) -> None:
    text = f"""
for what in (
    lambda: os.chmod({place!r}, 0o777), lambda: os.chown({place!r}, 1000, 1000), lambda: os.utime({place!r}),
    lambda: os.setxattr({place!r}, "user.x", b"x"), lambda: os.rename({place!r}, {place!r} + "2"),
    lambda: os.unlink({place!r}), lambda: os.mkdir({place!r} + "/x"),
):
    try: what(); print("granted")
    except OSError: pass
print("done")
"""
    assert code(daemon_socket, TOP + text)["stdout"] == "done\n"
