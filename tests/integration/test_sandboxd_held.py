"""One-shot jobs of calls, held outside of their sandbox: what candidates can do to that, and what its own failures are.

Whatever a candidate does to the channel that it has is its own end and nobody else's. Whatever a holder does is the
infrastructure's failure and no candidate's.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.grading.limits import STARVED
from tests.fixtures.held_jobs import Answered, exec_of, holders, inside, job_of, run_held, run_in_session
from tests.fixtures.hostile_daemon import daemon_of_its_own
from tests.fixtures.resources import at_rest, first_rest
from tests.fixtures.sandbox_daemon import RunningDaemon
from tests.fixtures.sandboxd_wire import UnixConnection, call, eventually, own_groups

SQUARE = "def solve(x): return x * x\n"
SEED = "5eed" * 16


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with daemon_of_its_own("--max-inflight", "16") as running:
        assert run_held(running.socket_path, job_of(SQUARE, [3])).values == [9]
        yield running


@pytest.fixture
def path(daemon: RunningDaemon) -> str:
    return daemon.socket_path


SCAN = r"""
import os, re, sys

def memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, rights = line.split()[:2]
            if rights[0] == "r":
                start, end = (int(number, 16) for number in span.split("-"))
                for at in range(start, end, 1 << 22):
                    try:
                        mem.seek(at)
                        yield mem.read(min(end - at, (1 << 22) + 64))
                    except (OSError, ValueError, OverflowError):
                        break

def texts():
    for name in ("environ", "cmdline", "maps", "mountinfo"):
        with open("/proc/self/" + name, "rb") as file:
            yield file.read()
    for root in ("/box", "/tmp", "/dev/shm"):
        for folder, _, names in os.walk(root):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    yield name.encode() + file.read()

def has(text, halves):
    # They are never side by side in here.
    first, second = (half.encode() for half in halves)
    return any(text[found.end() : found.end() + len(second)] == second for found in re.finditer(first, text))

kept = []

def solve(what):
    if isinstance(what, str):
        kept.append(what)
        return "seen"
    found = [sum(has(text, halves) for pid in os.listdir("/proc") if pid == str(os.getpid()) for text in memory(pid))
             + sum(has(text, halves) for text in texts()) for halves in what]
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    opened = [fd for fd in range(1024) if os.path.exists(f"/proc/self/fd/{fd}")]
    return found, others, opened
"""


def test_what_comes_later_is_nowhere_in_the_candidates_process(path: str) -> None:
    mark, later = "5ca1ab1e" * 4, "c0ffee" * 6
    halves = [[text[: len(text) // 2], text[len(text) // 2 :]] for text in (mark, later)]
    ran = run_held(path, job_of(SCAN, [halves, later, halves], mark=mark))
    before, seen, after = ran.values
    assert before == ([0, 0], ["1"], [0, 1, 2, 3])
    assert seen == "seen"
    # And the scan finds what is there.
    assert after[0][0] == 0
    assert after[0][1] > 0


def test_no_candidate_takes_a_name_for_its_channel_that_others_would_find_taken(path: str) -> None:
    text = """
import errno, socket
def solve(name):
    channel = socket.socket(fileno=3)
    try:
        channel.bind(name)
    except OSError as exc:
        return errno.errorcode[exc.errno]
    finally:
        channel.detach()
