"""The commands on a gateway, each run for real against the local one; live views are plain lines here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from collimate_rl.cli.app import app
from tests.fixtures.local_gateways import RunningGateway


class Shell:
    """`collimate` with a key in the environment."""

    def __init__(self, gateway: RunningGateway, tier: str = "pro") -> None:
        self.gateway = gateway
        self.key = gateway.key(tier)
        self.env: dict[str, str | None] = {
            "COLLIMATE_API_KEY": self.key,
            "COLLIMATE_BASE_URL": gateway.base_url,
            "COLUMNS": "200",
        }

    def __call__(self, *arguments: object, status: int = 0) -> Result:
        done = CliRunner(env=self.env).invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == status, (done.output, done.exception)
        assert "Traceback" not in done.output
        return done

    def json(self, *arguments: object, status: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status).stdout)

    def baked(self, *options: object) -> str:
        return str(self.json("bake", "--image", "python", "--width", 3, *options)["template"]["id"])


@pytest.fixture
def shell(local_gateway: RunningGateway) -> Shell:
    return Shell(local_gateway)


def test_images(shell: Shell) -> None:
    assert [row["id"] for row in shell.json("images")] == ["py", "python", "dkr-python311", "web"]
    assert "local/python" in shell("images").output


def test_bake_shows_the_phases_and_tries_execs(shell: Shell) -> None:
    options = ("--name", "mine", "--ready-cmd", "true", "--port", 8123, "--port", 8124, "--width", 20)
    done = shell("bake", "--image", "python", *options, "--cold-fraction", 0.5, "--max-exec", 3)
    lines = done.output.splitlines()
    phases = [found[1] for found in (re.match(r"mine \(tpl-\w+\): (\w+),", line) for line in lines) if found]
    assert phases[-1] == "Live"
    assert "3 sandboxes, 0 failed" in lines[-1]
    told = shell.json("bake", "--image", "python", *options, "--cold-fraction", 0.5, "--max-exec", 1)
    assert (told["template"]["phase"], told["template"]["declared"], told["execs"]["failed"]) == ("Live", 20, 0)


def test_a_bake_that_fails_is_one_line(shell: Shell) -> None:
    done = shell("bake", "--image", "nowhere.example/none:1", status=1)
    assert "no image 'nowhere.example/none:1'" in done.stderr
    done = shell("bake", "--image", "py", "--ready-cmd", "false", "--ready-http-timeout", 0.2, status=1)
    assert "failed to bake" in done.stderr


def test_a_bake_that_does_not_end_in_time(own_gateway: Callable[..., RunningGateway]) -> None:
    done = Shell(own_gateway(phase_s=30.0))("bake", "--image", "py", "--timeout", 0.1, status=1)
    assert "after 0.1 s" in done.stderr


def test_bakes_own_http_check_wins_over_its_command(shell: Shell) -> None:
    shell("bake", "--image", "web", "--ready-http", ":8000/", "--ready-cmd", "false", "--ready-http-timeout", 30)


def test_a_network_needs_pro_and_is_not_to_be_had_here(shell: Shell) -> None:
    assert "vsock-only" in shell("bake", "--image", "py", "--network", status=1).stderr
    assert "Pro feature" in Shell(shell.gateway, "demo")("bake", "--image", "py", "--network", status=2).stderr


def test_status(shell: Shell) -> None:
    template = shell.baked()
    assert f"({template}): Live" in shell("status", template).output
    assert shell.json("status", template)["id"] == template
    assert "there is no template" in shell("status", "nope", status=2).stderr


def test_fleet_once_and_until_converged(shell: Shell) -> None:
    first, second = shell.baked("--name", "a"), shell.baked("--name", "b")
    shell("fleet", "--until-converged", "--interval", 0.1, "--timeout", 60)
    told = shell.json("fleet")
    assert [one["id"] for one in told["templates"]] == [first, second]
    assert "1 templates on 1 nodes: 3 of 3 forks" in shell("fleet", "--template", first).output
    assert "web web Live" in shell("fleet", "--include-public").output
    looks = shell("fleet", "--watch", "--interval", 0.05, "--timeout", 0.2, "--json").stdout.splitlines()
    assert len(looks) > 1
    assert all(json.loads(look)["declared"] == 6 for look in looks)
    assert "missing: nope" in shell("fleet", "--template", "nope", status=1).output


def test_burst_leaves_nothing_behind(shell: Shell) -> None:
    done = shell("burst", "py", "-n", 30, "-c", 6)
    assert done.output.splitlines()[0] == "3/30 sandboxes"
    assert "30 sandboxes, 0 failed" in done.output
    told = shell.json("burst", "py", "-n", 4, "-c", 2, "--exec-cmd", "exit 3", "--timeout", 5, status=1)
    assert (told["failed"], told["errors"]) == (4, {"exit code 3": 4})
    assert shell.gateway.call(shell.key, "GET", "/v1/sandboxes")[1]["sandboxes"] == []
    assert "there is no template nope" in shell("burst", "nope", "-n", 3, status=2).stderr


def test_burst_on_a_demo_key_stays_below_its_cap(local_gateway: RunningGateway) -> None:
    told = Shell(local_gateway, "demo").json("burst", "py", "-n", 24, "-c", 24)
    assert (told["sandboxes"], told["failed"], told["concurrency"]) == (24, 0, 8)


def test_rl_scores_every_rollout_as_it_must(shell: Shell) -> None:
    told = shell.json("rl", "py", "--steps", 2, "--group", 4, "--prompts", 2, "-c", 8, "--timeout", 20)
    assert [(step["rollouts"], step["wrong"], step["infra"]) for step in told["steps"]] == [(8, 0, 0)] * 2
    assert told["steps"][0]["mean_reward"] < told["steps"][1]["mean_reward"]
    assert "step 1/1: 4 rollouts in 2 groups" in shell("rl", "py", "--steps", 1, "--group", 2, "--prompts", 2).output


def test_rl_without_its_template_fails_and_says_why(shell: Shell) -> None:
    assert "there is no template nope" in shell("rl", "nope", "--steps", 1, "--group", 2, status=2).stderr


def test_demo_with_a_key_bakes_converges_and_runs_rounds(local_gateway: RunningGateway) -> None:
    shell = Shell(local_gateway, "demo")
    done = shell("demo", "--rounds", 2, "--width", 30, "--max-exec", 2)
    assert "30 of 30 forks (30 warm, 0 frozen), converged" in done.output
    assert "round 2/2: 2 sandboxes, 0 failed" in done.output
    told = shell.json("demo", "--rounds", 1, "--width", 30, "--max-exec", 2)
    assert (told["converged"], [one["failed"] for one in told["rounds"]]) == (True, [0])


@pytest.mark.parametrize("command", [["images"], ["status", "x"], ["fleet"], ["burst", "x"], ["rl", "x"]])
def test_no_key_no_gateway_and_a_wrong_key_are_one_line_each(shell: Shell, command: list[str]) -> None:
    assert "collimate serve --gateway" in " ".join(shell(*command, "--api-key", "", status=2).stderr.split())
    assert "no gateway answers" in shell(*command, "--base-url", "http://127.0.0.1:1", status=3).stderr
    wrong = "col_pro_00000000_" + "0" * 32
    assert "unauthorized" in shell(*command, "--api-key", wrong, status=2).stderr
