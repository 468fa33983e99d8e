"""What runs inside a sandbox: small programs for Python 3.8 or newer with the standard library alone.

The modules here import on the host too, where they are checked and tested; `programs()` gives the texts that travel.
"""

from __future__ import annotations

from functools import lru_cache
from threading import Lock
from types import MappingProxyType
from typing import Dict, Mapping, Sequence

from collimate_rl.guest.assemble import assemble

MODULES: Dict[str, Sequence[str]] = {
    "runner": ("plain", "encoder", "builder", "candidate", "nursery", "holder", "runner"),
    "cases": ("plain", "encoder", "cases"),
    "judge": (
        *("plain", "encoder", "checker", "builder", "decoder", "codec"),
        *("prompt", "planner", "placeholder", "pins", "answers", "recorder", "scene", "judge"),
    ),
}
"""Per program the guest modules that make it, in order."""

PRELOAD = (
    "array",
    "ast",
    "atexit",
    "bisect",
    "collections",
    "copy",
    "ctypes",
    "dataclasses",
    "datetime",
    "decimal",
    "fcntl",
    "fractions",
    "functools",
    "heapq",
    "importlib",
    "io",
    "itertools",
    "json",
    "linecache",
    "math",
    "operator",
    "os",
    "random",
    "re",
    "resource",
    "select",
    "signal",
    "socket",
    "string",
    "symtable",
    "threading",
    "time",
    "types",
    "typing",
)
"""Modules that the programs import, and that candidates import most: a warm interpreter has them before it forks."""


_assembling = Lock()


def programs() -> Mapping[str, str]:
    """The self-contained programs by name. Assembled once, however many threads ask first."""
    with _assembling:
        return _programs()


@lru_cache(maxsize=None)
def _programs() -> Mapping[str, str]:
    return MappingProxyType({name: assemble(modules) for name, modules in MODULES.items()})