"""
    assert run_held(path, job_of(text, ["\0met"])).values == ["EINVAL"]


CHANNEL = "import os, socket, sys, threading, time\n"
FLOOD = "b = b'x' * 65536\nfor _ in range(4):\n    if os.fork() == 0:\n        while 1: os.write({fd}, b)\n"
HOSTILE: dict[str, tuple[str, str]] = {
    "closes its channel": ("def solve(x): os.close(3); return x", "vd"),
    "closes it while loading": ("os.close(3)\ndef solve(x): return x", "d"),
    "writes garbage": ("def solve(x): os.write(3, b'\\xff\\0 v 1\\n'); return x", "vb"),
    "writes what is no frame of this call": ("def solve(x): os.write(3, b'1 v {\"v\":1}\\n'); return x", "vb"),
    "answers ahead at once": ('os.write(3, b\'-1 v null\\n0 v {"v":1}\\n1 v {"v":2}\\n\')\ndef solve(x): pass', "b"),
    "answers its calls itself": (
        "def solve(x):\n    for n in range(4):\n"
        "        os.write(3, b'%d v {\"v\":1}\\n' % n)\n        os.read(3, 9999)\n",
        "vvvv",
    ),
    "writes a line without an end": (
        "def solve(x):\n    os.write(3, b'x' * 900000)\n    while 1: os.write(3, b'x' * 60000)",
        "vl",
    ),
    "sends a value above the limit": ("def solve(x): return 'x' * (1 << 20)", "vlll"),
    "leaves writers on its channel": (f"def solve(x):\n    exec({FLOOD.format(fd=3)!r})\n    os._exit(0)", "vd|vl|vb"),
    "leaves writers on its output": (f"def solve(x):\n    exec({FLOOD.format(fd=1)!r})\n    os._exit(0)", "vd"),
    "leaves somebody who answers": (
        "def solve(x):\n    if os.fork() == 0:\n        os.write(3, b'0 v {\"v\":1}\\n')\n"
        "        time.sleep(1e6)\n    os._exit(0)",
        "vd|vvd",
    ),
    "passes descriptors": (
        "r, w = os.pipe()\ns = socket.socket(fileno=os.dup(3))\ndef solve(x):\n    try:\n"
        "        for _ in range(2000): socket.send_fds(s, [b'x'], [r] * 200)\n    except OSError: pass\n"
        "    os.write(3, b'\\n'); return x",
        "vb",
    ),
    "stops itself": ("def solve(x): os.kill(os.getpid(), 19)", "vt"),
    "never answers": ("def solve(x): time.sleep(1e6)", "vt"),
    "shuts its channel": ("def solve(x): socket.socket(fileno=3).shutdown(2); time.sleep(1e6)", "vt"),
    "kills everybody else": ("def solve(x):\n    try: os.kill(-1, 9)\n    except OSError: pass\n    return x", "vvvv"),
    "signals process 1": (
        "def solve(x):\n    for n in range(1, 65):\n        try: os.kill(1, n)\n        except OSError: pass\n"
        "    return x",
        "vvvv",
    ),
    "kills itself": ("def solve(x): os.kill(0, 9)", "vd"),
    "takes all memory": ("def solve(x):\n    kept = []\n    while 1: kept.append(bytearray(1 << 24))", "vm"),
    "takes all memory while loading": ("kept = []\nwhile 1: kept.append(bytearray(1 << 24))", "m"),
    "becomes another program": ("def solve(x): os.execv('/bin/sh', ['sh', '-c', 'exit 5'])", "vd"),
    "takes all processes": (
        "def solve(x):\n    try:\n        while os.fork(): pass\n        time.sleep(1e6)\n    except OSError: return x",
        "vvvv",
    ),
    "leaves an orphan in a session of its own": (
        "def solve(x):\n    if os.fork() == 0:\n        if os.fork() == 0:\n            os.setsid()\n"
        "            os.closerange(0, 9)\n            time.sleep(1e6)\n        os._exit(0)\n    return x",
        "vvvv",
    ),
    "recurses for ever": ("def solve(x): return solve(x)", "vxxx"),
    "exits while loading": ("os._exit(0)", "d"),
    "exits in a call": ("def solve(x): os._exit(3)", "vd"),
}
"""What they do, and what becomes of the load and of three calls, or of one of several things by who is faster."""


def test_what_a_candidate_does_to_its_channel_is_its_own_end(daemon: RunningDaemon, path: str) -> None:
    held = holders(daemon.pid)

    def run(name: str) -> Answered:
        # Who is to run out of time does so soon, and nobody else.
        case_s = 3.0 if HOSTILE[name][1].endswith("t") else 30.0
        job = job_of(CHANNEL + HOSTILE[name][0] + "\n", [1, 2, 3], timeout_seconds=40, case_s=case_s)
        return run_held(path, job, timeout_seconds=40)

    with ThreadPoolExecutor(8) as pool:
        ran = dict(zip(HOSTILE, pool.map(run, HOSTILE), strict=True))
    assert {name: one.answer for name, one in ran.items() if one.status != 200} == {}
    kinds = {name: one.kinds for name, one in ran.items()}
    assert {name: kinds[name] for name in HOSTILE if kinds[name] not in HOSTILE[name][1].split("|")} == {}
    # What it sends is a value that it could as well have returned.
    assert ran["answers its calls itself"].values == [1, 1, 1]
    assert holders(daemon.pid) == held


def test_flooders_take_no_time_from_others(path: str) -> None:
    """Their own time limits strike; those of the honest ones, which are shorter, don't."""
    floods = [
        "def solve(x):\n    while 1: os.write(1, b'x' * 65536)\n",
        "def solve(x):\n    while 1: os.write(1, b'x')\n",
        "def solve(x):\n    os.write(3, b'x' * 900000)\n    while 1: os.write(3, b'x')\n",
    ]
    # The last of them is over when so much was written, or its time is.
    with ThreadPoolExecutor(9) as pool:
        flooding = [pool.submit(run_held, path, job_of(CHANNEL + code, [1], case_s=3.0)) for code in floods * 3]
        honest = [run_held(path, job_of(SQUARE, range(10), case_s=2.5)) for _ in range(5)]
    assert [one.values for one in honest] == [[n * n for n in range(10)]] * 5
    assert {one.result().kinds for one in flooding} <= {"vt", "vl"}


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in job_of(SQUARE, [1]).items() if key != name}


