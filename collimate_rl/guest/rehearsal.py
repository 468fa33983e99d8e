"""A candidate's steps, gone through once in the process that candidates are forked from.

Python writes to code that runs for the first time, to its caches, and to what it makes once: a fork would copy a page
for each of these, and do the work again. Nothing of a real job is in here, and a fork finds nothing that differs from
one candidate to the next.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, Dict, List

from collimate_rl.guest.candidate import SOURCE, candidate
from collimate_rl.guest.holder import packed
from collimate_rl.guest.nursery import open_streams

ROUNDS = 12  # more than the calls after which Python (3.11 and later) rewrites a function for what it has met
NAMES = ("stdin", "stdout", "stderr")

streams: Dict[str, Any] = {}  # by their names in sys, ready for whatever the descriptors will be
replaced: List[Any] = []  # those instead of which they are: to be rid of them is work, in each fork anew


def rehearse() -> None:
    """Answer a job of ours as a candidate does, and make the standard streams that candidates find.

    It writes the candidate's file into the working folder.
    """
    code = "class E(ValueError):\n    pass\ndef f(*a):\n    if len(a) > 4:\n        raise E(a[0])\n    return a\n"
    job = {"code": code, "entry": "f", "program": False, "first": 0, "prelude": "", "value_bytes": 1 << 20}
    values = [1, "a", ["f", "0x1.8p+1"], ["l", None, ["t", 1]]]
    ops = [{"f": ["n", "f"], "a": ["t", *values, *more]} for more in ([], [["m", "", "k", True]])]
    before = {name: sys.modules.get(name) for name in ("solution", "__main__")}
    for k in range(2 * ROUNDS):
        lines = [dict(job, arguments=k % 2 > 0, handles=k % 2 > 0), *ops]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # all are there, and read one by one
        with ours, theirs:
            for line in lines:
                ours.send(packed(line))
            ours.shutdown(socket.SHUT_WR)
            candidate(theirs.fileno())
    os.unlink(SOURCE)
    for name, module in before.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module
    for fd, name in enumerate(NAMES):
        mode = "w" if fd else "r"
        stream: Any = open(fd, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115  (kept)
        stream.mode, stream.buffer.raw.name = mode, "<%s>" % name
        streams[name] = streams["__%s__" % name] = stream
    replaced.extend(getattr(sys, name) for name in NAMES)


def take_streams() -> None:
    """Fresh standard streams; those that were made ready, where there are some."""
    if not streams:
        open_streams()
    vars(sys).update(streams)
