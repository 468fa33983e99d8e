"""How `collimate top` shows a queue's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from collimate_rl.grading.result import printable

if TYPE_CHECKING:
    from collimate_rl.queue.counts import Counts
    from collimate_rl.queue.node_numbers import NodeNumbers
    from collimate_rl.queue.numbers import Numbers, RunNumbers

BARS = "▁▂▃▄▅▆▇█"
PLOT_WIDTH = 24
MAX_RUNS = 15
MAX_NODES = 20


def screen(numbers: Numbers) -> RenderableType:
    """Everything, from top to bottom: what waits, what went wrong, runs, nodes."""
    runs = _runs(numbers) if numbers.runs else Text("runs: none")
    nodes = _nodes(numbers) if numbers.nodes else Text(f"nodes: none serves queue {printable(numbers.queue)}")
    return Group(_head(numbers), _health(numbers), runs, nodes, *_failed_templates(numbers))


def away(error: str, away_s: float) -> RenderableType:
    """Instead of numbers, while the server is away."""
    told = f"Redis is away, since {seconds(away_s)}: what is shown here comes from it. Trying again."
    return Panel(Text(f"{told}\n{printable(error)}"), title="no numbers", border_style="red")


def seconds(value: float | None) -> str:
    """A duration as people say it."""
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else seconds(value / 1000) if value >= 1000 else f"{value:.0f} ms"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def named(counts: Mapping[str, int]) -> str:
    """`draining 3, unreachable 1`, the most first; `none` when there are none."""
    some = sorted(((count, name) for name, count in counts.items() if count), key=lambda item: (-item[0], item[1]))
    return ", ".join(f"{printable(name)} {count:,}" for count, name in some[:6]) or "none"


def _head(numbers: Numbers) -> Table:
    table = Table.grid(padding=(0, 2))
    wait = numbers.minute.wait if numbers.minute.wait.count else numbers.recent.wait
    table.add_row(
        Text(f"queue {numbers.queue}", style="bold"),
        f"queued {numbers.queued:,}",
        f"in flight {numbers.in_flight:,}",
        f"oldest {seconds(numbers.oldest_s)}",
    )
    table.add_row(
        "last minute",
        f"graded {numbers.graded_per_s:.1f}/s",
        f"answered {numbers.answered_per_s:.1f}/s",
        f"time in queue p50 {milliseconds(wait.p50_ms)}, p95 {milliseconds(wait.p95_ms)}",
    )
    return table


def _health(numbers: Numbers) -> Table:
    recent = numbers.recent
    table = Table.grid(padding=(0, 2))
    style = "red" if recent.infra else ""
    table.add_row("last 10 min", Text(f"infra errors {share(recent.infra_share)}: {named(recent.codes)}", style=style))
    statuses = {name: count for name, count in recent.statuses.items() if name != "graded"}
    # As `Text`: what stands between square brackets in somebody's names is no markup.
    table.add_row("", Text(f"recoveries: {named(recent.recovered)}; batches not graded: {named(statuses)}"))
    table.add_row("", f"in quarantine {numbers.quarantined:,}; expired {recent.statuses.get('expired', 0):,}")
    if recent.unread:
        told = (
            f"{recent.unread:,} answers could not be read: mean rewards leave {recent.unread_graded:,} candidates out"
        )
        table.add_row("", Text(told, style="red"))
    if not numbers.janitor:
        waiting = f" {numbers.uncounted:,} answers wait to be counted." if numbers.uncounted else ""
        table.add_row("", Text(f"no janitor leads: lost batches are not found.{waiting}", style="red"))
    return table


def _runs(numbers: Numbers) -> Table:
    # 80 columns hold a run's name and its numbers whole: the name goes on in a second line, and what follows gives way.
    table = Table(title="runs", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold", min_width=13)
    for name in ("submitted", "answered", "open", "mean", "infra"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last hour", overflow="fold", min_width=9)
    table.add_column("flags", min_width=8)
    for run in numbers.runs[:MAX_RUNS]:
        counts = run.counts
        table.add_row(
            Text(printable(run.name)),
            f"{run.submitted:,}",
            f"{counts.batches:,}",
            f"{run.unanswered:,}",
            mean(counts.mean_reward),
            Text(share(counts.infra_share), style="red" if counts.infra else ""),
            plot(run),
            Text(named(_smells(run, counts))),
        )
    return table


def _smells(run: RunNumbers, counts: Counts) -> dict[str, int]:
    return {**counts.flags, **{name: count for name, count in run.suspects.items() if count}}


def plot(run: RunNumbers) -> str:
    """The last steps' mean rewards, a bar each, from 0 to 1; steps without any are left out."""
    means = [point.mean_reward for point in run.rewards if point.mean_reward is not None][-PLOT_WIDTH:]
    return "".join(BARS[max(0, min(len(BARS) - 1, int(value * len(BARS))))] for value in means)


def _nodes(numbers: Numbers) -> Table:
    table = Table(title="nodes", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("node", "heartbeat", "slots", "in flight", "daemon", "version", "infra, 10 min"):
        table.add_column(name)
    for node in numbers.nodes[:MAX_NODES]:
        state, style = daemon_state(node)
        table.add_row(
            Text(printable(node.name)),
            "none" if node.heartbeat_s is None else f"{seconds(node.heartbeat_s)} ago",
            "-" if node.slots is None else str(node.slots),
            str(node.in_flight),
            Text(state, style=style),
            Text(printable(node.version or "-")),
            share(node.counts.infra_share),
        )
    return table


def _failed_templates(numbers: Numbers) -> list[Text]:
    told = [
        f"node {node.name}: template {name} failed: {why}"
        for node in numbers.nodes[:MAX_NODES]
        for name, why in sorted(node.failed_templates.items())
    ]
    return [Text(printable(line), style="red") for line in told[:MAX_NODES]]


def daemon_state(node: NodeNumbers) -> tuple[str, str]:
    """What is known of the node's daemon, and a colour for it."""
    if node.heartbeat_s is None:
        return "node stopped or lost", "red"
    if node.draining:
        return "draining", "yellow"
    if node.up is None:
        return "not said", ""
    if node.up:
        return f"up{'' if node.isolation != 'none' else ', unisolated'}", ""
    return f"down: {printable(node.reason)}", "red"