MALFORMED: dict[str, Any] = {
    "no JSON object": [1],
    "nested without end": {"sole": True, "id": None, "ops": None},
    "no ops": _without("ops"),
    "no mark": _without("mark"),
    "no program": _without("program"),
    "no time": job_of(SQUARE, [1], total_s=-1),
    "time that is no number": job_of(SQUARE, [1], total_s=float("nan")),
    "time without end": job_of(SQUARE, [1], total_s=1e308),
    "a huge number": job_of(SQUARE, [1], value_bytes=10**400),
    "ops that are none": job_of(SQUARE, [1], ops=[{"f": "solve", "a": ["t", 1]}]),
    "an op without arguments": job_of(SQUARE, [1], ops=[{"f": ["n", "solve"]}]),
}


def test_a_malformed_job_is_its_senders_fault(daemon: RunningDaemon, path: str) -> None:
    held = holders(daemon.pid)
    answered = {}
    for name, job in MALFORMED.items():
        body = {"template_id": "py", **exec_of(job)}
        if name.startswith("nested"):
            body["files"][0]["content"] = "[" * 60_000
        status, answer = call(path, "POST", "/v1/exec", body)
        answered[name] = (status, answer.get("error_code"))
    assert answered == dict.fromkeys(MALFORMED, (400, "bad_request"))
    large = exec_of(job_of(SQUARE + "#" * (130 << 10), [1]))
    assert call(path, "POST", "/v1/exec", {"template_id": "py", **large})[0] == 413
    assert run_held(path, job_of(SQUARE, [3])).values == [9]
    assert holders(daemon.pid) == held


def test_the_time_limits(path: str) -> None:
    sleeper = "import time\ndef solve(x):\n    time.sleep(x)\n    return x\n"
    with ThreadPoolExecutor(3) as pool:
        struck = pool.submit(run_held, path, job_of(sleeper, [60]), timeout_seconds=1)
        total = pool.submit(run_held, path, job_of(sleeper, [0, 60, 0], total_s=3.0))
        case = pool.submit(run_held, path, job_of(sleeper, [0, 60, 0], case_s=2.0))
    # The wire's limit is below the job's own: then there is no report.
    assert (struck.result().status, struck.result().answer["exit_code"], struck.result().report) == (200, -1, None)
    assert (total.result().kinds, case.result().kinds) == ("vvt", "vvt")


