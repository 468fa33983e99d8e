"""Has Python take its memory in one piece, before anything else lies between.

Python takes memory for its objects in arenas of a megabyte or less, wherever there is room; what is loaded meanwhile
comes to lie between them. Large pages want whole, aligned pieces. See `largepages`: this is a module of its own since
that one's imports would lie between already.
"""

from __future__ import annotations

import sys

_BYTES = 6 << 20
"""What a warm interpreter with no more than what every template gets comes to need beyond what Python starts with."""
_BLOCK = 512
"""The largest that comes from an arena."""
_APART = 1 << 18
"""No arena is smaller, in any version."""

_kept: list[bytes] = []
"""One block per arena, so that none is given back."""


def claim_arenas() -> None:
    """Take them all at once; what is made afterwards goes into them."""
    size = _BLOCK - sys.getsizeof(b"")
    made = [bytes(size) for _ in range(_BYTES // _BLOCK)]
    last = -_APART
    for block in made:
        if abs(id(block) - last) >= _APART:
            _kept.append(block)
            last = id(block)
