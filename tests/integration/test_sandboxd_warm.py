"""What a warm interpreter did before its forks, as a candidate in one of them finds it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fixtures.held_jobs import job_of, run_held
from tests.fixtures.hostile_daemon import daemon_of_its_own

LOOK = """
import gc, os, sys

def largest():
    pieces = set()
    with open("/proc/self/maps") as lines:
        for line in lines:
            place, _, _, _, inode, *name = line.split()
            if inode == "0" and not name:
                begin, end = (int(number, 16) for number in place.split("-"))
                pieces.add(range(begin, end))
    things = [id(each) for module in list(sys.modules.values()) for each in vars(module).values()]
    return max(len(piece) for piece in pieces if any(place in piece for place in things))

def solve(what):
    if what == "memory":
        return largest()
    if what == "streams":
        both = (sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__)
        return [[a.name, a.mode, a.fileno(), a.encoding, a.errors, a is b] for a, b in both]
    if what == "left":
        mine = sys.modules["solution"].__dict__ is globals()
        made = [one.__name__ for one in ValueError.__subclasses__() if one.__module__ in ("solution", "__main__")]
        return [mine, made, sorted(os.listdir("/tmp")), sorted(os.listdir()), "LD_BIND_NOW" in os.environ]
    return gc.isenabled(), sys.argv
"""

MOUNTED = sorted({Path(place).parts[2] for place in (sys.prefix, sys.base_prefix) if place.startswith("/tmp/")})
"""Of the template's interpreter, where that lies below /tmp."""


def test_a_candidate_finds_nothing_of_the_rehearsal_but_fresh_streams() -> None:
    with daemon_of_its_own() as daemon:
        for _ in range(2):
            asked = ["streams", "left", "rest", "memory"]
            streams, left, rest, largest = run_held(daemon.socket_path, job_of(LOOK, asked)).values
            names = [("<stdin>", "r"), ("<stdout>", "w"), ("<stderr>", "w")]
            assert streams == [[*name, fd, "utf-8", "surrogateescape", True] for fd, name in enumerate(names)]
            assert left == [True, [], MOUNTED, ["solution.py"], False]
            assert rest == (True, ["solution.py"])
            # Its memory is in one piece, but for what an interpreter may have had elsewhere when it began.
            assert largest >= 6 << 20
