"""The command group: every command that it names, and no other's modules for one."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from collimate_rl.cli.app import COMMANDS, app

CONTEXT = click.Context(app)


def test_all_are_listed_in_order() -> None:
    assert app.list_commands(CONTEXT) == sorted(COMMANDS)
    assert app.get_command(CONTEXT, "nonsense") is None


def test_what_each_does_fits_its_line() -> None:
    told = CliRunner().invoke(app, ["--help"]).output
    assert "..." not in told.partition("Commands:")[2]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_is_found_under_its_name(name: str) -> None:
    command = app.get_command(CONTEXT, name)
    assert command is not None
    assert command.name == name


@pytest.mark.parametrize("name", ["doctor", "grade", "replay"])
def test_those_that_ask_a_daemon_name_it_alike(name: str) -> None:
    command = app.get_command(CONTEXT, name)
    assert command is not None
    spelt = {option.name: option.opts for option in command.params}
    assert spelt["unix_socket"] == ["--socket"]
    assert spelt["base_url"] == ["--url", "--backend"]


def test_one_is_run_without_the_modules_of_the_others() -> None:
    text = """
import sys
from click.testing import CliRunner
from collimate_rl.cli.app import app
assert CliRunner().invoke(app, ["grade", "--help"]).exit_code == 0
print(*sorted(name for name in sys.modules if name.startswith("collimate_rl.cli.") and name.endswith("_command")))
print("rich" in sys.modules, "redis" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["collimate_rl.cli.grade_command", "False False"]
