"""Runs a spec's own checker on what a candidate gave: plain values by now, and no candidate's code is in here.

The job (`collimate-job.json`, JSON): `mark`; `source`, Python that defines `check(given, got, expected)`, or else a
script that finds the three texts in the files that its arguments name (input, expected output, output) and prints a
number first, right from 1 on; `cases`, each `[given, got, expected]` as trees, `got` as the line that the candidate
sent; `cpu_s` and `wall_s` for one case; `total_s`, after which no further case is begun.

Each case runs in a forked child of its own. What leaves is a line per case: `mark`, then JSON, true or false, or
"timeout", "died" or "late", or an object `{"fault": words}`. A fault of the checker itself ends the list.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
import time
from typing import Any, Callable, Dict, NoReturn, Optional

from collimate_rl.guest.codec import decode, loads
from collimate_rl.guest.plain import BadTree, dumps

_MEMORY = 384 << 20
_TEXTS = ("input.txt", "expected.txt", "output.txt")


def conduct(job: Dict[str, Any]) -> None:
    """Judges every case of a job, and writes what each came to on standard output."""
    begun = time.monotonic()
    try:
        code = compile(job["source"], "<checker>", "exec", 0, True)
        check = None
        if _defines_check(job["source"]):
            space: Dict[str, Any] = {"__name__": "checker"}
            exec(code, space)
            check = space["check"]
    except BaseException as error:
        _say(job["mark"], {"fault": "the checker can't be loaded: %s: %.300s" % (type(error).__name__, error)})
        return
    for given, line, expected in job["cases"]:
        told: Any = "late"
        if time.monotonic() - begun < job["total_s"]:
            told = _in_child(_judged(check, code, given, line, expected), job["cpu_s"], job["wall_s"])
        _say(job["mark"], told)


def _defines_check(source: str) -> bool:
    import ast

    return any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in ast.parse(source).body)


def _judged(check: Any, code: Any, given: Any, line: str, expected: Any) -> Callable[[], Any]:
    """Judges one case. Reading the candidate's value is part of it: what that costs is the candidate's to choose, and
    so falls under the case's limits."""

    def judge() -> Any:
        try:
            got = decode(loads(line))
        except BadTree:
            return "bad"
        if check is None:
            return _script(code, decode(given), decode(expected), got)
        return bool(check(decode(given), got, decode(expected)))

    return judge


def _script(code: Any, *texts: str) -> bool:
    """Runs a checker that is a script: input, expected output and output are files, and what it prints is a number."""
    folder = "collimate-checker-%d" % os.getpid()
    os.mkdir(folder)
    os.chdir(folder)
    for name, text in zip(_TEXTS, texts):
        with open(name, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
    sys.argv = ["checker.py", *_TEXTS]
    out = sys.stdout = io.StringIO()
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as end:
        if not out.getvalue().strip():
            return not end.code
    said = out.getvalue().split()
    return bool(said) and float(said[0]) >= 1


def _in_child(make: Callable[[], Any], cpu_s: int, wall_s: float) -> Any:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _child(make, theirs, cpu_s)
    os.close(theirs)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    data = b""
    while True:
        piece = os.read(ours, 4096)
        if not piece:
            break
        data += piece
    os.close(ours)
    _, status, usage = os.wait4(pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if data.endswith(b"\n"):
        return json.loads(data)
    late = os.WIFSIGNALED(status) or usage.ru_utime + usage.ru_stime > cpu_s
    return "timeout" if late else "died"


def _child(make: Callable[[], Any], pipe: int, cpu_s: int) -> NoReturn:
    told: Any = None
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
        try:
            told = make()
        except MemoryError:
            os._exit(1)
        except BaseException as error:
            told = {"fault": "%s: %.300s" % (type(error).__name__, error)}
        os.write(pipe, (dumps(told) + "\n").encode())
    finally:
        os._exit(1)


def _say(mark: str, told: Optional[Any]) -> None:
    sys.stdout.write("\n%s %s\n" % (mark, dumps(told)))
    sys.stdout.flush()


def main() -> None:
    with open("collimate-job.json") as file:
        job = json.load(file)
    os.unlink("collimate-job.json")
    getattr(sys, "set_int_max_str_digits", int)(0)
    sys.setrecursionlimit(10_000)
    conduct(job)


if __name__ == "__main__":
    main()
