"""Control groups of forks: version 2, version 1 (memory and pids hierarchies, and cpu where there is one), or none.

Where they can be made is read by `cgroup_layout`; whether that may be used is found out by trying.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from collimate_rl.sandboxd.cgroup_layout import Layout

log = logging.getLogger(__name__)
PREFIX = "collimate-sandboxd-"
_SHARES = 1024
"""The weight of a group of version 1, and of a process in none, if nobody sets it."""
_BATCH = 1 << 20
"""The kernel takes memory for a group in batches: whoever is so near to the limit has reached it."""
_SOCKETS_PART = 8
"""What part of its memory limit a fork may have in inet sockets beside it, where they are counted apart."""
_KEPT = 64
"""Empty groups kept for reuse, per set of limits."""
_VANISHED = (errno.ENOENT, errno.ENODEV)
"""What a group that somebody else removes answers: the second, when it went after its file was opened."""


class Group(Protocol):
    """The limits of one fork. `release` when all its processes are known to be gone, else `remove`."""

    def add(self, pid: int) -> None: ...

    def release(self) -> None: ...

    def remove(self) -> bool: ...

    def is_cut_short(self) -> bool:
        """Whether, since this was last asked, a process of it was killed for want of memory though its own limit was
        never reached: the machine, or a group above, has less than it promised.
        """
        ...


class Cgroups(Protocol):
    """Makes groups. `kind` as in Layout."""

    kind: str

    def create(self, *, memory_bytes: int, pids: int, brief: bool = False) -> Group:
        """A group with these limits; `brief`: for a fork that is gone soon."""
        ...

    def close(self) -> None: ...


class NoCgroups:
    """Neither version is usable: rlimits stand in for the limits."""

    kind = "none"

    def create(self, *, memory_bytes: int, pids: int, brief: bool = False) -> Group:  # noqa: ARG002
        """A group that limits nothing."""
        return _NoGroup()

    def close(self) -> None:
        """Nothing to give back."""


class _NoGroup:
    def add(self, pid: int) -> None:
        """Nothing to enter."""

    def release(self) -> None:
        """Nothing to give back."""

    def remove(self) -> bool:
        return True

    def is_cut_short(self) -> bool:
        return False


class FolderCgroups:
    """Groups as folders, below one folder per hierarchy that belongs to this daemon."""

    def __init__(self, kind: str, parents: tuple[str, ...]) -> None:
        self.kind = kind
        self._parents = parents
        self._lock = threading.Lock()
        self._count = 0
        self._free: dict[tuple[int, int, bool], list[_FolderGroup]] = {}
        self._closed = False

    def create(self, *, memory_bytes: int, pids: int, brief: bool = False) -> Group:
        """An empty group with its limits set, reused if there is one; OSError when the kernel refuses.

        One that is `brief` keeps its files open for the next: of few forks at a time these are few descriptors.
        """
        kind = (memory_bytes, pids, brief)
        with self._lock:
            free = self._free.get(kind)
            if free:
                return free.pop()
            self._count += 1
            name = f"f{self._count}"
        folders = tuple(f"{parent}/{name}" for parent in self._parents)
        group = _FolderGroup(self, folders, kind)
        try:
            for folder in folders:
                os.mkdir(folder)
            if self.kind == "v1":
                _write(f"{folders[0]}/memory.limit_in_bytes", memory_bytes)
                _write_if_there(f"{folders[0]}/memory.memsw.limit_in_bytes", memory_bytes)
                # Without a limit of its own version 1 counts no memory of inet sockets, and they take much of it.
                _write_if_there(f"{folders[0]}/memory.kmem.tcp.limit_in_bytes", memory_bytes // _SOCKETS_PART)
            else:
                _write(f"{folders[0]}/memory.max", memory_bytes)
                _write_if_there(f"{folders[0]}/memory.swap.max", 0)
            _write(f"{folders[1 if self.kind == 'v1' else 0]}/pids.max", pids)
        except OSError:
            group.remove()
            raise
        return group

    def keep(self, group: _FolderGroup) -> bool:
        """Put an empty group by for the next fork with these limits; False when enough are kept."""
        with self._lock:
            free = self._free.setdefault(group.kind, [])
            if len(free) >= _KEPT or self._closed:
                return False
            free.append(group)
            return True

    def close(self) -> None:
        """Remove the daemon's own folders with all that is left below."""
        with self._lock:
            self._closed = True
            kept = [group for free in self._free.values() for group in free]
            self._free.clear()
        for group in kept:
            group.close()
        for parent in self._parents:
            sweep(parent)