STATE = r"""
import asyncio, atexit, faulthandler, gc, inspect, multiprocessing, os, pickle, random, resource, signal, subprocess
import sys, threading

drawn = [random.random() for _ in range(3)]

class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x

def ask():
    try:
        return input()
    except EOFError:
        return "nothing to read"

def child(queue):
    queue.put(os.getpid())

async def later():
    await asyncio.sleep(0)
    return 7

def started(context=multiprocessing.get_context("fork")):
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    same = queue.get() == process.pid
    process.join()
    return same, process.exitcode

def threaded():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(threading.current_thread() is thread))
    thread.start()
    thread.join()
    return seen, threading.active_count(), threading.current_thread() is threading.main_thread()

KEYS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "SigCgt")

def solve(x):
    handlers = {int(number): signal.getsignal(number) for number in signal.valid_signals()}
    main = sys.modules["__main__"]
    status = [line.split() for line in open("/proc/self/status")]
    return {
        "draws": drawn + [random.random(), random.randrange(10**9)],
        "argv": sys.argv, "input": ask(), "stdin": [sys.stdin.read(), os.path.realpath("/proc/self/fd/0")],
        "streams": [(s.encoding, s.errors, s.line_buffering, s.isatty(), s.fileno())
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        "recursion": sys.getrecursionlimit(), "flags": str(sys.flags), "path": sys.path, "modules": sorted(sys.modules),
        "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
        "cwd": os.getcwd(), "files": [sorted(os.listdir(p)) for p in (".", "/tmp", "/dev/shm")],
        "environment": dict(os.environ), "umask": os.umask(0o22), "ids": [os.getuid(), os.getgid(), os.getgroups()],
        "handlers": {n: getattr(handler, "__name__", str(handler)) for n, handler in handlers.items()},
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))), "wakes": signal.set_wakeup_fd(-1),
        "main": [__name__, __file__, main.__dict__ is globals(), sys.modules["solution"] is main],
        "threads": threaded(), "process": started(), "asyncio": asyncio.run(later()),
        "subprocess": subprocess.run(["sh", "-c", "echo $0 $PWD; ulimit -a"], capture_output=True, text=True).stdout,
        "at exit": atexit._ncallbacks(), "source": inspect.getsource(ask),
        "pickled": pickle.loads(pickle.dumps(Point(x))) == Point(x), "collected": [gc.isenabled(), gc.get_threshold()],
        "leads": [os.getsid(0) == os.getpid() == os.getpgid(0), os.getppid() != os.getpid()],
        "oom": open("/proc/self/oom_score_adj").read(), "status": [line for line in status if line[0][:-1] in KEYS],
        "mounts": [line.split()[4] for line in open("/proc/self/mountinfo")], "host": os.uname().nodename,
        "hooks": [sys.excepthook is sys.__excepthook__, faulthandler.is_enabled(), len(sys.meta_path)],
    }
"""


def test_honest_code_finds_what_it_finds_in_a_session(path: str) -> None:
    job = job_of(STATE, [3])
    outside = run_held(path, job, seed=SEED)
    session = call(path, "POST", "/v1/sessions", {"template_id": "py"})[1]["session_id"]
    try:
        beside = run_in_session(path, session, job, seed=SEED)
    finally:
        call(path, "DELETE", f"/v1/sessions/{session}")
    assert outside.kinds == beside.kinds == "vv", (outside.answer, beside.answer)
    assert outside.values == beside.values
    assert outside.values[0]["process"] == (True, 0)


NAP = "import time\ndef solve(x): time.sleep(0.3)\n"


def test_callers_that_hang_up_and_a_crowd_leave_nothing(daemon: RunningDaemon, path: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: run_held(path, job_of(SQUARE, [1])), range(16)))
    base = first_rest(daemon.pid)
    crowd = [job_of(SQUARE, range(5)) for _ in range(64)]
    for _ in range(8):
        connection = UnixConnection(path)
        connection.request("POST", "/v1/exec", body=json.dumps({"template_id": "py", **exec_of(job_of(NAP, [1]))}))
        connection.close()
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda job: run_held(path, job), crowd))
    assert [one.values for one in answers] == [[n * n for n in range(5)]] * 64
    at_rest(daemon.pid, base)


