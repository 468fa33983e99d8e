"""The nodes of a queue in numbers: what each says of itself, what it holds, and how it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from collimate_rl.protocol import keys
from collimate_rl.protocol.bounds import is_name
from collimate_rl.queue._raw import answers_of, heartbeat, text, whole_ms
from collimate_rl.queue.batches import BatchQueue
from collimate_rl.queue.clients import translate_errors
from collimate_rl.queue.counts import Counts

MAX_NODES = 200
MAX_FAILED = 64
MAX_SAID = 10**9
"""No node has as many slots, or processes."""


@dataclass(frozen=True, kw_only=True)
class NodeNumbers:
    """One node: what it says of itself, and what it holds."""

    name: str
    heartbeat_s: float | None
    """Since the last heartbeat; None when there is none: the node is stopped or lost."""
    in_flight: int
    """Batches that its workers hold, of all queues."""
    slots: int | None
    processes: int | None
    up: bool | None
    """The sandbox daemon answers; None when the node has not said."""
    reason: str
    """Why it does not."""
    draining: bool
    isolation: str | None
    backend: str
    daemon_version: str
    version: str
    """Of this product on that node."""
    templates: tuple[str, ...] | None
    host: str
    counts: Counts
    """Over the last ten minutes, as far as its name stands in answers: candidates, infra and codes."""
    failed_templates: Mapping[str, str] = field(default_factory=dict)
    """Those that its daemon could not bring up, and why."""


def read_nodes(queue: BatchQueue, now_ms: int, recent: Counts) -> tuple[NodeNumbers, ...]:
    """Those with a heartbeat, and those that answers of the last ten minutes name."""
    with translate_errors("read the nodes"):
        serving = keys.nodes(queue.queue)
        ends: Any = queue.client.zrangebyscore(serving, now_ms, "+inf", 0, MAX_NODES, withscores=True)
        until = {text(name): whole_ms(end) for name, end in ends}
        names = sorted(name for name in {*until, *list(recent.nodes)[:MAX_NODES]} if is_name(name))
        with queue.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.get(keys.node(name))
                pipe.hlen(keys.owned(name))
            told = answers_of(pipe)
    found = []
    for name, beat, owned in zip(names, told[::2], told[1::2], strict=True):
        counts = recent.nodes.get(name)
        alive = name in until and beat is not None
        since = (now_ms - (until[name] - queue.timing.alive_ms)) / 1000 if alive else None
        said = heartbeat(beat) if alive else {}
        mine = Counts() if counts is None else Counts.of(_flat(counts.candidates, counts.codes))
        found.append(_node(name, since, owned or 0, said, mine))
    return tuple(found)


def _flat(candidates: int, codes: Mapping[str, int]) -> dict[str, int]:
    infra = sum(codes.values())
    return {
        "candidates": candidates,
        "infra": infra,
        "graded": max(0, candidates - infra),
        **{f"code:{code}": count for code, count in codes.items()},
    }


def failed_templates(said: Mapping[str, Any]) -> dict[str, str]:
    """Of a heartbeat: the templates that the node's daemon could not bring up, and why; at most `MAX_FAILED`."""
    told = said.get("failed_templates")
    some = islice(told.items(), MAX_FAILED) if isinstance(told, dict) else ()
    return {str(name): str(why) for name, why in some}


def _node(name: str, since: float | None, owned: int, said: Mapping[str, Any], counts: Counts) -> NodeNumbers:
    def number(what: str) -> int | None:
        value = said.get(what)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_SAID else None

    def words(what: str) -> str:
        value = said.get(what)
        return value if isinstance(value, str) else ""

    up, templates = said.get("up"), said.get("templates")
    return NodeNumbers(
        name=name,
        heartbeat_s=None if since is None else max(0.0, since),
        in_flight=owned,
        slots=number("slots"),
        processes=number("processes"),
        up=up if isinstance(up, bool) else None,
        reason=words("reason"),
        draining=said.get("draining") is True,
        isolation=words("isolation") or None,
        backend=words("backend"),
        daemon_version=words("daemon_version"),
        version=words("version"),
        templates=tuple(str(one) for one in templates) if isinstance(templates, list) else None,
        failed_templates=failed_templates(said),
        host=words("host"),
        counts=counts,
    )
