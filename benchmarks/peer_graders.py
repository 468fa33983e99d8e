"""What people grade with when they have no sandbox service: each as short as one would write it, each on ten cases.

All of them run the candidate's text and compare results in the same interpreter, so a candidate that wants to can say
that it passed. That is part of what they don't give.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import Pool
from typing import Any

from benchmarks.work import CONCURRENCY, SPEC, candidates
from collimate_rl.sandboxd.jail import find_bwrap

TIMEOUT_S = 30
_CASES = json.dumps([{"input": test["input"], "expected": test["expected"]} for test in SPEC.tests])
_SCRIPT = """
import json, sys
job = json.load(sys.stdin)
names = {}
exec(job["code"], names)
cases = json.loads(job["cases"])
print(sum(names["solve"](*case["input"]) == case["expected"] for case in cases) / len(cases))
"""
_BWRAP = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/", "/")
_BWRAP_PLACES = ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--clearenv")


def subprocesses(count: int) -> None:
    """`subprocess.run` of an interpreter per candidate, with a timeout."""
    _each_in([sys.executable, "-I", "-c", _SCRIPT], count)


def bubblewrapped(count: int) -> None:
    """The same under bubblewrap: all namespaces, nothing writable but a tmpfs."""
    found = find_bwrap()
    _each_in([found.path, *_BWRAP, *_BWRAP_PLACES, "--", sys.executable, "-I", "-c", _SCRIPT], count)


def _each_in(argv: Sequence[str], count: int) -> None:
    def one(code: str) -> float:
        done = subprocess.run(
            argv,
            input=json.dumps({"code": code, "cases": _CASES}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return float(done.stdout or 0.0)

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        _check(list(pool.map(one, candidates(count))), argv[0])


class ExecPool:
    """A multiprocessing pool that `exec`s candidates, an alarm as the time limit: context manager."""

    def __init__(self) -> None:
        self._pool: Pool | None = None

    def __enter__(self) -> ExecPool:
        self._pool = multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)))
        return self

    def __exit__(self, *_: object) -> None:
        assert self._pool is not None
        self._pool.terminate()
        self._pool.join()

    def grade(self, count: int) -> None:
        assert self._pool is not None
        _check(self._pool.map(_exec_candidate, candidates(count), chunksize=1), "the pool")


def _exec_candidate(code: str) -> float:
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(TIMEOUT_S)
    try:
        names: dict[str, Any] = {}
        exec(code, names)
        cases = json.loads(_CASES)
        return float(sum(names["solve"](*case["input"]) == case["expected"] for case in cases) / len(cases))
    except Exception:  # noqa: BLE001 - as the usual trainer-side grader: whatever it is, it is no reward
        return 0.0
    finally:
        signal.alarm(0)


def _too_late(*_: object) -> None:
    raise TimeoutError


def _check(rewards: Sequence[float], who: str) -> None:
    if any(reward != 1.0 for reward in rewards):
        raise RuntimeError(f"a right candidate did not pass under {who}: {rewards}")


SUBPROCESS, BWRAP, POOL = "subprocess.run each", "bubblewrap each, cold interpreter", "multiprocessing pool with exec"
FORMS: dict[str, Callable[[int], None]] = {SUBPROCESS: subprocesses, BWRAP: bubblewrapped}
