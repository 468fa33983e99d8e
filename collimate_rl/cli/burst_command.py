"""`collimate burst` and `rl`: what a gateway does under load, bare and as steps of training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from collimate_rl.cli.bake_command import say
from collimate_rl.cli.burst_run import DEFAULT_COMMAND, run_burst, side_by_side
from collimate_rl.cli.gateway_call import on_gateway, print_json

if TYPE_CHECKING:
    from collimate_rl.gateway import GatewayClient


@click.command(short_help="Make, use and delete many sandboxes of TEMPLATE.")
@click.argument("template")
@click.option("-n", "--count", type=click.IntRange(1), default=1000, show_default=True, help="Sandboxes in all.")
@click.option("-c", "--concurrency", type=click.IntRange(1), default=100, show_default=True, help="Side by side.")
@click.option("--exec-cmd", default=DEFAULT_COMMAND, show_default=True, help="The command that each runs.")
@click.option("--timeout", type=click.IntRange(1, 3600), default=30, show_default=True, help="Seconds for a command.")
@on_gateway
def burst(
    client: GatewayClient, template: str, *, count: int, concurrency: int, exec_cmd: str, timeout: int, as_json: bool
) -> None:
    """Make, use and delete many sandboxes of TEMPLATE, and say how fast that went.

    On a demo key at most eight are alive at once. Exit 1 when one or more failed.
    """
    console = Console(stderr=as_json)
    with counting(console, count, "sandboxes") as counted:
        done = run_burst(
            client,
            template,
            count=count,
            concurrency=concurrency,
            command=exec_cmd,
            timeout_seconds=timeout,
            on_shot=lambda _: counted(),
        )
    if as_json:
        print_json(done.as_dict())
    else:
        say(console, done.summary())
    if done.failed:
        raise SystemExit(1)


@click.command(short_help="Grade groups on TEMPLATE as a trainer would.")
@click.argument("template")
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True, help="Training steps.")
@click.option("--group", type=click.IntRange(1), default=8, show_default=True, help="Rollouts per prompt.")
@click.option("--prompts", type=click.IntRange(1), default=16, show_default=True, help="Prompts per step.")
@click.option("-c", "--concurrency", type=click.IntRange(1), default=64, show_default=True, help="Side by side.")
@click.option("--timeout", type=click.IntRange(1, 3600), default=30, show_default=True, help="Seconds for a rollout.")
@on_gateway
def rl(
    client: GatewayClient,
    template: str,
    *,
    steps: int,
    group: int,
    prompts: int,
    concurrency: int,
    timeout: int,
    as_json: bool,
) -> None:
    """Grade groups as a trainer would, on TEMPLATE (a Python), with a policy that gets better from step to step.

    Each group shares a seed; rewards are checked against what each rollout must score. Exit 1 when one is off.
    """
    from collimate_rl.cli.rl_run import run_step

    # What is set up wrongly shows here, rather than as a step of infrastructure errors.
    client.exec_once(template, command="true")
    console = Console(stderr=as_json)
    at_once = side_by_side(client, concurrency)
    done = []
    for number in range(1, steps + 1):
        step = run_step(
            client,
            template,
            share_right=number / (steps + 1),
            group=group,
            prompts=prompts,
            concurrency=at_once,
            timeout_seconds=timeout,
        )
        done.append(step)
        say(console, f"step {number}/{steps}: {step.summary()}")
    if as_json:
        print_json({"steps": [step.as_dict() for step in done], "concurrency": at_once})
    if any(step.wrong or step.infra for step in done):
        raise SystemExit(1)


@contextmanager
def counting(console: Console, total: int, what: str) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; elsewhere a line for each tenth."""
    if console.is_terminal:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total)
            yield lambda: bar.update(task, advance=1)
        return
    lock = threading.Lock()
    seen = 0

    def count() -> None:
        nonlocal seen
        with lock:
            seen += 1
            if seen * 10 // total > (seen - 1) * 10 // total:
                say(console, f"{seen}/{total} {what}")

    yield count
