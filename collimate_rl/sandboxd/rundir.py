"""The daemon's own folder of files, marked so that a later daemon can tell that this one is gone."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile

from collimate_rl.sandboxd.cgroups import PREFIX

_count = itertools.count(1)


class RunFolder:
    """A folder that an unprivileged user can enter (root's jails read from it) but not list."""

    def __init__(self, folder: str, mark: str) -> None:
        self.folder = folder
        self.mark = mark
        """`pid-starttime-pidnamespace-n`: also in the names of the daemon's control groups."""

    @classmethod
    def create(cls) -> RunFolder:
        """Make it, and remove those of daemons that are gone."""
        home = _home()
        for name in os.listdir(home):
            if name.startswith(PREFIX) and not cls.is_alive(name[len(PREFIX) :]):
                shutil.rmtree(os.path.join(home, name), ignore_errors=True)
        mark = f"{os.getpid()}-{_start_time(os.getpid())}-{_pid_namespace()}-{next(_count)}"
        folder = os.path.join(home, PREFIX + mark)
        os.mkdir(folder)
        os.chmod(folder, 0o711)  # noqa: S103  (the jail's user must pass, and can't list)
        return cls(folder, mark)

    @staticmethod
    def is_alive(mark: str) -> bool:
        """Whether the process that made this mark still runs. What is no mark of ours, or was made in another pid
        namespace (another container that shares the folder), counts as alive: it can't be told from here."""
        fields = mark.split("-")
        if len(fields) != 4 or not fields[0].isdigit() or fields[2] != _pid_namespace():
            return True
        try:
            return _start_time(int(fields[0])) == fields[1]
        except (FileNotFoundError, ProcessLookupError):
            return False

    def path(self, name: str) -> str:
        """A path inside."""
        return os.path.join(self.folder, name)

    def remove(self) -> None:
        """With everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _start_time(pid: int) -> str:
    """Ticks since boot, which tell a process from a later one with its pid; 0 where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        os.kill(pid, 0)
        return "0"
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().rpartition(")")[2].split()[19]


def _pid_namespace() -> str:
    """Its number; 0 where there is no /proc."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "0"


def _home() -> str:
    """A folder whose every ancestor anyone may enter, as root needs it; the usual temporary folder otherwise."""
    if os.geteuid() != 0:
        return tempfile.gettempdir()
    for place in (tempfile.gettempdir(), "/run", "/tmp", "/var/tmp"):
        if os.path.isdir(place) and _anyone_may_enter(place):
            return place
    return tempfile.gettempdir()


def _anyone_may_enter(place: str) -> bool:
    place = os.path.realpath(place)
    while True:
        if not os.stat(place).st_mode & 0o001:
            return False
        if place == "/":
            return True
        place = os.path.dirname(place)
