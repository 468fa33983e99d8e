"""What a key's templates have at hand, over all nodes: declared, warm and frozen forks, and whether that converges."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collimate_rl._templates import TemplateStatus
from collimate_rl.errors import GatewayError
from collimate_rl.gateway import GatewayClient
from collimate_rl.sandbox import WARM_FORK_MS


@dataclass(frozen=True)
class NodePool:
    """The forks of one node; `templates` are the ids that it reports on."""

    node: str
    warm: int
    frozen: int
    templates: tuple[str, ...]

    @property
    def total(self) -> int:
        """Warm and frozen."""
        return self.warm + self.frozen


@dataclass(frozen=True)
class FleetStatus:
    """One look at the fleet. `missing` are ids that the gateway does not know; `raw` is its answers by id.

    `warm_hit` is the share of given samples whose fork took at most 1 ms; None where none were given.
    """

    templates: tuple[TemplateStatus, ...]
    nodes: tuple[NodePool, ...]
    missing: tuple[str, ...]
    declared: int
    warm: int
    frozen: int
    warm_hit: float | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def total(self) -> int:
        """Forks at hand: warm and frozen."""
        return self.warm + self.frozen

    @property
    def converged(self) -> bool:
        """True when every template that was asked for is there and has reached its declared width."""
        return bool(self.templates) and not self.missing and all(status.is_converged for status in self.templates)

    @property
    def nodes_reporting(self) -> int:
        """How many nodes report on any of these templates."""
        return len(self.nodes)

    def summary(self) -> str:
        """One line for people."""
        state = "converged" if self.converged else "converging"
        line = (
            f"{len(self.templates)} templates on {self.nodes_reporting} nodes: {self.total} of {self.declared} forks "
            f"({self.warm} warm, {self.frozen} frozen), {state}"
        )
        if self.missing:
            line += f", missing: {', '.join(self.missing)}"
        if self.warm_hit is not None:
            line += f", {self.warm_hit:.0%} warm hits"
        return line

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON data."""
        return {
            "templates": [dict(status.raw) for status in self.templates],
            "nodes": [
                {"node": pool.node, "warm": pool.warm, "frozen": pool.frozen, "templates": list(pool.templates)}
                for pool in self.nodes
            ],
            "missing": list(self.missing),
            "declared": self.declared,
            "warm": self.warm,
            "frozen": self.frozen,
            "total": self.total,
            "warm_hit": self.warm_hit,
            "converged": self.converged,
            "nodes_reporting": self.nodes_reporting,
        }


class FleetView:
    """Looks at `template_ids`, or at all of the key's own templates; `include_public`: at the catalog's too."""

    def __init__(
        self,
        client: GatewayClient,
        *,
        template_ids: Sequence[str] | None = None,
        include_public: bool = False,
    ) -> None:
        if isinstance(template_ids, str):
            raise ValueError("template_ids is a list of ids, not one text")
        self._client = client
        self._given = None if template_ids is None else tuple(template_ids)
        self._include_public = include_public

    def template_ids(self) -> list[str]:
        """The ids that a status covers, each once."""
        ids = [item["id"] for item in self._client.list_templates()] if self._given is None else list(self._given)
        if self._include_public:
            ids += [item["id"] for item in self._client.images()]
        return list(dict.fromkeys(ids))

    def status(self, samples: Iterable[float] | None = None) -> FleetStatus:
        """Ask for every template. `samples` are fork times in milliseconds, for `warm_hit`.

        A template that the gateway does not know (404) is listed in `missing`; any other error is raised.
        """
        found: list[TemplateStatus] = []
        missing: list[str] = []
        for template_id in self.template_ids():
            try:
                found.append(TemplateStatus.from_wire(self._client.get_template(template_id)))
            except GatewayError as error:
                if error.status != 404:
                    raise
                missing.append(template_id)
        times = [] if samples is None else list(samples)
        return FleetStatus(
            templates=tuple(found),
            nodes=_pools(found),
            missing=tuple(missing),
            declared=sum(status.declared for status in found),
            warm=sum(status.warm for status in found),
            frozen=sum(status.frozen for status in found),
            warm_hit=sum(took <= WARM_FORK_MS for took in times) / len(times) if times else None,
            raw={status.id: status.raw for status in found},
        )

    def watch(
        self,
        interval: float = 2.0,
        *,
        until_converged: bool = False,
        timeout: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[FleetStatus]:
        """A status every `interval` seconds. Ends with a converged one, if asked to, and after `timeout` seconds."""
        if not 0 <= interval < math.inf or (timeout is not None and math.isnan(timeout)):
            raise ValueError(f"interval and timeout are seconds, not {interval!r} and {timeout!r}")
        until = None if timeout is None else clock() + timeout
        while True:
            status = self.status()
            yield status
            if until_converged and status.converged:
                return
            left = interval if until is None else until - clock()
            if left <= 0:
                return
            sleep(min(interval, left))


def _pools(statuses: Iterable[TemplateStatus]) -> tuple[NodePool, ...]:
    nodes: dict[str, list[tuple[str, int, int]]] = {}
    for status in statuses:
        for entry in status.per_node:
            warm, frozen = (
                value if isinstance(value, int) else 0 for value in (entry.get("warm"), entry.get("frozen"))
            )
            nodes.setdefault(str(entry.get("node", "")), []).append((status.id, warm, frozen))
    return tuple(
        NodePool(
            node=node,
            warm=sum(warm for _, warm, _ in entries),
            frozen=sum(frozen for _, _, frozen in entries),
            templates=tuple(template_id for template_id, _, _ in entries),
        )
        for node, entries in sorted(nodes.items())
    )
