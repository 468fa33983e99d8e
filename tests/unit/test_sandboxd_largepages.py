"""The warm interpreter's memory in one piece, and in large pages where the kernel has some."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collimate_rl import sandboxd
from tests.fixtures.scripts import output_of

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from inside.arenas import claim_arenas

claim_arenas()

import ctypes, json, mmap, re
from inside import largepages, syscalls

LARGE = 2 << 20


def large():
    with open("/proc/self/smaps") as lines:
        return sum(int(kib) for kib in re.findall(r"AnonHugePages: +([0-9]+) kB", lines.read()))


def offered():
    piece = mmap.mmap(-1, 2 * LARGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    piece.write(b"x" * 2 * LARGE)
    place = ctypes.addressof(ctypes.c_char.from_buffer(piece))
    return syscalls.make_large(-(-place // LARGE) * LARGE, LARGE)


def piece_of(thing):
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if begin <= id(thing) < end:
                return begin


made = [b"%0400d" % number for number in range(5000)]
import _decimal
made += [b"%0400d" % number for number in range(5000, 10000)]
pieces = [piece_of(each) for each in made[::100]]
together = max(map(pieces.count, pieces))
offers = offered() if sys.argv[2] == "kernel" else False
if sys.argv[2] == "refuses":
    syscalls._libc.madvise = lambda *_: -1
if sys.argv[2] == "knows nothing":
    syscalls._libc.mincore = lambda *_: -1
if sys.argv[2] == "hides":
    largepages.open = lambda *_: open("/proc/self/none")
before = large()
largepages.use_large_pages()
same = made == [b"%0400d" % number for number in range(10000)]
print(json.dumps({"together": together, "offers": offers, "gained": large() - before, "same": same}))
"""


def ran(how: str, cwd: Path) -> dict[str, int]:
    told: dict[str, int] = json.loads(output_of(SCRIPT, str(Path(sandboxd.__file__).parent), how, cwd=cwd))
    return told


def test_what_is_in_use_lies_in_one_piece_and_in_large_pages_where_there_are_some(tmp_path: Path) -> None:
    told = ran("kernel", tmp_path)
    assert told["same"]
    # Some may lie where the interpreter had room before.
    assert told["together"] >= 80
    assert (told["gained"] > 0) == told["offers"]


@pytest.mark.parametrize("how", ["refuses", "knows nothing", "hides"])
def test_a_kernel_without_them_changes_nothing(tmp_path: Path, how: str) -> None:
    told = ran(how, tmp_path)
    assert (told["same"], told["gained"]) == (True, 0)
