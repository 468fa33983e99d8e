"""The warm interpreter's memory in large pages, as far as the kernel has some.

A fork copies an entry of the page tables for every page that the warm interpreter has written to, and takes each off
again when it ends. For what belongs to one large page the kernel does many of them at once, also after a first write
has broken up the entry: the pages behind it stay one. Nothing depends on it. Each fork has its own copy, of the usual
size, of what it writes to.
"""

from __future__ import annotations

import re
from typing import Iterator, Tuple

from . import syscalls

_LARGE = 2 << 20
"""Where large pages have another size, nothing is gained."""
_WORTH = 0.5
"""The part that must be in use: the rest is filled with zeros, and counts as memory of the warm interpreter's."""
_WRITTEN = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(|\[heap\]|\[anon.*)")
"""In /proc/PID/maps, what is private, can be written to and is no file's."""


def use_large_pages() -> None:
    """Put together what lies in whole aligned pieces, and is in use."""
    for begin, end in _written():
        for place in range(-(-begin // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE):
            if syscalls.part_in_use(place, _LARGE) >= _WORTH:
                syscalls.make_large(place, _LARGE)


def _written() -> Iterator[Tuple[int, int]]:
    try:
        with open("/proc/self/maps") as maps:
            lines = maps.read().splitlines()
    except OSError:
        # Nothing but gain hangs on it.
        return
    for line in lines:
        found = _WRITTEN.fullmatch(line)
        if found:
            yield int(found[1], 16), int(found[2], 16)
