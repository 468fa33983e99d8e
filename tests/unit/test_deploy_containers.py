"""deploy/docker: the image and the compose file pass their checkers, copy what there is, and start what there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from collimate_rl.sandboxd.config import Limits
from tests.fixtures.acl_users import USERS
from tests.fixtures.deployments import DEPLOY, parsed, settings
from tests.fixtures.fences import ROOT

DOCKER = DEPLOY / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("sandboxd", "worker", "dashboard")


def instructions(name: str) -> list[str]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return [line.split(" ", 1)[1].strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


def seconds(text: str) -> int:
    assert re.fullmatch(r"\d+s", text), text
    return int(text[:-1])


def test_the_linter_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("no hadolint in this environment")
    done = subprocess.run(
        [hadolint, "--no-color", DOCKER / "Dockerfile"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_everything_that_is_copied_is_there_and_let_in() -> None:
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [word for line in instructions("COPY") if not line.startswith("--from") for word in line.split()[:-1]]
    assert len(copied) == 6
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    listed = re.search(r"^packages = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    assert listed is not None
    assert {name.partition(".")[0] for name in re.findall(r'"([\w.]+)"', listed[1])} <= set(copied)


def test_it_runs_as_nobody_special() -> None:
    assert instructions("USER") == ["10001:10001"]
    made = dict(re.findall(r"useradd --uid (\d+) --gid 10001 [^\n]*?(collimate-\w+)", DOCKERFILE))
    assert made == {"10001": "collimate-worker", "10002": "collimate-sandbox"}
    extras = re.search(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    assert extras is not None
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(extras[1].split(",")) <= set(known)


def test_its_own_command_is_one_of_ours() -> None:
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["python", "-m"]
    assert parsed(json.loads(instructions("CMD")[0]))["command"] == "run"


def test_compose_takes_the_file() -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="no compose-spec in this environment")
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")
    made = compose_spec.PyOptions(apply_merge=True).from_yaml(text)
    made.validate()
    assert set(made.service_names()) == {"redis", *OURS}
    with pytest.raises(Exception, match="mem_limits"):
        compose_spec.PyOptions(apply_merge=True).from_yaml(text.replace("mem_limit:", "mem_limits:")).validate()


@pytest.mark.parametrize("name", OURS)
def test_a_services_command_is_one_of_ours(name: str) -> None:
    options = parsed(SERVICES[name]["command"])
    if name == "sandboxd":
        assert options["socket_mode"] == "660"
        return
    environ = {
        key: re.sub(r"\$\{\w+(?::[-?]([\w. -]*))?\}", "x", value)
        for key, value in SERVICES[name]["environment"].items()
    }
    told = settings(options, environ).settings
    assert told.redis_url == f"redis://{name}:x@redis:6379/0"
    if name == "worker":
        daemon = parsed(SERVICES["sandboxd"]["command"])
        assert told.backend == f"unix:{daemon['socket']}"
        assert seconds(SERVICES[name]["stop_grace_period"]) >= told.grace + 18
        assert str(told.metrics_port) in SERVICES[name]["healthcheck"]["test"][-1]
    else:
        assert options["command"] == "dashboard"
        assert str(options["token_file"]).removeprefix("/run/secrets/") in SERVICES[name]["secrets"]
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{options['port']}:{options['port']}"]


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert "privileged" not in service
    assert "cap_add" not in service
    user = service.get("user", "10001:10001")
    assert not user.startswith("0")
    opened = {"seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"}
    assert set(service["security_opt"]) == (opened if name == "sandboxd" else {"no-new-privileges"})
    assert {"mem_limit", "restart", "healthcheck"} <= set(service)
    if name == "sandboxd":
        assert service["network_mode"] == "none"
        assert seconds(service["stop_grace_period"]) > Limits().drain_limit_s
    else:
        assert "queue" in service["networks"]
        assert COMPOSE["networks"]["queue"]["internal"] is True


def test_the_server_gets_its_files_and_every_password() -> None:
    redis = SERVICES["redis"]
    mounts = dict(mount.split(":")[:2] for mount in redis["volumes"])
    for source, target in mounts.items():
        if source.startswith("."):
            assert (DOCKER / source).exists()
            assert target in redis["entrypoint"][-1]
    assert redis["secrets"] == list(USERS)
    assert {secret for service in SERVICES.values() for secret in service.get("secrets", ())} == set(COMPOSE["secrets"])
    assert "--bind 0.0.0.0" in redis["entrypoint"][-1]
    assert "ports" not in redis


@pytest.mark.parametrize(
    ("password", "status"),
    [("0123456789abcdef", 0), ("with/slash-0123456789", 2), ("", 2)],
    ids=["hex", "slash", "empty"],
)
def test_the_environments_file(tmp_path: Path, password: str, status: int) -> None:
    script = tmp_path / "make-env.sh"
    script.write_text((DOCKER / "make-env.sh").read_text(encoding="utf-8"))
    (tmp_path / "secrets").mkdir()
    for user in USERS:
        (tmp_path / "secrets" / user).write_text(password + "\n")
    done = subprocess.run(["sh", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == status
    wanted = set(re.findall(r"\$\{(\w+):\?", (DOCKER / "compose.yaml").read_text(encoding="utf-8")))
    if status == 0:
        assert dict(line.split("=") for line in done.stdout.splitlines()) == dict.fromkeys(wanted, password)
    else:
        assert password == "" or password not in done.stderr
