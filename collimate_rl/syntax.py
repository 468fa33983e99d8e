"""`ast.parse` for programs with threads.

CPython counts how deep it is in making a tree per interpreter, not per thread: two threads that parse at the same time
may, once in a great while, end in a SystemError ("AST constructor recursion depth mismatch"), whatever the text. Ours
take turns; against other people's threads in the same process, a parse that failed so is done again.
"""

from __future__ import annotations

import ast
import os
import threading

_ONE_AT_A_TIME = threading.Lock()
_TRIES = 5


def _renew() -> None:
    """A thread of the parent that parsed while it forked does not exist in the child to let the lock go."""
    global _ONE_AT_A_TIME
    _ONE_AT_A_TIME = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def parse(text: str) -> ast.Module:
    """As `ast.parse`, with its errors: SyntaxError, ValueError, RecursionError, MemoryError."""
    for _ in range(_TRIES - 1):
        try:
            with _ONE_AT_A_TIME:
                return ast.parse(text)
        except SystemError:
            continue
    with _ONE_AT_A_TIME:
        return ast.parse(text)
