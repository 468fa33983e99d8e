"""What a template's warm interpreters are made from: their jail, and the settings that they read."""

from __future__ import annotations

import base64
import os
import sys
from dataclasses import dataclass, replace

from collimate_rl.sandboxd import seccomp
from collimate_rl.sandboxd.config import MIB, Limits, Template
from collimate_rl.sandboxd.guests import GuestPrograms
from collimate_rl.sandboxd.interpreter import Interpreter, inspect_interpreter, jail_roots, language_folders
from collimate_rl.sandboxd.jail import Bwrap, JailPlan, rebinds
from collimate_rl.sandboxd.rundir import RunFolder
from collimate_rl.sandboxd.wire import WORKDIR
from collimate_rl.sandboxd.zygotes import ZygotePlan

_PRELOAD = (
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "io",
    "itertools",
    "json",
    "math",
    "operator",
    "pickle",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "tempfile",
    "textwrap",
    "time",
    "traceback",
    "types",
    "typing",
)
"""What candidates import most; warm, they cost a fork nothing."""
_EXEC_FDS = 1024
_ZYGOTE_FDS = 256
"""What a zygote holds beside one pidfd per session, if all of them are its own."""
_ADDRESS_SPACE_SLACK = 512 * MIB
"""Where there are no control groups, RLIMIT_AS stands in for the memory limit; the interpreter's own mappings
and thread stacks count in it."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """What all templates of a daemon share. `plan` looks at the machine as it is then."""

    folder: RunFolder
    bwrap: Bwrap
    filters: seccomp.Filters
    limits: Limits
    programs: GuestPrograms
    cgroups: str

    def plan(self, number: int, template: Template) -> ZygotePlan:
        """The plan of one template, its `number` its own. ValueError when what it names is not there, or can't be."""
        interpreter = _interpreter(template)
        for inside, host in template.data:
            if not os.path.isdir(host):
                raise ValueError(f"data: there is no directory {host}: make it, or correct the path that {inside} has")
            _check_apart(inside, interpreter)
        jail = JailPlan(
            bwrap=self.bwrap,
            interpreter=interpreter,
            etc_folder=self.folder.path("etc"),
            guest_folder=self.folder.path("inside"),
            tmpfs_bytes=template.tmpfs_mb * MIB,
            program=template.language[0] if template.language is not None else None,
            data=template.data,
            env=template.env,
        )
        settings = {
            "preload": _preload(template),
            "programs": self.programs.texts,
            "language": template.language,
            "entry": template.entry if isinstance(template.entry, str) else None,
            "base_filter": base64.b64encode(self.filters.base).decode(),
            "seal_filter": base64.b64encode(self.filters.seal).decode(),
            "max_fd": self.limits.max_sessions + _ZYGOTE_FDS,
            "exec_rlimits": {"RLIMIT_NOFILE": _EXEC_FDS, **self._stand_ins(template)},
            "tmpfs_bytes": template.tmpfs_mb * MIB,
            "workdir": WORKDIR,
            "rebinds": rebinds(interpreter.roots),
        }
        return ZygotePlan(jail=jail, settings=settings, stage=self.folder.path(f"stage{number}"))

    def _stand_ins(self, template: Template) -> dict[str, int]:
        if self.cgroups != "none":
            return {}
        return {
            "RLIMIT_AS": template.memory_mb * MIB + _ADDRESS_SPACE_SLACK,
            "RLIMIT_NPROC": template.pids * self.limits.max_inflight,
        }


def _interpreter(template: Template) -> Interpreter:
    """The Python that the zygote runs on; the folders of another language's interpreter come along with it."""
    interpreter = inspect_interpreter(template.python or sys.executable)
    if template.language is None:
        return interpreter
    return replace(interpreter, roots=jail_roots({*interpreter.roots, *language_folders(template.language[0])}))


def _preload(template: Template) -> list[str]:
    if template.language is not None:
        return []
    entry = [template.entry_module] if template.entry_module is not None else []
    return [*_PRELOAD, *template.preload, *entry]


def _check_apart(inside: str, interpreter: Interpreter) -> None:
    for root in interpreter.roots:
        if inside == root or inside.startswith(root + "/") or root.startswith(inside + "/"):
            raise ValueError(f"data: {inside} would cover the interpreter's {root}: choose another place, as /data")
