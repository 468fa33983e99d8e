"""`collimate fleet` and `images`: what there is of templates, and of images to make them of."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from collimate_rl.cli.bake_command import say
from collimate_rl.cli.gateway_call import Number, on_gateway, print_json

if TYPE_CHECKING:
    from collimate_rl.fleetview import FleetStatus
    from collimate_rl.gateway import GatewayClient


@click.command()
@click.option("--template", "templates", multiple=True, metavar="ID", help="Only this one; repeatable.")
@click.option("--include-public", is_flag=True, help="The shared catalog, too.")
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--interval", type=Number(0.05), default=2.0, show_default=True, help="Seconds between looks.")
@click.option("--until-converged", is_flag=True, help="Watch until every template has reached its width.")
@click.option("--timeout", type=Number(0), help="Watch for so many seconds, at most.")
@on_gateway
def fleet(
    client: GatewayClient,
    *,
    templates: tuple[str, ...],
    include_public: bool,
    watch: bool,
    interval: float,
    until_converged: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Show the templates' forks: declared, warm, frozen, by node.

    With --json each look is one line. Exit 1 when a named template is missing, or --until-converged ran out of time.
    """
    from collimate_rl.fleetview import FleetView

    view = FleetView(client, template_ids=list(templates) or None, include_public=include_public)
    console = Console()
    if not watch and not until_converged:
        last = view.status()
        if as_json:
            print_json(last.as_dict())
        else:
            show(console, last)
    else:
        last = None
        with ExitStack() as stack:
            live = None
            if console.is_terminal and not as_json:
                live = stack.enter_context(Live(console=console, auto_refresh=False))
            for last in view.watch(interval, until_converged=until_converged, timeout=timeout):
                if as_json:
                    click.echo(json.dumps(last.as_dict()))
                elif live is not None:
                    live.update(fleet_table(last), refresh=True)
                else:
                    say(console, last.summary())
    if last is not None and (last.missing or (until_converged and not last.converged)):
        raise SystemExit(1)


def show(console: Console, status: FleetStatus) -> None:
    """The table on a terminal; elsewhere a line for the whole, and one for each template and node."""
    if console.is_terminal:
        console.print(fleet_table(status))
        return
    say(console, status.summary())
    for one in status.templates:
        text = f"  {one.id} {one.name} {one.phase} {one.warm} warm, {one.frozen} frozen of {one.declared}"
        say(console, f"{text}, {one.converge_state}")
    for pool in status.nodes:
        say(console, f"  node {pool.node}: {pool.warm} warm, {pool.frozen} frozen")


def fleet_table(status: FleetStatus) -> Table:
    """A row per template."""
    table = Table(title=status.summary())
    for name in ("template", "name", "phase", "declared", "warm", "frozen", "state"):
        table.add_column(name, justify="right" if name in ("declared", "warm", "frozen") else "left")
    for one in status.templates:
        numbers = (str(one.declared), str(one.warm), str(one.frozen))
        table.add_row(one.id, one.name, one.phase, *numbers, one.error or one.converge_state)
    for missing in status.missing:
        table.add_row(missing, "", "missing", "", "", "", "")
    return table


@click.command()
@on_gateway
def images(client: GatewayClient, *, as_json: bool) -> None:
    """List the images that sandboxes and templates can be made of."""
    rows: list[dict[str, Any]] = client.images()
    console = Console()
    if as_json:
        print_json(rows)
        return
    if not console.is_terminal:
        for row in rows:
            say(console, "  ".join(str(row.get(name) or "-") for name in ("id", "image", "visibility", "tier")))
        return
    table = Table()
    for name in ("id", "name", "image", "visibility", "tier", "description"):
        table.add_column(name)
    for row in rows:
        table.add_row(
            *(str(row.get(name) or "") for name in ("id", "name", "image", "visibility", "tier", "description"))
        )
    console.print(table)
