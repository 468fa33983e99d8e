"""What of the host a template's interpreter needs inside the jail: its executable and the folders it lives in."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

_PROBE = """
import json, os, sys
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],
}))
"""
_PROVIDED = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
"""Bound into every jail anyway."""
_TOO_BROAD = ("/", "/home", "/root", "/tmp", "/var", "/opt", "/work", "/srv", "/mnt", "/etc", "/run", "/proc", "/dev")


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """An interpreter and the folders, by the paths it knows them by, that it needs beside /usr."""

    executable: str
    version: tuple[int, int, int]
    roots: tuple[str, ...]


def inspect_interpreter(executable: str) -> Interpreter:
    """Ask the interpreter where it lives. ValueError when it does not run, is too old, or lives too broadly."""
    try:
        answer = subprocess.run(
            [executable, "-I", "-c", _PROBE], capture_output=True, timeout=60, check=True, stdin=subprocess.DEVNULL
        )
        found = json.loads(answer.stdout)
    except (subprocess.CalledProcessError, json.JSONDecodeError) as exc:
        raise ValueError(
            f"the template's interpreter {executable} does not run as a Python: name a Python of 3.8 or later, a "
            "program that is known by its name, or a list whose last option takes code"
        ) from exc
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise ValueError(f"the template's interpreter {executable} does not run: {exc}") from exc
    version = tuple(found["version"])
    if version < (3, 8):
        raise ValueError(f"the template's interpreter {executable} is Python {version[0]}.{version[1]}; 3.8 is needed")
    real = os.path.realpath(executable)
    places = {os.path.abspath(prefix) for prefix in found["prefixes"]}
    places |= {os.path.dirname(os.path.dirname(real)), os.path.dirname(os.path.dirname(os.path.abspath(executable)))}
    return Interpreter(executable=os.path.abspath(executable), version=version, roots=jail_roots(places))


def language_folders(program: str) -> set[str]:
    """Where an interpreter that is no Python lives. ValueError when there is none."""
    if not (os.path.isfile(program) and os.access(program, os.X_OK)):
        raise ValueError(f"there is no program {program}: install it, or name another interpreter")
    folders = {os.path.dirname(os.path.abspath(program)), os.path.dirname(os.path.realpath(program))}
    return {
        os.path.dirname(folder) if os.path.basename(folder) == "bin" and folder not in _PROVIDED else folder
        for folder in folders
    }


def jail_roots(places: set[str]) -> tuple[str, ...]:
    """The folders to bind, outermost first; ValueError for one that would open far more than an interpreter."""
    home = os.path.expanduser("~")
    roots: list[str] = []
    for place in sorted(places, key=lambda place: (place.count("/"), place)):
        if _below(place, _PROVIDED) or _below(place, roots):
            continue
        if place in _TOO_BROAD or place == home:
            raise ValueError(
                f"the interpreter's prefix is {place}: binding that into a sandbox would open it to candidates; "
                "use an interpreter or a venv in a folder of its own"
            )
        roots.append(place)
    return tuple(roots)


def _below(path: str, parents: tuple[str, ...] | list[str]) -> bool:
    return any(path == parent or path.startswith(parent + "/") for parent in parents)
