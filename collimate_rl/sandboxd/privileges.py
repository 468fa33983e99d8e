"""Whom the jails run as: what this process may do about it, by the texts of /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass

UNPRIVILEGED = 65534
"""The host's uid and gid of everything in a jail when the daemon is root."""
_KILL, _SETGID, _SETUID, _SYS_ADMIN, _SETFCAP = 5, 6, 7, 21, 31


class NobodyToBe(ValueError):
    """This root can become nobody else, and candidates must not run as it."""


@dataclass(frozen=True, kw_only=True)
class JailUser:
    """`uid` (and gid) to become before the jail is built; None: stay who you are. `staged`: what that user can't reach
    is first bound, in a private mount namespace, to where it can."""

    uid: int | None
    staged: bool


@dataclass(frozen=True, kw_only=True)
class Privileges:
    """What is known of this process: its uid, its effective capabilities as bits, the id maps of its user namespace."""

    uid: int
    capabilities: int
    uid_map: str
    gid_map: str
    setgroups: str

    @property
    def is_hosts_root(self) -> bool:
        """Whether uid 0 is root outside this user namespace, too. With nothing known of a namespace, it is."""
        return self.uid == 0 and _outside(self.uid_map, 0) in (0, None)

    @property
    def may_mount(self) -> bool:
        """CAP_SYS_ADMIN."""
        return self._has(_SYS_ADMIN)

    @property
    def may_become_unprivileged(self) -> bool:
        """Whether uid and gid can be dropped, the groups with them, and what runs as that user be killed from here."""
        return (
            all(self._has(capability) for capability in (_SETUID, _SETGID, _KILL))
            and _outside(self.uid_map, UNPRIVILEGED) is not None
            and _outside(self.gid_map, UNPRIVILEGED) is not None
            and self.setgroups.strip() != "deny"
        )

    @property
    def may_stay(self) -> bool:
        """Whether jails may run as this user. The host's root never: its files, /proc/sys/kernel/core_pattern for one,
        are its own in every namespace. Another root needs CAP_SETFCAP to be mapped into a namespace of its own."""
        return self.uid != 0 or (not self.is_hosts_root and self._has(_SETFCAP))

    def _has(self, capability: int) -> bool:
        return bool(self.capabilities >> capability & 1)


def jail_user(found: Privileges) -> JailUser:
    """Root becomes nobody where it can, and all others stay who they are; NobodyToBe for a root that can do neither."""
    if found.uid == 0 and found.may_become_unprivileged:
        return JailUser(uid=UNPRIVILEGED, staged=found.may_mount)
    if found.may_stay:
        return JailUser(uid=None, staged=False)
    raise NobodyToBe(
        "this root can't become another user (it lacks CAP_SETUID, CAP_SETGID or CAP_KILL, or its user namespace has "
        f"no uid {UNPRIVILEGED}), and candidates never run as root: start the daemon as an unprivileged user "
        "(docker run --user 1000), or give it these capabilities"
    )


def read_privileges(root: str = "/", *, uid: int | None = None) -> Privileges:
    """Those of this process; `root` is where /proc is below."""
    status = _read(root, "proc/self/status")
    capabilities = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return Privileges(
        uid=os.geteuid() if uid is None else uid,
        capabilities=int(capabilities, 16),
        uid_map=_read(root, "proc/self/uid_map"),
        gid_map=_read(root, "proc/self/gid_map"),
        setgroups=_read(root, "proc/self/setgroups"),
    )


def _read(root: str, name: str) -> str:
    try:
        with open(os.path.join(root, name)) as stream:
            return stream.read()
    except OSError:
        # A kernel without it; what is not known counts as not allowed, or as the usual.
        return ""


def _outside(id_map: str, inside: int) -> int | None:
    """What an id of a user namespace is outside, by its uid_map or gid_map; None for one that it doesn't have."""
    for line in id_map.splitlines():
        first, outside, count = (int(field) for field in line.split())
        if first <= inside < first + count:
            return outside + inside - first
    return None
