"""The demo on a gateway: bake, converge, and rounds of sandboxes with an exec in each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from collimate_rl.cli.bake_command import POLL_S, say, start_bake, wait_live
from collimate_rl.cli.burst_run import run_burst, side_by_side
from collimate_rl.cli.gateway_call import print_json
from collimate_rl.fleetview import FleetView

if TYPE_CHECKING:
    from collimate_rl.gateway import GatewayClient


def run_on_gateway(client: GatewayClient, template: dict[str, Any], *, rounds: int, as_json: bool) -> int:
    """The exit code: 0 when everything worked, 1 when not. The template stays, for whatever is next."""
    console = Console(stderr=as_json)
    handle = start_bake(client, template)
    wait_live(handle, console, template["timeout"])
    say(console, "waiting for the pool to converge …")
    view = FleetView(client, template_ids=[handle.id])
    fleet = None
    for fleet in view.watch(POLL_S, until_converged=True, timeout=template["timeout"]):
        say(console, fleet.summary())
    assert fleet is not None
    at_once = side_by_side(client, max(template["max_exec"], 1))
    done = []
    for number in range(1, rounds + 1):
        burst = run_burst(client, handle.id, count=at_once, concurrency=at_once)
        done.append(burst)
        say(console, f"round {number}/{rounds}: {burst.summary()}")
    worked = fleet.converged and not any(burst.failed for burst in done)
    if as_json:
        status = dict(handle.status().raw)
        print_json({"template": status, "converged": fleet.converged, "rounds": [burst.as_dict() for burst in done]})
    say(console, "everything worked" if worked else "not everything worked")
    return 0 if worked else 1
