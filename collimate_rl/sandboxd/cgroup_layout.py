"""Where this process may find control groups, by /proc/self/cgroup and /proc/self/mountinfo."""

from __future__ import annotations

import os
from dataclasses import dataclass

_VERSION1 = ("memory", "pids", "cpu")
"""In the order of a layout's folders. The last one is for fairness alone: with it every fork weighs the same, however
many processes and sessions it starts."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where groups can be made. `kind` is "v2" (one folder), "v1" (memory, pids, maybe cpu) or "none" (no folder)."""

    kind: str
    folders: tuple[str, ...] = ()


def detect(cgroup_text: str, mountinfo_text: str) -> Layout:
    """The layout by the texts of /proc/self/cgroup and /proc/self/mountinfo."""
    own: dict[str, str] = {}
    for line in cgroup_text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            own[controller] = path
    unified = None
    version1: dict[str, str] = {}
    for line in mountinfo_text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind, options = before.split(), after.split()[0], after.split()[-1].split(",")
        root, mountpoint = fields[3], fields[4].replace("\\040", " ")
        if kind == "cgroup2" and "" in own:
            unified = _folder(mountpoint, root, own[""])
        elif kind == "cgroup":
            for controller in _VERSION1:
                if controller in options and controller in own:
                    version1[controller] = _folder(mountpoint, root, own[controller])
    if version1.keys() >= {"memory", "pids"}:
        return Layout(kind="v1", folders=tuple(version1[name] for name in _VERSION1 if name in version1))
    if unified is not None and version1.keys() <= {"cpu"}:
        return Layout(kind="v2", folders=(unified,))
    return Layout(kind="none")


def read_layout() -> Layout:
    """The layout of this process; "none" where there is no /proc."""
    try:
        with open("/proc/self/cgroup") as own, open("/proc/self/mountinfo") as mounts:
            return detect(own.read(), mounts.read())
    except OSError:
        return Layout(kind="none")


def _folder(mountpoint: str, root: str, own: str) -> str:
    """The own group's folder below a mount that shows the hierarchy from `root` on."""
    if root != "/" and (own == root or own.startswith(root + "/")):
        own = own[len(root) :]
    return os.path.normpath(mountpoint + "/" + own)
