"""The command group. Each command is a module, imported when it is run; heavier imports happen inside the commands."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "bake": "bake_command",
    "burst": "burst_command",
    "demo": "demo_command",
    "doctor": "doctor_command",
    "fleet": "fleet_command",
    "grade": "grade_command",
    "images": "fleet_command",
    "replay": "replay_command",
    "rl": "burst_command",
    "serve": "serve_command",
    "status": "bake_command",
    "top": "top_command",
    "trace": "trace_command",
}
"""Per command the module of this package that has it, under the command's own name."""
EXIT_BAD_INPUT = 2
EXIT_INFRA = 3


class Commands(click.Group):
    """The group, which imports a command's module when that command is asked for: most take longer than they run."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"collimate_rl.cli.{COMMANDS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="collimate-rl", prog_name="collimate")
def app() -> None:
    """Grade candidate code in isolated sandboxes, for RL post-training."""
