"""The command group. Each command is a module; heavier imports happen inside the commands."""

from __future__ import annotations

from importlib import metadata

import click

from collimate_rl.cli.bake_command import bake, status
from collimate_rl.cli.burst_command import burst, rl
from collimate_rl.cli.demo_command import demo
from collimate_rl.cli.doctor_command import doctor
from collimate_rl.cli.fleet_command import fleet, images
from collimate_rl.cli.grade_command import grade
from collimate_rl.cli.replay_command import replay
from collimate_rl.cli.serve_command import serve
from collimate_rl.cli.top_command import top
from collimate_rl.cli.trace_command import trace

EXIT_BAD_INPUT = 2
EXIT_INFRA = 3


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version("collimate-rl"), prog_name="collimate")
def app() -> None:
    """Grade candidate code in isolated sandboxes, for RL post-training."""


for command in (demo, grade, serve, doctor, bake, status, fleet, burst, rl, images, replay, top, trace):
    app.add_command(command)
