"""How long processes of this sandbox ran, and how long they waited for a processor that others had."""

from __future__ import annotations

import os
from typing import List


def waits(path: str = "/proc") -> List[int]:
    """Nanoseconds on a processor and in the queue for one, of all tasks below `path` but process 1; [-1, -1] where the
    kernel doesn't tell. What has ended by now is not in it."""
    found = [-1, -1]
    try:
        for pid in [pid for pid in os.listdir(path) if pid.isdigit() and pid != "1"]:
            try:
                for task in os.listdir("%s/%s/task" % (path, pid)):
                    with open("%s/%s/task/%s/schedstat" % (path, pid, task)) as file:
                        run, wait = file.read().split()[:2]
                    found = [max(found[0], 0) + int(run), max(found[1], 0) + int(wait)]
            except (OSError, ValueError):
                pass  # gone, or a kernel that doesn't count
    except OSError:
        pass  # no /proc
    return found
