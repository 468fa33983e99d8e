"""`CollimateProvider` under both OpenEnv distributions: real clients, and a real server forked warm in each session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.fences import ROOT
from tests.fixtures.local_gateways import RunningGateway, start_gateway
from tests.fixtures.openenv_venvs import DISTRIBUTIONS
from tests.fixtures.sandbox_daemon import NoIsolation, RunningDaemon, start_daemon

SCRIPT = ROOT / "tests" / "fixtures" / "openenv_rollouts.py"
EXAMPLE = ROOT / "examples" / "openenv"
TIMEOUT_S = 240.0
CONFIG = """
[templates.coding-env]
interpreter = "{python}"
entry = "coding_env.server:main"
expose_ports = [8000]
data = {{ "/srv/coding-env" = "{data}" }}
env = {{ PYTHONPATH = "/srv/coding-env" }}

[templates.unhealthy]
entry = ["python3", "-m", "http.server", "8000"]
expose_ports = [8000]
"""


@dataclass(frozen=True, kw_only=True)
class World:
    """A daemon with the example's template, and a gateway in front of it; `python` has the distribution's clients."""

    distribution: str
    python: Path
    daemon: RunningDaemon
    gateway: RunningGateway

    def run(self, job: str, backend: str) -> dict[str, Any]:
        """A job of openenv_rollouts, and its account."""
        done = subprocess.run(
            [str(self.python), "-W", "error::ResourceWarning", str(SCRIPT), job, backend],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.daemon.log.read_text(errors="replace")
        account: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert account["version"] == self.distribution.partition("==")[2]
        return account

    @property
    def address(self) -> str:
        return f"unix:{self.daemon.socket_path}"


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def world(
    request: pytest.FixtureRequest, openenv_pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("openenv")
    data = folder / "data"
    shutil.copytree(EXAMPLE, data)
    config = folder / "collimate.toml"
    python = openenv_pythons[request.param]
    config.write_text(CONFIG.format(python=python, data=data))
    with ExitStack() as cleanup:
        try:
            daemon = start_daemon("--config", str(config))
        except NoIsolation as exc:
            pytest.skip(f"no isolated sandboxes on this machine: {exc}")
        cleanup.callback(shutil.rmtree, daemon.folder, ignore_errors=True)
        cleanup.callback(daemon.stop)
        gateway = start_gateway(cleanup, backend=f"unix:{daemon.socket_path}")
        yield World(distribution=request.param, python=python, daemon=daemon, gateway=gateway)


def as_they_should_be(episodes: list[Any]) -> None:
    """Each environment kept what it was told, and saw only its own files."""
    assert episodes == [[0, [str(2 * n), str(n)], f"episode-{n}", 2] for n in range(len(episodes))]


def test_24_environments_at_once_and_no_session_left(world: World) -> None:
    account = world.run("wide", world.address)
    assert account["at_once"] == 24
    assert len(account["episodes"]) == 24
    as_they_should_be(account["episodes"])
    assert account["left"] == 0


def test_environments_that_share_a_loop(world: World) -> None:
    account = world.run("one_loop", world.address)
    as_they_should_be(account["episodes"])
    assert account["left"] == 0


def test_without_a_loop(world: World) -> None:
    account = world.run("synchronous", world.address)
    assert account["shown"] == "42\n"
    assert account["left"] == 0


def test_over_a_gateway_through_forwarded_ports(world: World) -> None:
    account = world.run("one_loop", f"{world.gateway.key('pro')}@{world.gateway.base_url}")
    as_they_should_be(account["episodes"])
    assert account["left"] == 0


def test_what_cannot_be_had_is_raised_and_leaves_nothing(world: World) -> None:
    account = world.run("failures", world.address)
    assert account["fates"] == {
        "unknown": ["CollimateError", "no_template"],
        "unhealthy": ["TimeoutError", None],
        "unexposed": ["CollimateError", "port_not_exposed"],
        "other_port": ["CollimateError", "port_not_exposed"],
    }
    assert account["left"] == 0
