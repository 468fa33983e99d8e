"""Assembled programs kept beside the package's bytecode, since assembling them takes longer than all else at a start.

They are trusted as bytecode is: whoever may write there may write that. A kept text is taken only where it was made of
the very sources that are here, and where Python keeps no bytecode nothing is kept.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from importlib.resources import files
from importlib.util import cache_from_source
from pathlib import Path
from typing import Callable, Optional, Sequence

_LOADED_AT = time.time()
_SETTLED_S = 2.0


def kept(name: str, modules: Sequence[str], make: Callable[[], str]) -> str:
    """The text of program `name`, which `make` makes of the named guest modules: read where it is kept."""
    folder = files("collimate_rl.guest")
    if not isinstance(folder, Path):  # in an archive
        return make()
    sources = [folder / (module + ".py") for module in ("assemble", *modules)]
    made_of = _digest(sources)
    path = Path(cache_from_source(str(folder / ("program_" + name + ".py")))).with_suffix(".txt")
    found = _read(path, made_of)
    if found is not None:
        return found
    text = make()
    if not sys.dont_write_bytecode and _are_settled(sources) and _digest(sources) == made_of:
        _write(path, made_of, text)
    return text


def _are_settled(sources: Sequence[Path]) -> bool:
    """Whether none was replaced since this process loaded the package: what was read of them earlier, and the code that
    assembles them, is then what lies there now. An upgrade beneath a running process must not be kept half-read."""
    return all(source.stat().st_ctime < _LOADED_AT - _SETTLED_S for source in sources)


def _digest(sources: Sequence[Path]) -> str:
    each = (hashlib.sha256(source.read_bytes()).digest() for source in sources)
    return hashlib.sha256(b"".join(each)).hexdigest()


def _head(made_of: str, body: bytes) -> bytes:
    return (made_of + " " + hashlib.sha256(body).hexdigest()).encode()


def _read(path: Path, made_of: str) -> Optional[str]:
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError:
        return None  # not kept, or not for us to read
    return body.decode() if head == _head(made_of, body) else None


def _write(path: Path, made_of: str, text: str) -> None:
    body = text.encode()
    part = path.with_name(path.name + "." + str(os.getpid()))
    try:
        path.parent.mkdir(exist_ok=True)
        with open(os.open(str(part), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(_head(made_of, body) + b"\n" + body)
        part.replace(path)
    except OSError:
        _remove(part)


def _remove(part: Path) -> None:
    try:
        part.unlink()
    except OSError:
        pass  # a package that is read-only: it was never made, and the text is made again next time
