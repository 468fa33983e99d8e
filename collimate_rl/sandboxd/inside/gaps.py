"""Closing the gaps in the warm interpreter's memory, so that what is made next lies side by side.

A fork copies a page for nearly every object that it uses, since using it counts a reference. Objects go where others
were freed, between ones that no fork touches; with the gaps closed, what forks use, and what they make, shares pages.
Nothing depends on it: where memory is kept in another way than CPython's and glibc's, nothing is gained.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter, deque
from functools import partial
from itertools import repeat
from typing import Any, Callable, Deque, Iterator, List, Tuple

_POOL = 16384 if sys.version_info >= (3, 10) else 4096
_POOL_HEAD = 48
_STEP, _LARGEST = 16, 512
"""The sizes of blocks of which CPython has pools."""
_MOST_BYTES = 2 << 20
"""Per size; more gaps than that stay."""
_MOST_CHUNKS = 20000
_LARGE, _TOP = 1 << 16, 1 << 17

_fillings: List[Any] = []
"""They stay for ever; the memory was there anyway."""


def close_gaps() -> None:
    """Fill what is free in pools that are in use, and in the C library's heap."""
    for size, make in _makers():
        _fillings.append(_fill_pools(size, make))
    _fill_heap()


def _makers() -> Iterator[Tuple[int, Callable[[], object]]]:
    """Per size what makes an object of that size; none of these is kept ready for the next one to be made."""
    yield _STEP, object
    yield 2 * _STEP, partial(complex, 1.0, 1.0)
    for size in range(3 * _STEP, _LARGEST + 1, _STEP):
        yield size, partial(bytes, size - sys.getsizeof(b""))


def _fill_pools(size: int, make: Callable[[], object]) -> List[object]:
    """Make objects until they lie in a row, as they do in a pool of their own only; gives those in other pools."""
    count = (_POOL - _POOL_HEAD) // size
    made: Deque[object] = deque()
    while len(made) * size < _MOST_BYTES:
        for _ in repeat(None, 2 * count):
            made.append(make())
        places = list(map(id, made))[-count:]
        if sum(places[i + 1] - places[i] == size for i in range(count - 1)) >= count - 2:
            break
    pools = Counter(id(each) & -_POOL for each in made)
    pools[id(made[-1]) & -_POOL] = count
    return [each for each in made if pools[id(each) & -_POOL] < count - 1]


def _fill_heap() -> None:
    libc = ctypes.PyDLL(None)
    if not hasattr(libc, "malloc_trim"):
        return  # not glibc
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    libc.free.argtypes = [ctypes.c_void_p]
    end = (libc.sbrk(0) or 0) - _TOP
    size = _LARGE
    for _ in range(_MOST_CHUNKS):
        if size <= _LARGEST:
            return
        place = libc.malloc(size)
        if place is None or place >= end:
            # Beyond the last gap of that size.
            libc.free(place)
            size = size * 3 // 4 if size > 8192 else size - _STEP
