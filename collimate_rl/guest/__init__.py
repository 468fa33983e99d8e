"""What runs inside a sandbox: small programs for Python 3.8 or newer with the standard library alone.

The modules here import on the host too, where they are checked and tested; `programs()` gives the texts that travel.
"""

from __future__ import annotations

from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Dict, Mapping, Sequence

from collimate_rl.guest.assemble import assemble
from collimate_rl.guest.kept import kept

_RUNNER = ("plain", "encoder", "builder", "candidate", "nursery", "waits", "holder", "runner")
MODULES: Dict[str, Sequence[str]] = {
    "runner": _RUNNER,
    "held": (*_RUNNER, "rehearsal", "held"),
    "cases": ("plain", "encoder", "cases"),
    "command": ("nursery", "waits", "diff", "tree", "watch", "command"),
    "beside": ("planner", "pytests", "testfile", "beside"),
    "checks": ("plain", "encoder", "checker", "builder", "decoder", "codec", "checks"),
    "judge": (
        *("plain", "encoder", "checker", "builder", "decoder", "codec"),
        *("prompt", "planner", "placeholder", "pins", "answers", "recorder", "guard"),
        *("pytests", "testfile", "reach", "scene", "judge"),
    ),
}
"""Per program the guest modules that make it, in order."""

PRELOAD = (
    "array",
    "ast",
    "atexit",
    "bisect",
    "codecs",
    "collections",
    "contextlib",
    "copy",
    "ctypes",
    "dataclasses",
    "datetime",
    "decimal",
    "fcntl",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "importlib",
    "inspect",
    "io",
    "itertools",
    "json",
    "linecache",
    "math",
    "operator",
    "os",
    "pathlib",
    "random",
    "re",
    "resource",
    "select",
    "shutil",
    "signal",
    "socket",
    "stat",
    "string",
    "symtable",
    "tempfile",
    "threading",
    "time",
    "types",
    "typing",
    "unittest",
    "warnings",
)
"""Modules that the programs import, and that candidates import most: a warm interpreter has them before it forks."""


_assembling = {name: Lock() for name in MODULES}


def program(name: str) -> str:
    """One self-contained program. Assembled (0.2 s) when it is first asked for, however many threads ask, and kept."""
    with _assembling[name]:
        return _program(name)


def programs() -> Mapping[str, str]:
    """All self-contained programs by name."""
    return MappingProxyType({name: program(name) for name in MODULES})


@lru_cache(maxsize=None)
def _program(name: str) -> str:
    return kept(name, MODULES[name], lambda: assemble(MODULES[name]))
