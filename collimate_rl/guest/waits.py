"""How long processes of this sandbox waited for a processor that others had."""

from __future__ import annotations

import os

from collimate_rl.guest.nursery import slurp


def queued(pid: int) -> int:
    """Nanoseconds that a process, and what it started, waited for a processor; OSError where nobody tells."""
    found = 0
    for task in os.listdir("/proc/%d/task" % pid):
        place = "/proc/%d/task/%s/" % (pid, task)
        found += int(slurp(place + "schedstat").split()[1])
        for child in slurp(place + "children").split():
            found += max(0, waited(int(child)))
    return found


def waited(pid: int) -> int:
    """`queued`; -1 where that is not known."""
    try:
        return queued(pid)
    except (OSError, ValueError, IndexError, RecursionError):
        return -1
