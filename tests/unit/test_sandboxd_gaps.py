"""What a warm interpreter does before its first fork: it closes the gaps in its memory, and rehearses."""

from __future__ import annotations

import json
from pathlib import Path

from collimate_rl import sandboxd
from tests.fixtures.scripts import output_of

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from inside.gaps import close_gaps

SIZES = (208, 256, 400, 480)


def make(size, count):
    return [bytes(size - sys.getsizeof(b"")) for _ in range(count)]


def rows(size):
    places = list(map(id, make(size, 40)))
    # All but a few, which lie where something was freed since, or where a pool ends.
    return sum(b - a == size for a, b in zip(places, places[1:])) >= 25


plenty = {size: make(size, 4000) for size in SIZES}
for size in SIZES:
    del plenty[size][::2]
before = [rows(size) for size in SIZES]
close_gaps()
print(before, [rows(size) for size in SIZES])
"""


def test_what_is_made_next_lies_side_by_side(tmp_path: Path) -> None:
    folder = str(Path(sandboxd.__file__).parent)
    assert output_of(SCRIPT, folder, cwd=tmp_path).strip() == f"{[False] * 4} {[True] * 4}"


REHEARSED = """
import json, os, sys
from collimate_rl.guest import rehearsal

known, main = set(sys.modules), sys.modules["__main__"]
rehearsal.rehearse()
assert sys.modules["__main__"] is main
added = set(sys.modules) - known
ready = [rehearsal.streams[name] for name in rehearsal.NAMES]
rehearsal.take_streams()
taken = [sys.stdin, sys.stdout, sys.stderr]
assert taken == ready == [sys.__stdin__, sys.__stdout__, sys.__stderr__]
told = [[one.name, one.mode, one.fileno(), one.encoding, one.errors, one.line_buffering] for one in taken]
print(json.dumps([sorted(added), os.listdir(), told]))
sys.stdout.flush()
"""


def test_a_rehearsal_leaves_nothing_but_streams(tmp_path: Path) -> None:
    added, left, found = json.loads(output_of(REHEARSED, cwd=tmp_path))
    streams = [["<stdin>", "r"], ["<stdout>", "w"], ["<stderr>", "w"]]
    assert found == [[name, mode, fd, "utf-8", "surrogateescape", False] for fd, (name, mode) in enumerate(streams)]
    assert (added, left) == ([], [])
