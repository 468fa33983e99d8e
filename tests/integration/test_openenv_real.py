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

from tests.fixtures.fences import ROOT, Fence, fences
from tests.fixtures.local_gateways import start_gateway
from tests.fixtures.openenv_venvs import DISTRIBUTIONS
from tests.fixtures.sandbox_daemon import NoIsolation, one_core, start_daemon

SCRIPT = ROOT / "tests" / "fixtures" / "openenv_rollouts.py"
EXAMPLE = ROOT / "examples" / "openenv"
TIMEOUT_S = 240.0
WIDTHS = dict(zip(DISTRIBUTIONS, (24, 8), strict=True))
"""How many environments live at once: of the distribution that the example is for, as many as a trainer has."""
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
    """What one distribution's clients did (see openenv_rollouts) on the daemon that serves at `socket_path`."""

    python: Path
    socket_path: str
    accounts: dict[str, Any]
    log: Path
    width: int

    def account(self, job: str) -> dict[str, Any]:
        account: dict[str, Any] = self.accounts[job]
        assert "failed" not in account, account["failed"] + self.log.read_text(errors="replace")
        return account


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def world(
    request: pytest.FixtureRequest, openenv_pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A daemon with the example's template, a gateway in front of it, and all jobs done on them."""
    distribution: str = request.param
    python = openenv_pythons[distribution]
    folder = tmp_path_factory.mktemp("openenv")
    shutil.copytree(EXAMPLE, folder / "data")
    config = folder / "collimate.toml"
    config.write_text(CONFIG.format(python=python, data=folder / "data"))
    with ExitStack() as cleanup:
        try:
            with one_core():
                daemon = start_daemon("--config", str(config), "--max-inflight", "4")
        except NoIsolation as exc:
            pytest.skip(f"no isolated sandboxes on this machine: {exc}")
        cleanup.callback(shutil.rmtree, daemon.folder, ignore_errors=True)
        cleanup.callback(daemon.stop)
        address = f"unix:{daemon.socket_path}"
        gateway = start_gateway(cleanup, backend=address)
        jobs = {
            **dict.fromkeys(("wide", "one_loop", "synchronous", "failures"), address),
            **{name: f"{gateway.key('pro')}@{gateway.base_url}" for name in ("forwarded", "unknown_key")},
            "refused": f"{gateway.key('demo')}@{gateway.base_url}",
        }
        done = subprocess.run(
            [str(python), str(SCRIPT), *(f"{job}={where}" for job, where in jobs.items())],
            env={**os.environ, "PYTHONPATH": str(ROOT), "WIDTH": str(WIDTHS[distribution])},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + daemon.log.read_text(errors="replace")
        accounts = json.loads(done.stdout.splitlines()[-1])
        assert accounts["version"] == distribution.partition("==")[2]
        yield World(
            python=python,
            socket_path=daemon.socket_path,
            accounts=accounts,
            log=daemon.log,
            width=WIDTHS[distribution],
        )


def as_they_should_be(episodes: list[Any]) -> None:
    """Each environment kept what it was told, and saw only its own files."""
    assert episodes == [[0, [str(2 * n), str(n)], f"episode-{n}", 2] for n in range(len(episodes))]


def test_many_environments_at_once_and_no_session_left(world: World) -> None:
    account = world.account("wide")
    assert account["at_once"] == len(account["episodes"]) == world.width
    as_they_should_be(account["episodes"])
    assert account["left"] == 0


@pytest.mark.parametrize("job", ["one_loop", "forwarded"])
def test_environments_that_share_a_loop_on_a_daemon_and_over_a_gateways_forwarded_ports(world: World, job: str) -> None:
    account = world.account(job)
    assert len(account["episodes"]) == 4
    as_they_should_be(account["episodes"])
    assert account["left"] == 0


def test_without_a_loop(world: World) -> None:
    account = world.account("synchronous")
    assert account["shown"] == "42\n"
    assert account["left"] == 0


def test_what_cannot_be_had_is_raised_and_leaves_nothing(world: World) -> None:
    account = world.account("failures")
    assert account["fates"] == {
        "unknown": ["CollimateError", "no_template"],
        "unhealthy": ["TimeoutError", None],
        "unexposed": ["CollimateError", "port_not_exposed"],
        "other_port": ["CollimateError", "port_not_exposed"],
    }
    assert account["left"] == 0


@pytest.mark.parametrize(("job", "code"), [("refused", "forbidden"), ("unknown_key", "unauthorized")])
def test_what_a_gateway_refuses_is_raised_and_leaves_nothing(world: World, job: str, code: str) -> None:
    account = world.account(job)
    assert account["fate"] == ["GatewayError", code]
    assert account["left"] == 0


def run(world: World, folder: Path, *command: str, **env: str) -> str:
    """A script under the distribution's Python: what it printed."""
    with one_core():  # a daemon of its own has one warm interpreter then: importing a server takes seconds
        done = subprocess.run(
            [str(world.python), *command],
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr + world.log.read_text(errors="replace")
    return done.stdout


@pytest.mark.parametrize("world", DISTRIBUTIONS[:1], indirect=True)
def test_the_example(world: World, tmp_path: Path) -> None:
    printed = run(world, tmp_path, str(EXAMPLE / "run.py"), "--width", "3")
    assert printed == "rewards: 1.0 0.0 0.5\nsessions left: 0\n"


@pytest.mark.parametrize("world", DISTRIBUTIONS[:1], indirect=True)
@pytest.mark.parametrize("fence", [fence for fence in fences() if fence.run == "openenv"], ids=str)
def test_snippets_that_need_openenv(world: World, fence: Fence, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(fence.code)
    printed = run(world, tmp_path, "snippet.py", COLLIMATE_SERVE_SOCKET=world.socket_path)
    assert fence.prints is not None
    assert printed == fence.prints, f"{fence} says that it prints otherwise"
