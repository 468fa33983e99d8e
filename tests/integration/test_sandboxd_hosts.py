"""Hosts of other kinds, made here of this one: less privileged users, user namespaces, containers, no control groups.

Each runs the real daemon, which serves there or refuses and says what to do.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import collimate_rl
from collimate_rl.sandboxd import seccomp
from collimate_rl.sandboxd.jail import BwrapMissing, find_bwrap
from tests.fixtures.sandbox_daemon import NoIsolation, one_core, start_daemon
from tests.fixtures.sandboxd_wire import call, code, descendants, eventually, run, session_exec

NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
MODULE = "collimate_rl.local_backend"


@dataclass(frozen=True)
class Everybodys:
    """What any user of this machine can run: a Python, this package, bubblewrap."""

    python: str
    library: str
    bwrap: str
    temporary: str

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": self.library, "TMPDIR": self.temporary}

    def container(self, *options: str) -> list[str]:
        """As a runtime without privileges makes them: no capability, /sys read-only, a /proc of its own."""
        return [
            *NOBODY, self.bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent",
            "--ro-bind", "/", "/", "--bind", "/tmp", "/tmp", "--dev", "/dev", "--proc", "/proc", *options, "--",
        ]  # fmt: skip

    def launch(self, command: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the module to its end, on the host that `command` makes."""
        return subprocess.run(
            [*command, self.python, "-m", MODULE, "--socket", f"{self.temporary}/s.sock", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            cwd="/",
            env={**os.environ, **self.env},
        )


@pytest.fixture(scope="module")
def everybodys() -> Iterator[Everybodys]:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    missing = [tool for tool in ("setpriv", "unshare") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} on this machine")
    pythons = (f"/usr/bin/python3.{minor}" for minor in (14, 13, 12, 11, 10))
    python = next((path for path in pythons if os.path.exists(path)), None)
    if python is None:
        pytest.skip("no python3.10 or later in /usr/bin, which everybody may run")
    try:
        found = find_bwrap()
    except BwrapMissing as exc:
        pytest.skip(str(exc))
    folder = Path("/tmp", f"sbxhosts{os.getpid()}")
    library = folder / "lib"
    library.mkdir(parents=True)
    (folder / "tmp").mkdir()
    for path in (folder, library, folder / "tmp"):
        path.chmod(0o777)
    shutil.copytree(Path(collimate_rl.__file__).parent, library / "collimate_rl")
    bwrap = found.path
    for part in found.bundle:
        shutil.copytree(part, library / os.path.basename(part))
        if bwrap.startswith(part + "/"):
            bwrap = str(library / os.path.basename(part)) + bwrap[len(part) :]
    try:
        yield Everybodys(python, str(library), bwrap, str(folder / "tmp"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def daemon_process(outermost: int) -> int:
    """The daemon's own pid, below whatever it was started through."""
    for pid in sorted({outermost, *descendants(outermost)}):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if MODULE.encode() in words and b"python" in os.path.basename(words[0]):
            return pid
    raise AssertionError("no daemon runs")


READ_ONLY_GROUPS = (
    'for m in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,bind,ro "$m" 2>/dev/null; done; exec "$@"'
)
SERVICE = """
set -e
mount --make-rprivate / && mkdir "$TMPDIR/root" && mount --rbind / "$TMPDIR/root"
mount --bind /tmp "$TMPDIR/root/tmp"
cd "$TMPDIR/root" && pivot_root . . && umount -l . && mount -o remount,bind,ro / && rmdir "$TMPDIR/root" && cd /
exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""
"""What deploy/systemd/collimate-sandboxd.service makes of a host: a read-only root, no capabilities nor new rights."""
FEW_RIGHTS = ["setpriv", "--inh-caps", "-all", "--bounding-set"]


@pytest.mark.parametrize(
    "kind",
    ["nobody", "root of a user namespace", "root that may not mount", "container", "no cgroups writable", "a service"],
)
def test_it_serves(everybodys: Everybodys, kind: str) -> None:
    command = {
        "nobody": NOBODY,
        "root of a user namespace": [*NOBODY, "unshare", "--user", "--map-root-user"],
        "root that may not mount": [*FEW_RIGHTS, "-all,+setuid,+setgid,+kill,+chown,+dac_override,+fowner"],
        "container": everybodys.container(),
        "no cgroups writable": ["unshare", "--mount", "sh", "-c", READ_ONLY_GROUPS, "sh"],
        "a service": ["unshare", "--mount", "sh", "-c", SERVICE, "sh"],
    }[kind]
    try:
        with one_core():
            own = start_daemon(command=command, python=everybodys.python, env=everybodys.env)
    except NoIsolation as exc:
        pytest.skip(f"no isolated sandboxes on this machine: {exc}")
    path = own.socket_path
    pid = daemon_process(own.pid)
    try:
        health = call(path, "GET", "/v1/health")[1]
        assert (health["status"], health["isolation"]) == ("ok", "namespaces")
        if kind in ("container", "no cgroups writable"):
            assert health["cgroups"] == "none"
        assert (health["cgroups"] != "none") or health["notes"]
        said = code(path, "import os; print(os.getuid(), os.listdir('/box'), os.getpid() < 10)")
        assert said["stdout"] == "1000 [] True\n"
        assert "CapEff:\t0000000000000000" in run(path, command="cat /proc/self/status")["stdout"]
        refused = "touch /proc/sys/kernel/core_pattern || echo x > /proc/sys/kernel/core_pattern; echo $?"
        assert run(path, command=refused)["stdout"].splitlines()[-1] != "0"
        assert run(path, command="sleep 60", timeout_seconds=1)["exit_code"] == -1
        assert code(path, "x = []\nwhile True: x.append(bytearray(16 << 20))")["exit_code"] in (1, 137)
        status, created = call(path, "POST", "/v1/sessions", {"template_id": "py"})
        assert status == 201, created
        session = created["session_id"]
        session_exec(path, session, command="echo kept > f; sleep 300 &")
        assert session_exec(path, session, code="print(open('f').read())")["stdout"] == "kept\n\n"
        assert call(path, "DELETE", f"/v1/sessions/{session}")[0] == 200
        below = descendants(pid)
        os.kill(pid, signal.SIGTERM)
        assert own.process.wait(60) == 0, own.log.read_text()
        eventually(lambda: not any(os.path.exists(f"/proc/{one}") for one in below), "every process gone")
        assert os.listdir(everybodys.temporary) == []
        assert not os.path.lexists(path)
        assert "Traceback" not in own.log.read_text()
    finally:
        if own.process.poll() is None:
            own.process.kill()
            own.process.wait()
        shutil.rmtree(own.folder, ignore_errors=True)


NO_USER_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no user namespaces", "sysctl -w user.max_user_namespaces"),
        ("a container whose filter refuses namespaces", "seccomp=unconfined"),
        ("a container with a covered /proc", "systempaths=unconfined"),
        ("a container's root without rights", "docker run --user"),
        ("root without rights", "docker run --user"),
    ],
)
def test_it_refuses_and_says_what_to_do(everybodys: Everybodys, kind: str, said: str) -> None:
    filters = Path(everybodys.temporary).parent / "filter"
    filters.write_bytes(seccomp.build_filters(seccomp.ARCHITECTURES[os.uname().machine]).seal)
    with_filter = ["bash", "-c", f'exec 9<{filters}; exec "$@"', "bash"]
    command = {
        "no user namespaces": [*NOBODY, "unshare", "--user", "--map-root-user", "sh", "-c", NO_USER_NAMESPACES, "sh"],
        "a container whose filter refuses namespaces": [*with_filter, *everybodys.container("--seccomp", "9")],
        "a container with a covered /proc": everybodys.container("--ro-bind", "/proc/sys", "/proc/sys"),
        "a container's root without rights": everybodys.container("--uid", "0", "--gid", "0"),
        "root without rights": [*FEW_RIGHTS, "-all"],
    }[kind]
    served = everybodys.launch(command)
    assert served.returncode == 69, served.stderr
    assert said in served.stderr
    assert "Traceback" not in served.stderr
    checked = everybodys.launch(command, "--check", "--json")
    assert checked.returncode == 2, checked.stderr
    report = json.loads(checked.stdout)
    assert report["serves"] is False
    wanting = [finding for finding in report["findings"] if finding["state"] in ("missing", "doubtful")]
    assert any(said in finding["remedy"] for finding in wanting), report
    assert said in report["trial"]["problem"]
    assert os.listdir(everybodys.temporary) == []


def test_check_brings_up_a_jail_and_leaves_nothing() -> None:
    """With this interpreter, wherever it lives."""
    answer = subprocess.run(
        [sys.executable, "-m", MODULE, "--check", "--template", "other"], capture_output=True, text=True, timeout=300
    )
    if answer.returncode == 2:
        pytest.skip(f"no isolated sandboxes on this machine: {answer.stdout}")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.endswith("\nwould serve\n")
    assert "its first exec took" in answer.stdout
    assert "MISSING" not in answer.stdout
    for name in (
        "kernel",
        "architecture",
        "user namespaces",
        "container",
        "control groups",
        "bubblewrap",
        "interpreter",
    ):
        assert f"  {name} " in answer.stdout


def test_check_refuses_an_interpreter_that_is_none() -> None:
    command = [sys.executable, "-m", MODULE, "--check", "--json", "--interpreter", "/nowhere/python"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 2, answer.stderr
    (found,) = (finding for finding in json.loads(answer.stdout)["findings"] if finding["name"] == "interpreter")
    assert found["state"] == "missing"