class _FolderGroup:
    def __init__(self, owner: FolderCgroups, folders: tuple[str, ...], kind: tuple[int, int, bool]) -> None:
        self.kind = kind
        self._owner = owner
        self._folders = folders
        self._doors: list[int] = []
        """Descriptors of the files through which processes enter, once they are open."""
        self._counted = (0, 0)
        self._told = b""

    def add(self, pid: int) -> None:
        _, _, brief = self.kind
        try:
            for folder in self._folders[len(self._doors) :]:
                self._doors.append(os.open(f"{folder}/cgroup.procs", os.O_WRONLY))
            for door in self._doors:
                os.write(door, b"%d" % pid)
        finally:
            if not brief:
                self.close()

    def close(self) -> None:
        """Close its files; it stays as it is."""
        while self._doors:
            os.close(self._doors.pop())

    def release(self) -> None:
        if self._came_near():
            # What the next fork is asked about is not this one's doing.
            self.is_cut_short()
        if not self._owner.keep(self):
            self.remove()

    def _came_near(self) -> bool:
        """Whether its limit may have been reached since that was last counted, by one look: it is for every exec."""
        if self._owner.kind == "v2":
            before, self._told = self._told, _told(f"{self._folders[0]}/memory.events")
            return before != self._told
        peaks = (_told(f"{self._folders[0]}/memory.{name}max_usage_in_bytes") for name in ("memsw.", ""))
        return int(next(filter(None, peaks), 0)) >= self.kind[0] - _BATCH

    def remove(self) -> bool:
        """False when a process is still inside after a second."""
        self.close()
        return all(_remove_folder(folder) for folder in self._folders)

    def is_cut_short(self) -> bool:
        before, self._counted = self._counted, self._memory_events()
        return self._counted[0] > before[0] and self._counted[1] == before[1]

    def _memory_events(self) -> tuple[int, int]:
        """How often processes were killed for want of memory, and how often the own limit was reached, at least."""
        folder = self._folders[0]
        if self._owner.kind == "v2":
            events = _numbers(f"{folder}/memory.events")
            return events.get("oom_kill", 0), events.get("max", 0)
        kills = _numbers(f"{folder}/memory.oom_control").get("oom_kill", 0)
        # Not by failcnt: there are kernels that count nothing there.
        peaks = [f"{folder}/memory.{name}max_usage_in_bytes" for name in ("", "memsw.")]
        reached = any(peak >= self.kind[0] - _BATCH for path in peaks for peak in _numbers(path).values())
        for path in peaks:
            _write_if_there(path, 0)  # it begins anew
        return kills, self._counted[1] + reached


