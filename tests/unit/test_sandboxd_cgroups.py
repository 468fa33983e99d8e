"""Control groups: what the texts of /proc say, and the folders that are made of it."""

from __future__ import annotations

import errno
import io
import os
import shutil
from pathlib import Path

import pytest

from collimate_rl.sandboxd import cgroups
from collimate_rl.sandboxd.cgroup_layout import Layout, detect
from collimate_rl.sandboxd.cgroups import PREFIX, FolderCgroups, NoCgroups, open_cgroups, sweep_stale

MOUNT = "31 23 0:28 {root} {point} rw,relatime shared:9 - {kind} {source} rw,{options}"


def mount(point: str, options: str, *, kind: str = "cgroup", root: str = "/") -> str:
    return MOUNT.format(root=root, point=point, kind=kind, source=kind, options=options)


V1_MOUNTS = "\n".join(
    [
        "22 27 0:21 / /proc rw,relatime - proc proc rw",
        mount("/sys/fs/cgroup/memory", "memory"),
        mount("/sys/fs/cgroup/pids", "pids"),
        mount("/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"),
    ]
)


@pytest.mark.parametrize(
    ("own", "mounts", "expected"),
    [
        pytest.param(
            "8:pids:/\n4:memory:/api/1a5c\n1:cpu,cpuacct:/\n0::/",
            V1_MOUNTS,
            Layout(
                kind="v1",
                folders=("/sys/fs/cgroup/memory/api/1a5c", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu,cpuacct"),
            ),
            id="hierarchies with different paths",
        ),
        pytest.param(
            "8:pids:/\n4:memory:/api/1a5c\n0::/",
            V1_MOUNTS + "\n" + mount("/sys/fs/cgroup/unified", "nsdelegate", kind="cgroup2"),
            Layout(kind="v1", folders=("/sys/fs/cgroup/memory/api/1a5c", "/sys/fs/cgroup/pids")),
            id="hybrid: the controllers are where the hierarchies are",
        ),
        pytest.param(
            "1:cpu,cpuacct:/\n0::/",
            mount("/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct") + "\n" + mount("/sys/fs/cgroup", "x", kind="cgroup2"),
            Layout(kind="v2", folders=("/sys/fs/cgroup",)),
            id="hybrid: only what matters less is in version 1",
        ),
        pytest.param(
            "0::/user.slice/user-1000.slice/app.scope",
            mount("/sys/fs/cgroup", "nsdelegate", kind="cgroup2"),
            Layout(kind="v2", folders=("/sys/fs/cgroup/user.slice/user-1000.slice/app.scope",)),
            id="unified",
        ),
        pytest.param(
            "4:memory:/docker/abc/inner\n3:pids:/docker/abc",
            mount("/sys/fs/cgroup/memory", "memory", root="/docker/abc")
            + "\n"
            + mount("/sys/fs/cgroup/pids", "pids", root="/docker/abc"),
            Layout(kind="v1", folders=("/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/pids")),
            id="a container without a cgroup namespace",
        ),
        pytest.param(
            "4:memory:/\n0::/",
            mount("/sys/fs/cgroup/memory", "memory"),
            Layout(kind="none"),
            id="only half of version 1",
        ),
        pytest.param("0::/", "22 27 0:21 / /proc rw - proc proc rw", Layout(kind="none"), id="nothing mounted"),
        pytest.param("", mount("/sys/fs/cgroup", "x", kind="cgroup2"), Layout(kind="none"), id="no own group"),
        pytest.param(
            "0::/a",
            mount("/sys/fs/c\\040g", "x", kind="cgroup2"),
            Layout(kind="v2", folders=("/sys/fs/c g/a",)),
            id="space",
        ),
    ],
)
def test_detect(own: str, mounts: str, expected: Layout) -> None:
    assert detect(own, mounts) == expected


@pytest.fixture
def fake_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """mkdir in a group makes its files, rmdir needs no emptiness of them: as the kernel's file system does."""
    real_mkdir, real_rmdir = os.mkdir, os.rmdir

    def mkdir(path: str, mode: int = 0o777) -> None:
        real_mkdir(path, mode)
        for name in ("memory.limit_in_bytes", "memory.max", "memory.swap.max", "pids.max", "cgroup.procs",
                     "cgroup.subtree_control"):  # fmt: skip
            Path(path, name).write_text("")

    def rmdir(path: str) -> None:
        for entry in os.scandir(path):
            if entry.is_file():
                os.unlink(entry.path)
        real_rmdir(path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "rmdir", rmdir)


@pytest.mark.usefixtures("fake_kernel")
def test_version_1_groups(tmp_path: Path) -> None:
    for hierarchy in ("memory", "pids"):
        Path.mkdir(tmp_path / hierarchy)
    layout = Layout(kind="v1", folders=(str(tmp_path / "memory"), str(tmp_path / "pids")))
    groups = open_cgroups(layout, "1-2-3")
    assert groups.kind == "v1"
    group = groups.create(memory_bytes=512 << 20, pids=64)
    group.add(4711)
    (memory,) = (tmp_path / "memory" / f"{PREFIX}1-2-3").glob("f*")
    (pids,) = (tmp_path / "pids" / f"{PREFIX}1-2-3").glob("f*")
    assert (memory / "memory.limit_in_bytes").read_text() == str(512 << 20)
    assert (pids / "pids.max").read_text() == "64"
    assert [(folder / "cgroup.procs").read_text() for folder in (memory, pids)] == ["4711", "4711"]
    group.release()
    assert groups.create(memory_bytes=512 << 20, pids=64) is group
    assert groups.create(memory_bytes=512 << 20, pids=65) is not group


@pytest.mark.usefixtures("fake_kernel")
@pytest.mark.parametrize("there", [True, False])
def test_version_1_weighs_forks_alike_where_it_may(tmp_path: Path, there: bool) -> None:
    hierarchies = ("memory", "pids", "cpu")
    for hierarchy in hierarchies if there else hierarchies[:2]:
        Path.mkdir(tmp_path / hierarchy)
    layout = Layout(kind="v1", folders=tuple(str(tmp_path / hierarchy) for hierarchy in hierarchies))
    groups = open_cgroups(layout, "1-2-3")
    assert groups.kind == "v1"
    groups.create(memory_bytes=1 << 20, pids=9).add(4711)
    (pids,) = (tmp_path / "pids" / f"{PREFIX}1-2-3").glob("f*")
    assert (pids / "pids.max").read_text() == "9"
    entered = [path.read_text() for path in tmp_path.glob(f"*/{PREFIX}1-2-3/f*/cgroup.procs")]
    assert entered == ["4711"] * (3 if there else 2)


@pytest.mark.usefixtures("fake_kernel")
def test_version_2_takes_the_nearest_ancestor_that_hands_the_controllers_down(tmp_path: Path) -> None:
    own = tmp_path / "slice" / "unit"
    os.makedirs(own)
    Path(tmp_path, "cgroup.subtree_control").write_text("cpu memory pids")
    Path(tmp_path, "slice", "cgroup.subtree_control").write_text("memory pids")
    Path(own, "cgroup.subtree_control").write_text("")
    groups = open_cgroups(Layout(kind="v2", folders=(str(own),)), "1-2-3")
    assert groups.kind == "v2"
    home = tmp_path / "slice" / f"{PREFIX}1-2-3"
    assert (home / "cgroup.subtree_control").read_text() == "+memory +pids+cpu"
    groups.create(memory_bytes=1 << 20, pids=9)
    (folder,) = home.glob("f2")
    assert (folder / "memory.max").read_text() == str(1 << 20)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "9"


@pytest.mark.usefixtures("fake_kernel")
def test_version_2_moves_a_lone_daemon_into_a_leaf(tmp_path: Path) -> None:
    Path(tmp_path, "cgroup.subtree_control").write_text("")
    Path(tmp_path, "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert open_cgroups(Layout(kind="v2", folders=(str(tmp_path),)), "1-2-3").kind == "v2"
    assert (tmp_path / "collimate-daemon" / "cgroup.procs").read_text() == str(os.getpid())
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids+cpu"


def test_none_where_there_are_none_or_they_are_not_ours_to_make(tmp_path: Path) -> None:
    assert isinstance(open_cgroups(Layout(kind="none"), "1-2-3"), NoCgroups)
    nowhere = str(tmp_path / "missing")
    assert isinstance(open_cgroups(Layout(kind="v1", folders=(nowhere, nowhere)), "1-2-3"), NoCgroups)
    Path(tmp_path, "cgroup.subtree_control").write_text("cpu")
    Path(tmp_path, "cgroup.procs").write_text("1\n2\n")
    assert isinstance(open_cgroups(Layout(kind="v2", folders=(str(tmp_path),)), "1-2-3"), NoCgroups)


@pytest.mark.usefixtures("fake_kernel")
def test_only_the_groups_of_the_dead_are_swept(tmp_path: Path) -> None:
    for name in (f"{PREFIX}1-1-1", f"{PREFIX}2-2-2", "somebody-else"):
        os.mkdir(str(tmp_path / name))
    os.mkdir(str(tmp_path / f"{PREFIX}1-1-1" / "f1"))
    sweep_stale([str(tmp_path), str(tmp_path / "missing")], lambda mark: mark == "2-2-2")
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert left == [f"{PREFIX}2-2-2", "somebody-else"]


@pytest.mark.usefixtures("fake_kernel")
def test_no_more_than_enough_empty_groups_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_KEPT", 2)
    groups = FolderCgroups("v2", (str(tmp_path),))
    made = [groups.create(memory_bytes=1, pids=1) for _ in range(4)]
    for group in made:
        group.release()
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
    groups.close()
    assert not tmp_path.exists()


@pytest.mark.usefixtures("fake_kernel")
def test_only_a_brief_group_keeps_its_files_open_and_none_when_all_is_over(tmp_path: Path) -> None:
    def held() -> int:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(str(tmp_path) in os.readlink(link) for link in links if os.path.islink(link))

    groups = FolderCgroups("v1", (str(tmp_path / "memory"), str(tmp_path / "pids")))
    for hierarchy in ("memory", "pids"):
        Path.mkdir(tmp_path / hierarchy)
    brief, lasting, other = (groups.create(memory_bytes=1, pids=1, brief=brief) for brief in (True, False, True))
    for group in (brief, lasting, other):
        group.add(4711)
    assert held() == 4
    brief.release()
    lasting.release()
    assert groups.create(memory_bytes=1, pids=1) is lasting
    assert groups.create(memory_bytes=1, pids=1, brief=True) is brief
    brief.release()
    assert held() == 4
    groups.close()
    assert held() == 2
    other.release()
    assert held() == 0


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_group_that_is_not_this_users_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    attempts: list[str] = []

    def refuse(folder: str) -> None:
        attempts.append(folder)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rmdir", refuse)
    cgroups.sweep(str(tmp_path))
    assert attempts == [str(tmp_path)]


def test_a_group_that_goes_while_it_is_read_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two daemons that start sweep what a third one left: the kernel answers ENODEV where the other was faster."""

    class Vanished(io.StringIO):
        def __next__(self) -> str:
            shutil.rmtree(tmp_path / "g")
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    (tmp_path / "g").mkdir()
    monkeypatch.setattr(cgroups, "open", lambda _path: Vanished(), raising=False)
    cgroups.sweep(str(tmp_path / "g"))
    assert not (tmp_path / "g").exists()


def test_processes_of_another_user_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.procs").write_text("12\n13\n")
    asked: list[int] = []

    def refuse(pid: int, _signal: int) -> None:
        asked.append(pid)
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(cgroups, "_remove_folder", lambda _folder: False)
    cgroups.sweep(str(tmp_path))
    assert asked == [12, 13]


def test_who_was_killed_below_its_own_limit_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nmax 3\noom 1\noom_kill 1\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 1\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text(f"{64 << 20}\n")
    for kind in ("v2", "v1"):
        folder = str(tmp_path)
        group = cgroups._FolderGroup(FolderCgroups(kind, (folder,)), (folder, folder), (64 << 20, 1))
        # At its own limit first; then once more, and that limit was not reached again.
        assert not group.is_cut_short()
        assert not group.is_cut_short()
        for name in ("events", "oom_control"):
            path = tmp_path / f"memory.{name}"
            path.write_text(path.read_text().replace("oom_kill 1", "oom_kill 2"))
        (tmp_path / "memory.max_usage_in_bytes").write_text(f"{50 << 20}\n")
        assert group.is_cut_short()
        assert not group.is_cut_short()
        for name in ("events", "oom_control"):
            path = tmp_path / f"memory.{name}"
            path.write_text(path.read_text().replace("oom_kill 2", "oom_kill 1"))
        (tmp_path / "memory.max_usage_in_bytes").write_text(f"{64 << 20}\n")
    assert not NoCgroups().create(memory_bytes=1, pids=1).is_cut_short()


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_that_an_earlier_fork_reached_the_limit_says_nothing_of_the_next(kind: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    group = cgroups._FolderGroup(FolderCgroups(kind, (folder,)), (folder, folder), (64 << 20, 1, False))

    def happen(kills: int, reached: int, peak: int) -> None:
        (tmp_path / "memory.events").write_text(f"max {reached}\noom_kill {kills}\n")
        (tmp_path / "memory.oom_control").write_text(f"oom_kill {kills}\n")
        (tmp_path / "memory.max_usage_in_bytes").write_text(f"{peak}\n")

    # A child of the first one's was killed at the limit, which nobody asked about; the second gets less than that.
    happen(kills=1, reached=1, peak=64 << 20)
    group.release()
    if kind == "v1":
        assert (tmp_path / "memory.max_usage_in_bytes").read_text().startswith("0")
    happen(kills=2, reached=1, peak=50 << 20)
    assert group.is_cut_short()
    happen(kills=3, reached=2, peak=64 << 20)
    assert not group.is_cut_short()
