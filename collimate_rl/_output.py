"""What becomes of a program whose standard output takes nothing: a full disk, or a reader that has gone."""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EXIT_UNWRITTEN: Final = 1
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


@contextmanager
def printing(program: str) -> Iterator[None]:
    """Around a whole program: when its output cannot be written, it ends with one line on stderr and exit code 1 (its
    own, where that is an error's). A reader that has gone (`| head`) wants no line.
    """
    code: object = None
    try:
        try:
            yield
        except SystemExit as end:
            code = end.code
            _flush()
            raise
        _flush()
    except OSError as error:
        if not _is_of_output(error):
            raise
        if error.errno != errno.EPIPE:
            print(f"{program}: its output could not be written: {error.strerror}", file=sys.stderr)
        # What is left in the stream is not to be tried again at the interpreter's end, which would complain.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise SystemExit(code or EXIT_UNWRITTEN) from None


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_of_output(error: OSError) -> bool:
    """Whether it is about a write, and not to a socket. Errors about files that are opened or made name them."""
    if sys.stdout is None or error.filename is not None:
        return False
    if error.errno != errno.EPIPE:
        return error.errno in _FULL
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in look.poll(0))
