"""`python -m worker status`: what the queue holds, for people or as JSON."""

from __future__ import annotations

import json
from typing import Any

from collimate_rl.queue.node_numbers import failed_templates
from collimate_rl.queue.overview import NodeView, Overview, RunView
from worker.log_lines import visible
from worker.process import ProcessId


def as_json(overview: Overview, server: str) -> str:
    """One JSON object; the keys are the fields of `collimate_rl.queue.overview`, and `server`."""
    return json.dumps({"server": server, **overview.as_json_data()}, indent=2)


def as_text(overview: Overview, server: str) -> str:
    """A screenful."""
    lines = [
        f"queue {overview.queue} on {server}",
        f"  {_count(overview.unanswered, 'unanswered batch', 'unanswered batches')}, "
        f"{_count(overview.bells, 'bell', 'bells')} on the list, {overview.popped} popped",
        f"  {_clock(overview)}; {_janitor(overview.janitor)}",
        "nodes" if overview.nodes else "nodes: none",
    ]
    for node in overview.nodes:
        lines += _node(node)
    lines.append("runs with unanswered batches" if overview.runs else "runs with unanswered batches: none")
    lines += [_run(run) for run in overview.runs]
    quarantined = _count(overview.quarantined, "candidate", "candidates")
    lines.append(f"quarantine: {quarantined}" if overview.quarantined else "quarantine: empty")
    return "\n".join(map(visible, lines))  # a name that somebody else wrote there may hold anything


def _count(n: int, one: str, many: str) -> str:
    return f"{n:,} {one if n == 1 else many}"


def _clock(overview: Overview) -> str:
    if overview.last_beat_s is None:
        return "no beat ever came: no supervisor and no janitor serves this queue"
    told = "settled" if overview.settled else "not settled: lost owners are not replaced yet"
    return f"clock {told}, last beat {_seconds(overview.last_beat_s)} ago"


def _janitor(token: str) -> str:
    if not token:
        return "no janitor leads"
    process = ProcessId.parse(token)
    return f"janitor leads (pid {process.pid})" if process is not None else f"janitor leads ({token})"


def _node(node: NodeView) -> list[str]:
    lines = [f"  {node.name}  {_health(node.heartbeat)}"]
    lines += [
        f"    template {name} failed: {why}" for name, why in sorted(failed_templates(node.heartbeat or {}).items())
    ]
    for batch in node.batches:
        lease = "" if batch.lease_s > 0 else f", silent for {_seconds(-batch.lease_s)}"
        lost = f", lost {_count(batch.losses, 'owner', 'owners')}" if batch.losses else ""
        lines.append(
            f"    {batch.worker}  {batch.run}/{batch.id}  {batch.judged} of {batch.candidates} judged, "
            f"fence {batch.fence}, deadline in {_seconds(batch.deadline_s)}{lost}{lease}"
        )
    return lines


def _health(heartbeat: Any) -> str:
    if heartbeat is None:
        return "no heartbeat"
    up = heartbeat.get("up")
    state = "daemon unknown" if up is None else "daemon up" if up else f"daemon down ({heartbeat.get('reason', '')})"
    words = [state, f"{heartbeat.get('processes', 0)} processes", f"{heartbeat.get('slots', 0)} slots"]
    if heartbeat.get("isolation"):
        words.append(f"isolation {heartbeat['isolation']}")
    if isinstance(heartbeat.get("templates"), list):
        words.append("templates " + " ".join(map(str, heartbeat["templates"])))
    return ", ".join(words)


def _run(run: RunView) -> str:
    lossy = f", {run.lossy} of them lost an owner" if run.lossy else ""
    suspects = "".join(f", {count:,} {outcome}" for outcome, count in run.suspects.items() if count)
    return (
        f"  {run.name}  {run.open} waiting, {run.running} running{lossy}; oldest {_seconds(run.oldest_s)}, "
        f"next deadline in {_seconds(run.next_deadline_s)}{suspects}"
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if abs(value) < 100 else f"{value:,.0f} s"
