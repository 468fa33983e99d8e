"""What the nodes of a queue say of themselves, as a producer wants to know it: which templates there are, who works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collimate_rl.protocol.bounds import one_line
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.node_numbers import failed_templates

NAMED = 3
"""So many nodes are named in one message."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """One look at the living nodes."""

    queue: str
    templates: frozenset[str] | None = None
    """What they list; None when no node tells, or one that takes work does not, which refuses nothing."""
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Node to the templates that it could not bring up, and why."""
    unserved: str | None = None
    """What to say when none of them takes work."""

    def lack(self, template: str) -> str | None:
        """What to say of a template that none has; None when one has it, or when nobody tells."""
        if self.templates is None or template in self.templates:
            return None
        why = [f"on node {node} it failed: {told[template]}" for node, told in self.failed.items() if template in told]
        failed = f" ({'; '.join(why[:NAMED])})" if why else ""
        listed = ", ".join(sorted(self.templates)) or "none"
        return f"no node of queue {self.queue!r} has the template {template!r}{failed}; there are: {listed}"


def look(queue: BatchQueue) -> Serving:
    """Ask the server. Raises `RedisUnavailable`."""
    nodes = queue.nodes()
    lists = [names for beat in nodes.values() if isinstance(names := beat.get("templates"), list)]
    # A gateway's node lists none: what others lack, it may have.
    silent = any(beat.get("up") is True and not isinstance(beat.get("templates"), list) for beat in nodes.values())
    return Serving(
        queue=queue.queue,
        templates=frozenset(str(name) for names in lists for name in names) if lists and not silent else None,
        failed={node: failed_templates(beat) for node, beat in nodes.items()},
        unserved=_unserved(queue.queue, nodes),
    )


def _unserved(queue: str, nodes: Mapping[str, Mapping[str, Any]]) -> str | None:
    if not nodes:
        return f"no worker served queue {queue!r} at the last look: is one running there?"
    down = [f"node {node}: {beat.get('reason')}" for node, beat in nodes.items() if beat.get("up") is False]
    if len(down) < len(nodes):
        return None
    return f"no node of queue {queue!r} took work at the last look ({one_line('; '.join(down[:NAMED]))})."
