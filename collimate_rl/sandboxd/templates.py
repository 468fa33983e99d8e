"""What a template is: an interpreter, what it has loaded, what its forks may use, and what they serve."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass

LANGUAGES = {
    "sh": "-c",
    "bash": "-c",
    "dash": "-c",
    "ksh": "-c",
    "zsh": "-c",
    "node": "-e",
    "nodejs": "-e",
    "perl": "-e",
    "ruby": "-e",
    "lua": "-e",
    "php": "-r",
    "Rscript": "-e",
}
"""Interpreters known by their file's name, and the option after which they take code."""
MAX_PORTS = 16
_NAME = re.compile(r"[A-Za-z0-9._:/@-]{1,200}")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_ENTRY = re.compile(rf"({_MODULE.pattern}):([A-Za-z_]\w*)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FIXED_VARIABLES = ("PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "HOME", "TMPDIR")
_JAILS_OWN = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/proc",
    "/dev",
    "/sys",
    "/tmp",
    "/box",
    "/opt/collimate",
    "/opt/collimate-roots",
)
"""Inside a jail these are its own: no data directory lies in or over them."""
_NEVER_SHOWN = ("/proc", "/sys", "/dev", "/run", "/var/run")
"""What is below these on the host is no data: devices, the kernel's own files, sockets of services."""
_TOO_BROAD = ("/", "/home", "/root", "/etc", "/tmp", "/var", "/var/tmp")
"""Folders that hold everybody's files."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """What a fork is a copy of, and the limits of each fork. ValueError, with the field and a remedy, when one is off.

    `interpreter` None is the interpreter that runs the daemon; a path names a Python, or one of LANGUAGES by its file's
    name; a tuple is an argv to which code is appended as the last argument. `entry` is `module:function`, called in
    each fork of a Python, or an argv. `data` are (path inside, folder on the host), `env` (name, value).
    """

    interpreter: str | tuple[str, ...] | None = None
    preload: tuple[str, ...] = ()
    memory_mb: int = 512
    pids: int = 64
    tmpfs_mb: int = 64
    entry: str | tuple[str, ...] | None = None
    entry_timeout_s: int = 30
    expose_ports: tuple[int, ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        self._check_interpreter()
        self._check_entry()
        _check_between("memory_mb", self.memory_mb, 32, 1 << 20)
        _check_between("pids", self.pids, 4, 32768)
        _check_between("tmpfs_mb", self.tmpfs_mb, 1, 1 << 20)
        _check_between("entry_timeout_s", self.entry_timeout_s, 1, 600)
        _check_ports(self.expose_ports)
        _check_data(self.data)
        for name, value in self.env:
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise ValueError(f"env: {name!r} is no variable that can be set: a name of letters, digits and _")
            if name in _FIXED_VARIABLES:
                raise ValueError(f"env: {name} is the same in every sandbox: leave it out")

    def _check_interpreter(self) -> None:
        argv = (self.interpreter,) if isinstance(self.interpreter, str) else self.interpreter
        if argv is not None and (not argv or any("\0" in word for word in argv)):
            raise ValueError("interpreter: an argv needs a program: for example ['/usr/bin/node', '-e']")
        if argv is not None and not os.path.isabs(argv[0]):
            raise ValueError(
                f"the interpreter must be an absolute path, not {argv[0]!r}: `command -v {argv[0]}` says where it is"
            )
        for module in self.preload:
            if not _MODULE.fullmatch(module):
                raise ValueError(f"preload: {module!r} is no module name to preload, as in 'numpy' or 'package.module'")
        if self.preload and self.language is not None:
            raise ValueError(f"preload is for a Python, and {self.language[0]} is none: leave it out")

    def _check_entry(self) -> None:
        if self.entry is None:
            return
        if isinstance(self.entry, str):
            if not _ENTRY.fullmatch(self.entry):
                raise ValueError(f"entry: {self.entry!r} must be 'module:function', or an argv as a list")
            if self.language is not None:
                raise ValueError(f"entry: {self.entry!r} is for a Python; give a command, as a list of its arguments")
        elif not self.entry or not self.entry[0] or any("\0" in word for word in self.entry):
            raise ValueError("entry: an argv needs a program: for example ['node', '/data/server.js']")
        if not self.expose_ports:
            raise ValueError("entry: a server needs expose_ports: name the ports that it listens on")

    @property
    def language(self) -> tuple[str, ...] | None:
        """The argv to which `code` is appended, for what is no Python; None for a Python."""
        if isinstance(self.interpreter, tuple):
            return self.interpreter
        if self.interpreter is not None and os.path.basename(self.interpreter) in LANGUAGES:
            return self.interpreter, LANGUAGES[os.path.basename(self.interpreter)]
        return None

    @property
    def python(self) -> str | None:
        """The Python whose warm interpreter forks are made from; None is the daemon's own."""
        return self.interpreter if isinstance(self.interpreter, str) and self.language is None else None

    @property
    def entry_module(self) -> str | None:
        """The module that the entry server's function is in, to be imported before any fork."""
        return self.entry.partition(":")[0] if isinstance(self.entry, str) else None

    def needs_isolation(self) -> list[str]:
        """The settings that plain processes can't have."""
        return [name for name in ("entry", "expose_ports", "data") if getattr(self, name)]


def check_template_name(name: str) -> str:
    """The name, or a ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no template name: 1 to 200 of letters, digits and . _ : / @ -")
    return name


def _check_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low:,} and {high:,}, not {value}")


def _check_ports(ports: Iterable[int]) -> None:
    ports = tuple(ports)
    if len(ports) > MAX_PORTS or len(set(ports)) < len(ports):
        raise ValueError(f"expose_ports: at most {MAX_PORTS} ports, each once")
    for port in ports:
        if not 1024 <= port <= 65535:
            raise ValueError(f"expose_ports: {port} must be between 1,024 and 65,535: a sandbox can't serve lower ones")


def _check_data(data: Iterable[tuple[str, str]]) -> None:
    places = [inside for inside, _ in data]
    for inside, host in data:
        for path in (inside, host):
            if not path.startswith("/") or posixpath.normpath(path) != path or "\0" in path or path.startswith("//"):
                raise ValueError(f"data: {path!r} must be an absolute path without '..' or a '/' at its end")
        if inside == "/" or _overlaps(inside, _JAILS_OWN):
            raise ValueError(f"data: {inside} is the sandbox's own inside: choose another place, as /data")
        if _overlaps(inside, [place for place in places if place is not inside]):
            raise ValueError(f"data: {inside} lies in or over another data directory: give each a place of its own")
        real = os.path.realpath(host)
        if real in (*_TOO_BROAD, os.path.expanduser("~")) or _below(real, _NEVER_SHOWN):
            raise ValueError(f"data: {host} is no directory of data: name a folder with nothing but the files to show")


def _overlaps(path: str, others: Iterable[str]) -> bool:
    return any(_below(path, (other,)) or _below(other, (path,)) for other in others)


def _below(path: str, parents: Iterable[str]) -> bool:
    return any(path == parent or path.startswith(parent + "/") for parent in parents)