def _told(path: str) -> bytes:
    """What a small file holds; nothing where it is not there."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            return os.read(fd, 4096)
        finally:
            os.close(fd)
    except OSError as exc:
        if exc.errno not in _VANISHED:
            raise
        return b""


def _numbers(path: str) -> dict[str, int]:
    """A file of names with numbers, or of one number; empty where there is none."""
    try:
        with open(path) as stream:
            lines = [line.split() for line in stream]
    except FileNotFoundError:
        return {}
    return {line[0] if line[1:] else "": int(line[-1]) for line in lines}


def _remove_folder(folder: str) -> bool:
    for attempt in range(20):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return True
        except OSError as exc:
            if exc.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                # Somebody else's, or on a mount that is read-only: waiting won't help.
                return False
            # A process that has just died leaves its group a moment later.
            time.sleep(0.0005 * 2 ** min(attempt, 7))
        else:
            return True
    return False


def _write(path: str, value: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, b"%d" % value)
    finally:
        os.close(fd)


def _write_if_there(path: str, value: int) -> None:
    try:
        _write(path, value)
    except FileNotFoundError:
        # The kernel accounts no swap: then there is none to limit.
        pass


def sweep(folder: str) -> None:
    """Kill what is left in a group and below it, and remove the folders; several daemons may at the same moment."""
    try:
        below = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError as exc:
        if exc.errno not in _VANISHED:
            raise
        return
    for path in below:
        sweep(path)
    for pid in _pids(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # Gone by now, or another user's: then its group is, too, and stays.
            continue
    if not _remove_folder(folder):
        log.warning("the control group %s could not be removed: it is in use, or not this user's", folder)


def _pids(folder: str) -> list[int]:
    try:
        with open(f"{folder}/cgroup.procs") as stream:
            return [int(line) for line in stream if int(line) > 0]
    except OSError as exc:
        if exc.errno not in _VANISHED:
            raise
        return []


def sweep_stale(folders: Iterable[str], is_alive: Callable[[str], bool]) -> None:
    """Remove what daemons that are no longer alive left, where this user may; the mark in the name tells who is."""
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name)
            if name.startswith(PREFIX) and not is_alive(name[len(PREFIX) :]) and os.access(path, os.W_OK):
                sweep(path)


def open_cgroups(layout: Layout, mark: str) -> Cgroups:
    """Groups that work, as tried with one; NoCgroups, with the reason in the log, when none do."""
    if layout.kind == "none":
        return NoCgroups()
    if layout.kind == "v1":
        choices = [layout.folders, layout.folders[:2]] if len(layout.folders) > 2 else [layout.folders]
    else:
        choices = [(home,) for home in _version2_homes(layout.folders[0])]
    for homes in choices:
        parents = tuple(f"{home}/{PREFIX}{mark}" for home in homes)
        groups = FolderCgroups(layout.kind, parents)
        try:
            for parent in parents:
                os.mkdir(parent)
            for parent in parents[2:]:
                # All forks together weigh what they would one by one, not what a single process does.
                _write_if_there(f"{parent}/cpu.shares", _SHARES * 2 * (os.cpu_count() or 1))
            if layout.kind == "v2":
                _enable_controllers(parents[0])
            groups.create(memory_bytes=64 << 20, pids=16).remove()
        except OSError as exc:
            log.info("no control groups below %s: %s", ", ".join(homes), exc)
            groups.close()
            continue
        return groups
    return NoCgroups()


def _version2_homes(own: str) -> list[str]:
    """Ancestors (nearest first) that already hand memory and pids down; else the own group, once it is emptied.

    A group of version 2 that hands controllers down can't hold processes itself, so the own group serves only
    when this process is alone in it and can move into a leaf.
    """
    homes = []
    place = own
    while os.path.exists(f"{place}/cgroup.subtree_control"):
        with open(f"{place}/cgroup.subtree_control") as stream:
            if {"memory", "pids"} <= set(stream.read().split()):
                homes.append(place)
        place = os.path.dirname(place)
    if not homes and _pids(own) == [os.getpid()]:
        leaf = f"{own}/collimate-daemon"
        try:
            os.makedirs(leaf, exist_ok=True)
            _write(f"{leaf}/cgroup.procs", os.getpid())
            _enable_controllers(own)
        except OSError as exc:
            log.info("the control group %s can't be handed down: %s", own, exc)
        else:
            homes.append(own)
    return homes


def _enable_controllers(folder: str) -> None:
    fd = os.open(f"{folder}/cgroup.subtree_control", os.O_WRONLY)
    try:
        os.write(fd, b"+memory +pids")
        # With it every fork weighs the same, however many processes it starts.
        try:
            os.write(fd, b"+cpu")
        except OSError as exc:
            log.info("no cpu controller below %s: %s", folder, exc)
    finally:
        os.close(fd)


def stale_places(layout: Layout) -> tuple[str, ...]:
    """Where groups of earlier daemons may lie."""
    return layout.folders if layout.kind == "v1" else tuple(_ancestors(layout.folders))


def _ancestors(folders: tuple[str, ...]) -> list[str]:
    places = []
    for folder in folders:
        while os.path.exists(f"{folder}/cgroup.procs"):
            places.append(folder)
            folder = os.path.dirname(folder)
    return places
