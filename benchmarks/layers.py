"""What each layer of isolation costs an exec, by leaving it out. The product has no switch for that: here alone the
daemon's parts are replaced while one starts, and nothing but `pass` runs in what comes of it."""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.cpu import cpu_seconds
from benchmarks.measure import Contender, median, percentile, rates, ratio
from collimate_rl.sandboxd import cgroups, namespaces, seccomp
from collimate_rl.sandboxd.config import Limits, Template
from collimate_rl.sandboxd.namespaces import NamespaceBackend
from collimate_rl.sandboxd.wire import Exec
from tests.fixtures.sandboxd_wire import children

ALL = "everything"
_ALLOW = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
"""A filter of one instruction: what is left of the layer is the call that installs it."""
_NO_NETWORK = "Networks.enter = lambda self: os.dup(self._own)\n"
_NO_MOUNTS = "FORK_FLAGS &= ~syscalls.CLONE_NEWNS\nLayout.lay_out = lambda self: None\n"
_NO_NAMES = "FORK_FLAGS &= ~(syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)\n"
_NONE_BUT_PIDS = "FORK_FLAGS = 0\nLayout.lay_out = lambda self: None\n"
_NO_PIDS = {"syscalls.py": "enter = setns\ndef setns(fd, flags): flags == CLONE_NEWPID or enter(fd, flags)\n"}
_INSIDE: dict[str, dict[str, str]] = {
    "network namespace": {"networks.py": _NO_NETWORK},
    "mount namespace, /proc and tmpfs": {"init.py": _NO_MOUNTS},
    "IPC and UTS namespaces": {"init.py": _NO_NAMES},
    "pid namespace": _NO_PIDS,
    "all namespaces of the fork": {"init.py": _NONE_BUT_PIDS, "networks.py": _NO_NETWORK, **_NO_PIDS},
}
"""What is added to the ends of the files that run inside the jail."""
_SECCOMP, _CGROUPS, _EVERY = "seccomp filters", "control groups", "all of these"
CHOICES = (_SECCOMP, _CGROUPS, *_INSIDE, _EVERY)
_WARM_UP, _WIDTH, _CROWD = 10, 4, 48
_PASS = Exec(code="pass", timeout_s=30, seed="0" * 64)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Of execs one after the other: each one's milliseconds, and the mean of their CPU milliseconds, the daemon's part
    included. `per_second` is with several at once, by round: there the work of the kernel's own threads counts, too,
    which take namespaces down afterwards."""

    ms: list[float]
    cpu_ms: float
    per_second: list[float]


def measure(template: Template, rounds: int) -> dict[str, Taken]:
    """Execs of `pass`, without HTTP, by what is left out; all take turns in each round."""
    with ExitStack() as stack:
        backends = {}
        trees: dict[str, set[int]] = {}
        for name in (ALL, *CHOICES):
            before = children(os.getpid())
            backends[name] = _start(stack, template, name)
            trees[name] = children(os.getpid()) - before
        ms: dict[str, list[float]] = {name: [] for name in backends}
        cpu_s = dict.fromkeys(backends, 0.0)
        for number in range(-_WARM_UP, rounds):
            if number == 0:
                cpu_s = {name: -_cpu_seconds(tree) for name, tree in trees.items()}
            names = list(backends)
            for name in names if number % 2 == 0 else reversed(names):
                began, own = time.perf_counter(), time.process_time()
                outcome = backends[name].run_once(template, _PASS)
                ms[name].append((time.perf_counter() - began) * 1000)
                cpu_s[name] += time.process_time() - own
                if outcome.exit_code != 0:
                    raise RuntimeError(f"without {name}: {outcome}")
        for name, tree in trees.items():
            cpu_s[name] += _cpu_seconds(tree)
        crowds = {name: _crowd(stack, backend, template) for name, backend in backends.items()}
        per_second = rates(crowds, max(3, rounds // 50))
        return {
            name: Taken(ms=ms[name][_WARM_UP:], cpu_ms=cpu_s[name] / rounds * 1000, per_second=per_second[name])
            for name in backends
        }


def _crowd(stack: ExitStack, backend: NamespaceBackend, template: Template) -> Contender:
    pool = stack.enter_context(ThreadPoolExecutor(_WIDTH))

    def run() -> None:
        for outcome in pool.map(lambda _: backend.run_once(template, _PASS), range(_CROWD)):
            assert outcome.exit_code == 0

    return Contender(run=run, units=_CROWD)


def _cpu_seconds(tree: set[int]) -> float:
    return sum(cpu_seconds(pid) for pid in tree)


def show(taken: dict[str, Taken]) -> None:
    print(
        f"an exec of `pass`: ms (p50, p99), ms of CPU (mean; less than with everything), per second ({_WIDTH} at once)"
    )
    whole = taken[ALL]
    rate = {name: one.per_second for name, one in taken.items()}
    for name, one in taken.items():
        title = name if name == ALL else f"without {name}"
        print(
            f"  {title:<42}{median(one.ms):8.2f}{percentile(one.ms, 99):8.2f}{one.cpu_ms:8.2f}"
            f"{whole.cpu_ms - one.cpu_ms:8.2f}{median(one.per_second):8.0f}{ratio(rate, name, ALL):8.2f}"
        )


def _start(stack: ExitStack, template: Template, without: str) -> NamespaceBackend:
    backend = NamespaceBackend({"py": template}, Limits(), zygotes=1)
    with ExitStack() as patches:
        for target, name, value in _replacements(without):
            patches.enter_context(mock.patch.object(target, name, value))
        backend.start()
    stack.callback(backend.close)
    return backend


def _replacements(without: str) -> list[tuple[Any, str, Any]]:
    found: list[tuple[Any, str, Any]] = []
    if without in (_SECCOMP, _EVERY):
        found.append((seccomp, "build_filters", lambda _: seccomp.Filters(base=_ALLOW, seal=_ALLOW)))
    if without in (_CGROUPS, _EVERY):
        found.append((cgroups, "open_cgroups", lambda *_: cgroups.NoCgroups()))
    added = _INSIDE.get("all namespaces of the fork" if without == _EVERY else without)
    if added is not None:
        lean = SimpleNamespace(copytree=_copy_with(added), ignore_patterns=shutil.ignore_patterns)
        found.append((namespaces, "shutil", lean))
    return found


def _copy_with(added: dict[str, str]) -> Callable[..., None]:
    def copy(source: str, target: str, **options: Any) -> None:
        shutil.copytree(source, target, **options)
        for name, text in added.items():
            with Path(target, name).open("a") as stream:
                stream.write(f"\n\n{text}")

    return copy
