"""deploy/systemd: the units pass systemd's own check, start what there is, and stop it as it wants to be stopped."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collimate_rl.sandboxd.config import Limits
from tests.fixtures.deployments import DEPLOY, parsed, settings
from worker.__main__ import EXIT_REFUSED
from worker.parting import ALL_S, ANSWER_S
from worker.supervisor import KILL_WAIT_S, MONITOR_WAIT_S

UNITS = {path.stem.removeprefix("collimate-"): path for path in sorted((DEPLOY / "systemd").glob("*.service"))}
HANGING_S = KILL_WAIT_S + ALL_S + 2 * ANSWER_S + MONITOR_WAIT_S
"""How much longer than its grace a worker's stop may take when the server and the daemon hang."""
PYTHON = "/opt/collimate/bin/python"


def directives(name: str) -> dict[str, str]:
    """What `[Unit]`, `[Service]` and `[Install]` say; of what is said twice, the last."""
    lines = UNITS[name].read_text(encoding="utf-8").splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    return dict(pairs)


def command(name: str) -> dict[str, object]:
    words = shlex.split(directives(name)["ExecStart"].replace("%d/", "/run/credentials/"))
    assert words[:2] == [PYTHON, "-m"]
    return parsed(words[2:])


def environment(name: str) -> dict[str, str]:
    lines = (DEPLOY / "systemd" / f"{name}.env.example").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_there_is_one_for_each_program() -> None:
    assert set(UNITS) == {"sandboxd", "worker", "dashboard"}


@pytest.mark.parametrize("name", UNITS)
def test_it_comes_back_and_is_stopped_in_order(name: str) -> None:
    found = directives(name)
    assert (found["Restart"], found["KillMode"], found["Type"]) == ("always", "mixed", "exec")
    # In [Unit]: systemd warns of it elsewhere, and goes on with its limit of five starts in ten seconds.
    assert "\nStartLimitIntervalSec=0\n" in UNITS[name].read_text(encoding="utf-8").split("[Service]")[0]
    assert found["WantedBy"] == "multi-user.target"
    if name != "sandboxd":
        assert found["RestartPreventExitStatus"] == str(EXIT_REFUSED)


def test_a_stop_has_the_time_that_it_may_take() -> None:
    told = settings(command("worker"), environment("worker")).settings
    assert int(directives("worker")["TimeoutStopSec"]) >= told.grace + HANGING_S
    assert int(directives("sandboxd")["TimeoutStopSec"]) > Limits().drain_limit_s
    assert "collimate-sandboxd.service" in directives("worker")["After"].split()


def test_the_worker_finds_its_daemon_and_may_open_its_socket() -> None:
    daemon, worker = command("sandboxd"), command("worker")
    assert worker["backend"] == f"unix:{daemon['socket']}"
    assert daemon["socket_mode"] == "660"
    assert directives("worker")["Group"] == directives("sandboxd")["Group"]
    assert str(daemon["socket"]).startswith(f"/run/{directives('sandboxd')['RuntimeDirectory']}/")
    assert directives("sandboxd")["RuntimeDirectoryMode"] == "0750"
    assert worker["state_dir"] == f"/run/{directives('worker')['RuntimeDirectory']}"


def test_what_the_daemon_needs_as_root_is_told_beside_the_line_that_takes_it_away() -> None:
    advice = UNITS["sandboxd"].read_text(encoding="utf-8").split("[Unit]")[0]
    assert directives("sandboxd")["CapabilityBoundingSet"] == ""
    assert "User=root and CapabilityBoundingSet=~ " in advice


def test_the_daemon_keeps_what_its_jails_are_made_with() -> None:
    found = directives("sandboxd")
    assert (found["Delegate"], found["OOMPolicy"]) == ("yes", "continue")
    refused = "RestrictNamespaces ProtectKernelTunables ProtectKernelLogs ProtectControlGroups ProtectProc ProcSubset"
    assert not set(refused.split()) & set(found)
    assert not {"SystemCallFilter", "MemoryDenyWriteExecute", "PrivateUsers", "PrivateNetwork"} & set(found)


@pytest.mark.parametrize("name", UNITS)
def test_no_program_gets_rights_that_it_does_not_need(name: str) -> None:
    found = directives(name)
    assert (found["NoNewPrivileges"], found["CapabilityBoundingSet"], found["ProtectSystem"]) == ("yes", "", "strict")
    assert found.get("User", "dynamic") not in ("root", "")
    assert ("User" in found) != (found.get("DynamicUser") == "yes")


@pytest.mark.parametrize("name", ["worker", "dashboard"])
def test_a_password_is_in_no_command_line_and_tls_is_checked(name: str) -> None:
    url = settings({}, environment(name)).settings.redis_url
    assert re.fullmatch(rf"rediss://{name}:PASSWORD@[^?]+\?ssl_ca_certs=\S+", url)
    assert "://" not in directives(name)["ExecStart"]
    assert directives(name)["EnvironmentFile"] == f"/etc/collimate/{name}.env"


def here(folder: Path) -> list[str]:
    """Copies that name an interpreter of this machine, since systemd looks whether there is one."""
    made = []
    for path in UNITS.values():
        copy = folder / path.name
        copy.write_text(path.read_text(encoding="utf-8").replace(PYTHON, sys.executable))
        made.append(str(copy))
    return made


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *here(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # It reads the machine's own units too, and tells of theirs.
    said = [line for line in done.stderr.splitlines() if "collimate-" in line]
    assert (done.returncode, said) == (0, [])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_notices_what_is_wrong(tmp_path: Path) -> None:
    """So that the test above can fail: a directive that there is not is told."""
    copy = Path(here(tmp_path)[0])
    copy.write_text(copy.read_text().replace("KillMode=mixed", "KillMode=all-of-them"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=120, check=False
    )
    assert "all-of-them" in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
@pytest.mark.parametrize(("name", "exposure"), [("worker", 20), ("dashboard", 20), ("sandboxd", 60)])
def test_systemd_calls_the_exposure_low(tmp_path: Path, name: str, exposure: int) -> None:
    copy = next(path for path in here(tmp_path) if path.endswith(f"-{name}.service"))
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={exposure}", copy],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-400:] + done.stderr
