"""What each layer of isolation costs an exec, by leaving it out. The product has no switch for that: here alone the
daemon's parts are replaced while one starts, and nothing but `pass` runs in what comes of it."""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.measure import median, percentile
from collimate_rl.sandboxd import cgroups, namespaces, seccomp
from collimate_rl.sandboxd.config import Limits, Template
from collimate_rl.sandboxd.namespaces import NamespaceBackend
from collimate_rl.sandboxd.wire import Exec

ALL = "everything"
_ALLOW = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
"""A filter of one instruction: what is left of the layer is the call that installs it."""
_NO_NETWORK = "FORK_FLAGS &= ~syscalls.CLONE_NEWNET\n"
_NO_MOUNTS = "FORK_FLAGS &= ~syscalls.CLONE_NEWNS\nLayout.lay_out = lambda self: syscalls.bring_loopback_up()\n"
_NO_NAMES = "FORK_FLAGS &= ~(syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)\n"
_NONE_BUT_PIDS = "FORK_FLAGS = 0\nLayout.lay_out = lambda self: None\n"
_NO_PIDS = {"syscalls.py": "def setns(fd, flags): pass\n"}
_INSIDE: dict[str, dict[str, str]] = {
    "network namespace": {"init.py": _NO_NETWORK},
    "mount namespace, /proc and tmpfs": {"init.py": _NO_MOUNTS},
    "IPC and UTS namespaces": {"init.py": _NO_NAMES},
    "pid namespace": _NO_PIDS,
    "all namespaces of the fork": {"init.py": _NONE_BUT_PIDS, **_NO_PIDS},
}
"""What is added to the ends of the files that run inside the jail."""
_SECCOMP, _CGROUPS, _EVERY = "seccomp filters", "control groups", "all of these"
CHOICES = (_SECCOMP, _CGROUPS, *_INSIDE, _EVERY)
_PASS = Exec(code="pass", timeout_s=30, seed="0" * 64)


def measure(template: Template, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of single execs of `pass`, without HTTP, by what is left out; all take turns in each round."""
    with ExitStack() as stack:
        backends = {name: _start(stack, template, name) for name in (ALL, *CHOICES)}
        taken: dict[str, list[float]] = {name: [] for name in backends}
        for number in range(-10, rounds):
            names = list(backends)
            for name in names if number % 2 == 0 else reversed(names):
                began = time.perf_counter()
                outcome = backends[name].run_once(template, _PASS)
                if number >= 0:
                    taken[name].append((time.perf_counter() - began) * 1000)
                if outcome.exit_code != 0:
                    raise RuntimeError(f"without {name}: {outcome}")
        return taken


def show(taken: dict[str, list[float]]) -> None:
    print("milliseconds of an exec of `pass` (p50, p99), and how much less than with everything (median of the rounds)")
    for name, values in taken.items():
        less = median([whole - part for whole, part in zip(taken[ALL], values, strict=True)])
        title = name if name == ALL else f"without {name}"
        print(f"  {title:<42}{median(values):8.2f}{percentile(values, 99):8.2f}{less:8.2f}")


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
