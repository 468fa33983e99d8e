"""`collimate trace BATCH`: what happened to one batch, when, by whose clock, and how long it took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from rich.console import Console

from collimate_rl.cli.gateway_call import EXIT_FAILED, print_json
from collimate_rl.cli.queue_call import on_queue
from collimate_rl.cli.top_view import milliseconds
from collimate_rl.grading.result import printable

if TYPE_CHECKING:
    from collimate_rl.protocol.timeline import CandidateTimeline, Moment
    from collimate_rl.queue.batch_view import BatchView
    from collimate_rl.queue.batches import BatchQueue

CLOCKS = {"server": "", "producer": "  [the producer's clock]", "worker": ""}


@click.command()
@click.argument("batch")
@click.option("--epoch", type=click.IntRange(0), default=0, show_default=True, help="Of a batch given as RUN/ID.")
@on_queue
def trace(queue: BatchQueue, *, batch: str, epoch: int, as_json: bool) -> None:
    """Print the timeline of BATCH: RUN/ID, or its key of 32 hex digits.

    Exit 1 when nothing is known of it: an answered batch is kept for a day.
    """
    from collimate_rl.queue.batch_view import find_k, read_batch

    k = find_k(queue, batch, epoch=epoch)
    view = None if k is None else read_batch(queue, k, receipt=True)
    if view is None:
        words = f"nothing is known of batch {printable(batch)} (epoch {epoch}) on queue {queue.queue!r} of this server"
        click.echo(f"{words}: an answered one is kept for a day, and an id may be another epoch's", err=True)
        raise SystemExit(EXIT_FAILED)
    if as_json:
        print_json(_data(view))
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in _lines(view):
        # Whatever a candidate, a node or a server wrote into it.
        console.print(printable(line.replace("\n", "\\n")), markup=False)


def _data(view: BatchView) -> dict[str, object]:
    names = (
        "k",
        "run",
        "id",
        "epoch",
        "queue",
        "status",
        "n",
        "attempts",
        "losses",
        "obstacle",
        "node",
        "worker",
        "notes",
    )
    return {**{name: getattr(view, name) for name in names}, "timeline": view.timeline.as_json_data()}


def _lines(view: BatchView) -> list[str]:
    """The timeline for people, a line per moment."""
    told = view.timeline
    found = [f"batch {view.run}/{view.id} (key {view.k}): {view.status}, {view.n} candidates, attempts {view.attempts}"]
    found += [f"  {note}" for note in view.notes]
    found += [_line(moment, "  ") for moment in told.moments]
    if view.obstacle:
        found.append(f"last obstacle: {view.obstacle}")
    found.append(
        f"in queue {milliseconds(told.queue_ms)}, last attempt {milliseconds(told.work_ms)}, "
        f"in all {milliseconds(told.total_ms)} (the server's clock)"
    )
    for candidate in told.candidates:
        found += _candidate(candidate)
    for index in sorted({each.index for each in view.candidates} - {each.index for each in told.candidates}):
        found.append(f"candidate {index}: no answer yet")
    return found


def _candidate(candidate: CandidateTimeline) -> list[str]:
    how = "" if candidate.recovered == "none" else f", recovered: {candidate.recovered}"
    where = f" on {candidate.node}" if candidate.node else ""
    head = f"candidate {candidate.index}: {candidate.ended}, attempt {candidate.attempt}{where}{how}"
    if candidate.why:
        return [head, f"    {candidate.why}", *(_line(moment, "    ") for moment in candidate.moments)]
    if not candidate.moments:
        return [head, "  nothing ran for it, or its worker did not say when"]
    return [head, *(_line(moment, "    ") for moment in candidate.moments)]


def _line(moment: Moment, indent: str) -> str:
    at = "          --" if moment.at is None else _time(moment.at)
    took = "" if moment.took_ms is None else f"+{milliseconds(moment.took_ms)}"
    if moment.what == "received" and moment.took_ms is not None:
        took = f"{milliseconds(moment.took_ms)} since submitted"
    who = f"  attempt {moment.attempt}, {moment.node} {moment.worker}".rstrip() if moment.worker else ""
    detail = f"  {moment.detail}" if moment.detail else ""
    return f"{indent}{at}  {moment.what:<10}{took:>10}{who}{detail}{CLOCKS.get(moment.clock, '')}"


def _time(at: float) -> str:
    try:
        whole = int(at)
        return f"{time.strftime('%H:%M:%S', time.localtime(whole))}.{int((at - whole) * 1000):03d}"
    except (ValueError, OverflowError, OSError):  # a producer says when it submitted, and may say anything
        return "          --"