SLEEP = "import time\nopen('/proc/self/comm', 'w').write('begun')\ndef solve(x):\n    time.sleep(60)\n"


def _begun(daemon: RunningDaemon) -> int:
    found = 0
    for pid in inside(daemon.pid, 2):
        try:
            found += Path(f"/proc/{pid}/comm").read_text() == "begun\n"
        except OSError:
            continue  # it went while being looked at
    return found


def _while_they_run(
    daemon: RunningDaemon, act: Callable[[], object], count: int = 4, *, timeout_seconds: int = 25
) -> list[Answered]:
    """The answers of execs during which something is done."""
    answers: list[Answered] = []

    def run() -> None:
        job = job_of(SLEEP, [1], timeout_seconds=timeout_seconds)
        answers.append(run_held(daemon.socket_path, job, timeout_seconds=timeout_seconds))

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    eventually(lambda: _begun(daemon) == count, "their candidates are there")
    act()
    for thread in threads:
        thread.join()
    return answers


def _gone(answers: list[Answered]) -> set[tuple[int, Any]]:
    return {(one.status, one.error_code) for one in answers}


LOST = {(410, "session_gone"), (503, "session_bringup_failed")}


def test_dead_holders_are_replaced_and_what_they_held_is_no_verdict(daemon: RunningDaemon, path: str) -> None:
    held = holders(daemon.pid)

    def kill() -> None:
        for pid in held:
            os.kill(pid, signal.SIGKILL)

    assert _gone(_while_they_run(daemon, kill)) <= LOST
    eventually(lambda: len(holders(daemon.pid) - held) == len(held), "others take their place", timeout_s=60)
    assert run_held(path, job_of(SQUARE, [3])).values == [9]


def test_a_holder_that_stands_still_is_waited_for_and_its_time_told(daemon: RunningDaemon) -> None:
    def stop() -> None:
        held = holders(daemon.pid)
        for pid in held:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3.2)  # beyond the limit
        for pid in held:
            os.kill(pid, signal.SIGCONT)

    answers = _while_they_run(daemon, stop, timeout_seconds=3)
    assert [one.kinds for one in answers] == ["vt"] * 4, [one.answer for one in answers]
    assert [each.flag for one in answers if one.report for each in one.report.late] == [STARVED] * 4


TAKES = "def solve(x):\n    kept = bytearray(x << 20)\n    kept[::4096] = bytes(x << 8)\n    return len(kept)\n"


def test_who_is_killed_for_memory_that_its_own_limit_allows_is_no_verdict(daemon: RunningDaemon, path: str) -> None:
    names = ("memory.limit_in_bytes", "memory.max")
    limits = [Path(group, name) for group in own_groups(daemon.pid) for name in names if Path(group, name).exists()]
    for limit in limits:
        before = limit.read_text()
        limit.write_text(str(150 << 20))
        try:
            above = run_held(path, job_of(TAKES, [300]))
        finally:
            limit.write_text(before if before.strip() == "max" else "-1")
        assert (above.status, above.error_code) == (503, "session_bringup_failed")
    assert run_held(path, job_of(TAKES, [300])).values == [300 << 20]
    # Its own limit is its own.
    assert not limits or run_held(path, job_of(TAKES, [1000])).kinds == "vm"


def test_a_fork_that_is_ended_from_outside_is_no_verdict(daemon: RunningDaemon, path: str) -> None:
    def kill() -> None:
        for pid in inside(daemon.pid, 1):
            os.kill(pid, signal.SIGKILL)

    assert _gone(_while_they_run(daemon, kill)) <= LOST
    # Those that stood by for later execs went, too.
    eventually(lambda: run_held(path, job_of(SQUARE, [3])).status == 200, "there are others")
