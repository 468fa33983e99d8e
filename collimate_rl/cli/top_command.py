"""`collimate top`: a queue in numbers, again and again, until Ctrl-C."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console, RenderableType
from rich.live import Live

from collimate_rl.cli.gateway_call import Number
from collimate_rl.cli.queue_call import on_queue
from collimate_rl.cli.top_view import away, screen
from collimate_rl.errors import RedisUnavailable

if TYPE_CHECKING:
    from collimate_rl.queue.batches import BatchQueue
    from collimate_rl.queue.numbers import Numbers


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at the queue: its numbers, or why there are none and since when."""

    numbers: Numbers | None
    error: str = ""
    away_s: float = 0.0


@click.command(short_help="Show a queue in numbers, again and again.")
@click.option("--once", is_flag=True, help="Look once. Exit 3 when the server is away.")
@click.option("--interval", type=Number(0.2), default=2.0, show_default=True, help="Seconds between looks.")
@on_queue
def top(queue: BatchQueue, *, once: bool, interval: float, as_json: bool) -> None:
    """Show a queue: what waits, how fast it is graded, what went wrong, by run and by node.

    With --json each look is one line. A server that goes away is waited for. Ctrl-C ends it, with exit 0.
    """
    from collimate_rl.queue.numbers import read_numbers

    def read() -> Numbers:
        return read_numbers(queue)

    if once:
        numbers = read()
        if as_json:
            click.echo(json.dumps(numbers.as_json_data()))
        else:
            Console().print(screen(numbers))
        return
    console = Console()
    try:
        with ExitStack() as stack:
            live = None
            if console.is_terminal and not as_json:
                live = stack.enter_context(Live(console=console, auto_refresh=False, screen=True))
            for look in looks(read, interval):
                if as_json:
                    click.echo(json.dumps(_data(look)))
                elif live is not None:
                    live.update(_shown(look), refresh=True)
                else:
                    console.print(_shown(look))
    except SystemExit as stopped:
        # Ctrl-C is how this is left.
        if stopped.code != 130:
            raise


def looks(
    read: Callable[[], Numbers],
    interval: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Look]:
    """A look every `interval` seconds, for ever. A server that is away is a look, too; what it refuses is raised."""
    away_since: float | None = None
    last: Numbers | None = None
    while True:
        started = clock()
        try:
            last = read()
            away_since = None
            yield Look(numbers=last)
        except RedisUnavailable as error:
            away_since = started if away_since is None else away_since
            yield Look(numbers=None, error=error.message, away_s=clock() - away_since)
        sleep(max(0.05, interval - (clock() - started)))


def _data(look: Look) -> dict[str, object]:
    if look.numbers is not None:
        return look.numbers.as_json_data()
    return {"error": look.error, "away_s": round(look.away_s, 1)}


def _shown(look: Look) -> RenderableType:
    return away(look.error, look.away_s) if look.numbers is None else screen(look.numbers)
