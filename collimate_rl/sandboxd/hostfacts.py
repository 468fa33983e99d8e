"""What of a host decides whether sandboxes can be had on it, read from its files; nothing is tried here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from collimate_rl.sandboxd.cgroup_layout import detect
from collimate_rl.sandboxd.privileges import Privileges, read_privileges

_EMPTY_IN_PROC = ("/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd")
"""Made to be mounted on: what lies there hides nothing of /proc."""
_CONTAINER_FILES = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_CONTAINER_GROUPS = ("docker", "kubepods", "libpod", "containerd", "lxc")


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where to look: `root` is what /proc, /sys and the rest are below; `writable` tells whether a path may be."""

    root: str = "/"
    platform: str = sys.platform
    machine: str = field(default_factory=lambda: os.uname().machine)
    uid: int = field(default_factory=os.geteuid)
    writable: Callable[[str], bool] = lambda path: os.access(path, os.W_OK)

    def path(self, name: str) -> str:
        """An absolute path of the host, as it is found from here."""
        return name if self.root == "/" else self.root + name

    def read(self, name: str) -> str | None:
        """A file's text without surrounding space; None when it can't be read."""
        try:
            with open(self.path(name)) as stream:
                return stream.read().strip()
        except OSError:
            return None


@dataclass(frozen=True, kw_only=True)
class CgroupFacts:
    """`kind`: "v1", "v2", "hybrid" (both mounted, memory and pids with version 1) or "none". `folders`: where groups of
    forks would be made. `delegated`: whether this user may make them, as far as can be seen; `own` is its own group."""

    kind: str
    folders: tuple[str, ...] = ()
    delegated: bool = False
    own: str | None = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """A sysctl that this kernel doesn't have is None. `masked`: what is mounted over parts of /proc."""

    platform: str
    kernel: str
    machine: str
    privileges: Privileges
    max_user_namespaces: int | None
    unprivileged_userns_clone: bool | None
    apparmor_restricts_userns: bool | None
    container: str | None
    seccomp_mode: int
    seccomp_filters: bool
    masked: tuple[str, ...]
    cgroups: CgroupFacts


def gather(host: Host) -> HostFacts:
    """Everything, without changing or starting anything."""
    limit = host.read("/proc/sys/user/max_user_namespaces")
    return HostFacts(
        platform=host.platform,
        kernel=host.read("/proc/sys/kernel/osrelease") or "unknown",
        machine=host.machine,
        privileges=read_privileges(host.root, uid=host.uid),
        max_user_namespaces=int(limit) if limit is not None else None,
        unprivileged_userns_clone=_switch(host, "/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restricts_userns=_switch(host, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        container=_container(host),
        seccomp_mode=_seccomp_mode(host),
        seccomp_filters="errno" in (host.read("/proc/sys/kernel/seccomp/actions_avail") or "").split(),
        masked=_masked(host.read("/proc/self/mountinfo") or ""),
        cgroups=_cgroups(host),
    )


def _switch(host: Host, name: str) -> bool | None:
    text = host.read(name)
    return None if text is None else text != "0"


def _container(host: Host) -> str | None:
    for name, kind in _CONTAINER_FILES.items():
        if os.path.exists(host.path(name)):
            return kind
    if os.path.isdir(host.path("/var/run/secrets/kubernetes.io")):
        return "kubernetes"
    said = host.read("/run/systemd/container")
    if said:
        return said
    for variable in (host.read("/proc/1/environ") or "").split("\0"):
        if variable.startswith("container="):
            return variable.partition("=")[2] or "unknown"
    groups = host.read("/proc/1/cgroup") or ""
    return next((name for name in _CONTAINER_GROUPS if name in groups), None)


def _seccomp_mode(host: Host) -> int:
    lines = (host.read("/proc/self/status") or "").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Seccomp:")), 0)


def _masked(mountinfo: str) -> tuple[str, ...]:
    places = (line.split()[4] for line in mountinfo.splitlines())
    return tuple(dict.fromkeys(place for place in places if _hides_proc(place)))


def _hides_proc(place: str) -> bool:
    return place.startswith("/proc/") and not place.startswith(_EMPTY_IN_PROC)


def _cgroups(host: Host) -> CgroupFacts:
    own, mounts = host.read("/proc/self/cgroup"), host.read("/proc/self/mountinfo")
    if own is None or mounts is None:
        return CgroupFacts(kind="none")
    layout = detect(own, mounts)
    if layout.kind == "none":
        return CgroupFacts(kind="none")
    if layout.kind == "v1":
        unified = any(line.partition(" - ")[2].startswith("cgroup2 ") for line in mounts.splitlines())
        return CgroupFacts(
            kind="hybrid" if unified else "v1",
            folders=layout.folders,
            delegated=all(host.writable(host.path(folder)) for folder in layout.folders[:2]),
            own=layout.folders[0],
        )
    home = _version2_home(host, layout.folders[0])
    return CgroupFacts(
        kind="v2",
        folders=(home,) if home is not None else (),
        delegated=home is not None,
        own=layout.folders[0],
    )


def _version2_home(host: Host, own: str) -> str | None:
    """The nearest group that hands memory and pids down and can be written to; else the own one, if nobody else is in
    it: then it can be emptied. A process may be moved only by who may write to the common ancestor's cgroup.procs."""
    place = own
    while (handed := host.read(f"{place}/cgroup.subtree_control")) is not None:
        if {"memory", "pids"} <= set(handed.split()) and _may_divide(host, place):
            return place
        place = os.path.dirname(place)
    inside = (host.read(f"{own}/cgroup.procs") or "").split()
    offered = set((host.read(f"{own}/cgroup.controllers") or "").split())
    if len(inside) == 1 and {"memory", "pids"} <= offered and _may_divide(host, own):
        return own
    return None


def _may_divide(host: Host, place: str) -> bool:
    return host.writable(host.path(place)) and host.writable(host.path(f"{place}/cgroup.procs"))


def closed_ancestor(path: str, *, uid: int) -> str | None:
    """The outermost folder on the way to `path` that a user who doesn't own it can't enter; None when there is none."""
    parts = os.path.realpath(path).split("/")
    for count in range(1, len(parts)):
        folder = "/".join(parts[:count]) or "/"
        found = os.stat(folder)
        if not found.st_mode & 0o001 and not (uid != 0 and found.st_uid == uid):
            return folder
    return None
