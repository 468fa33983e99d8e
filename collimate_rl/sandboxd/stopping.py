"""Stopping every process of a sandbox for a while, seen from the host."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_ROUNDS = 20


def stop_tree(init: int) -> bool:
    """SIGSTOP to `init` and all below it; True when a round found nobody that was not stopped already.

    The init goes first: what is orphaned meanwhile stays below it.
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        found = tree(init) - stopped
        if not found:
            return True
        for pid in sorted(found, key=lambda pid: pid != init):
            _signal(pid, signal.SIGSTOP)
        stopped |= found
    return False


def continue_tree(init: int) -> None:
    """SIGCONT to all of them, the init last, so that it takes no exec before."""
    for pid in sorted(tree(init), key=lambda pid: pid == init):
        _signal(pid, signal.SIGCONT)


def tree(init: int) -> set[int]:
    """`init` and every process below it."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(encoding="latin-1")
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, todo = {init}, [init]
    while todo:
        children = parents.get(todo.pop(), [])
        todo += children
        found.update(children)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It has ended meanwhile.
        pass
