"""`collimate bake` and `status`: a template of an image, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from collimate_rl.cli.gateway_call import Command, Number, on_gateway, print_json
from collimate_rl.grading.result import printable

if TYPE_CHECKING:
    from collimate_rl._templates import TemplateHandle, TemplateStatus
    from collimate_rl.gateway import GatewayClient

POLL_S = 0.5


def template_options(*, image_required: bool) -> Callable[[Command], Command]:
    """What says which template is to be baked; `bake` and `demo` share it."""

    image_help = "The image to bake, as the gateway's catalog or a registry names it."

    def add(command: Command) -> Command:
        options = (
            # A default of None counts as one, so that a required option has to be made without.
            click.option("--image", help=image_help, required=True)
            if image_required
            else click.option("--image", help=image_help, default="python", show_default=True),
            click.option("--name", help="The template's name. Default: made of the image's."),
            click.option("--ready-cmd", help="A shell command that must end with 0 in a fresh sandbox."),
            click.option("--ready-http", help="An address that must answer there, as :8000/health."),
            click.option("--ready-http-timeout", type=Number(0, min_open=True), help="For so many seconds."),
            click.option("--port", "ports", type=click.IntRange(1, 65535), multiple=True, help="Expose; repeatable."),
            click.option("--network", is_flag=True, help="Give the template a network (a Pro feature)."),
            click.option("--width", type=click.IntRange(0), default=1000, show_default=True, help="Forks kept ready."),
            click.option("--cold-fraction", type=Number(0, 1), help="How much of the width is kept frozen."),
            click.option("--timeout", type=Number(0), default=600, show_default=True, help="Seconds to wait, at most."),
            click.option(
                "--max-exec",
                type=click.IntRange(0),
                default=0 if image_required else 8,
                show_default=True,
                help="Once it is live, try an exec in so many sandboxes of it side by side.",
            ),
        )
        for option in reversed(options):
            command = option(command)
        return command

    return add


def start_bake(client: GatewayClient, given: dict[str, Any]) -> TemplateHandle:
    """Declare the template that `template_options` describe."""
    from collimate_rl.template import Ready, Template

    ready = Ready(
        cmd=given["ready_cmd"],
        http=given["ready_http"],
        http_timeout_s=given["ready_http_timeout"],
        ports=list(given["ports"]),
        network=True if given["network"] else None,
    )
    return Template.bake(
        given["image"],
        name=given["name"],
        ready=ready if ready.to_wire() else None,
        width=given["width"],
        cold_fraction=given["cold_fraction"],
        client=client,
    )


def wait_live(handle: TemplateHandle, console: Console, timeout: float) -> TemplateStatus:
    """Until it is Live, with a line for each step (on a terminal, one that is rewritten)."""
    if not console.is_terminal:
        return handle.wait(timeout, POLL_S, on_update=lambda status: say(console, line(status)))
    with console.status("baking …") as shown:
        return handle.wait(timeout, POLL_S, on_update=lambda status: shown.update(line(status)))


def line(status: TemplateStatus) -> str:
    """One template in one line."""
    text = (
        f"{status.name or status.id} ({status.id}): {status.phase}, {status.total} of {status.declared} forks "
        f"({status.warm} warm, {status.frozen} frozen), {status.converge_state}"
    )
    return f"{text}: {status.error}" if status.error else text


def say(console: Console, text: str) -> None:
    """A line as it stands: not wrapped, nothing in it taken for markup."""
    console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


@click.command()
@template_options(image_required=True)
@on_gateway
def bake(client: GatewayClient, *, as_json: bool, **given: Any) -> None:
    """Bake a template of IMAGE and wait until it is live. Baking the same again is no error.

    Exit 0: it is live (and the tried execs worked). 1: the bake failed, or did not end in time. 2: bad input. 3: the
    gateway refused or is not there.
    """
    from collimate_rl.cli.burst_run import run_burst

    console = Console(stderr=as_json)
    handle = start_bake(client, given)
    status = wait_live(handle, console, given["timeout"])
    tried = None
    if given["max_exec"]:
        tried = run_burst(client, handle.id, count=given["max_exec"], concurrency=given["max_exec"])
        say(console, tried.summary())
    if as_json:
        print_json({"template": dict(status.raw), "execs": tried.as_dict() if tried is not None else None})
    if tried is not None and tried.failed:
        raise SystemExit(1)


@click.command()
@click.argument("template")
@on_gateway
def status(client: GatewayClient, template: str, *, as_json: bool) -> None:
    """Say how far TEMPLATE (an id) is. Exit 1 when its bake failed."""
    from collimate_rl.template import Template

    found = Template.status(template, client=client)
    if as_json:
        print_json(dict(found.raw))
    else:
        console = Console()
        say(console, line(found))
        for node in found.per_node:
            say(console, f"  {node.get('node')}: {node.get('warm')} warm, {node.get('frozen')} frozen")
    if found.is_failed:
        raise SystemExit(1)
