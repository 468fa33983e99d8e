"""Templates of a gateway: what makes one ready, how it is baked, and how far that has come.

A template goes through the phases Pending, Converting, Distributing and Live; Failed is the end. Live is not yet
converged: that is when warm and frozen forks together reach the declared width.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from collimate_rl._gateway_wire import is_whole
from collimate_rl.errors import MalformedAnswer, TemplateBakeFailed
from collimate_rl.gateway import GatewayClient

LIVE: Final = "Live"
FAILED: Final = "Failed"
CONVERGED: Final = "converged"
DEFAULT_WIDTH: Final = 1


@dataclass(frozen=True)
class Ready:
    """When a fresh sandbox of a template counts as ready, and what it is started with.

    `cmd` is a shell command that must exit with 0; `http` a URL or a path that must answer, and wins over `cmd`, within
    `http_timeout_s` seconds. `ports` are exposed, `env` is the environment, `network` gives it a network card.
    """

    cmd: str | None = None
    http: str | None = None
    http_timeout_s: float | None = None
    ports: Sequence[int] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool | None = None

    def __post_init__(self) -> None:
        if self.http_timeout_s is not None and not 0 < self.http_timeout_s < math.inf:
            raise ValueError(f"http_timeout_s is a number of seconds above 0, not {self.http_timeout_s!r}")
        for port in self.ports:
            if not is_whole(port, 1, 65535):
                raise ValueError(f"a port is a whole number from 1 to 65535, not {port!r}")

    def to_wire(self) -> dict[str, Any]:
        """A ReadySpec; what was not given is left out."""
        fields: dict[str, Any] = {
            "cmd": self.cmd,
            "http": self.http,
            "http_timeout_s": self.http_timeout_s,
            "ports": list(self.ports) or None,
            "env": dict(self.env) or None,
            "network": self.network,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class TemplateStatus:
    """How far a template is. `declared`, `warm` and `frozen` count forks; `per_node` is `{node, warm, frozen}` each.

    `error` and `build_fails` tell of what went wrong in a bake; `raw` is the wire's dict.
    """

    id: str
    name: str
    image: str
    phase: str
    declared: int
    warm: int
    frozen: int
    per_node: tuple[Mapping[str, Any], ...]
    converge_state: str
    bake_mode: str
    error: str | None
    build_fails: int
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def total(self) -> int:
        """Forks at hand: warm and frozen."""
        return self.warm + self.frozen

    @property
    def is_live(self) -> bool:
        """True when sandboxes can be made of it."""
        return self.phase == LIVE

    @property
    def is_failed(self) -> bool:
        """True when its bake failed, for good."""
        return self.phase == FAILED

    @property
    def is_converged(self) -> bool:
        """True when warm and frozen forks reach the declared width, as the gateway says."""
        return self.converge_state == CONVERGED

    @classmethod
    def from_wire(cls, answer: Mapping[str, Any]) -> TemplateStatus:
        """From a template as the gateway tells it; only `id` must be there. A wrong field is a `MalformedAnswer`."""
        if not isinstance(answer.get("id"), str):
            raise MalformedAnswer("a template's answer names no id")
        per_node = answer.get("per_node") or []
        if not isinstance(per_node, list) or not all(isinstance(node, dict) for node in per_node):
            raise MalformedAnswer("a template's per_node is a list of objects")
        error = answer.get("error")
        return cls(
            id=answer["id"],
            name=_text(answer, "name"),
            image=_text(answer, "image"),
            phase=_text(answer, "phase"),
            declared=_count(answer, "declared"),
            warm=_count(answer, "warm"),
            frozen=_count(answer, "frozen"),
            per_node=tuple(per_node),
            converge_state=_text(answer, "converge_state"),
            bake_mode=_text(answer, "bake_mode"),
            error=None if not error else str(error),
            build_fails=_count(answer, "build_fails"),
            raw=answer,
        )


class TemplateHandle:
    """One template of a gateway: `id` (also `template_id`), its status, and the wait for it."""

    def __init__(self, client: GatewayClient, template_id: str, *, raw: Mapping[str, Any] | None = None) -> None:
        self.client = client
        self.id = template_id
        self.raw: Mapping[str, Any] = raw or {}
        """What the gateway answered when it was made or attached to."""

    def __repr__(self) -> str:
        return f"TemplateHandle({self.id!r})"

    @property
    def template_id(self) -> str:
        return self.id

    def status(self) -> TemplateStatus:
        """Ask the gateway. Raises `GatewayError`."""
        return TemplateStatus.from_wire(self.client.get_template(self.id))

    def wait(
        self,
        timeout: float = 600,
        poll_interval: float = 1,
        on_update: Callable[[TemplateStatus], None] | None = None,
        fail_fast: bool = True,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> TemplateStatus:
        """Ask every `poll_interval` seconds until the template is Live; its status then.

        `on_update` is called with the first status and with each that differs from the one before. A template that
        failed raises `TemplateBakeFailed` at once; with `fail_fast` off only when the time is up, since a gateway may
        build it again. Time up otherwise is a `TimeoutError`. A refusal by the gateway is raised as it comes.
        """
        if math.isnan(timeout) or not poll_interval >= 0:
            raise ValueError(f"timeout and poll_interval are seconds, not {timeout!r} and {poll_interval!r}")
        until = clock() + timeout
        before: TemplateStatus | None = None
        while True:
            status = self.status()
            if status != before and on_update is not None:
                on_update(status)
            before = status
            if status.is_live:
                return status
            left = until - clock()
            if status.is_failed and (fail_fast or left <= 0):
                why = status.error or "the gateway gives no reason"
                raise TemplateBakeFailed(f"template {status.name or self.id} failed to bake: {why}", status)
            if left <= 0:
                raise TimeoutError(
                    f"template {status.name or self.id} is {status.phase or 'of no known phase'} after {timeout:g} s, "
                    f"not {LIVE}: it may still come; wait again, with a larger timeout"
                )
            sleep(max(0.0, min(poll_interval, left)))

    def expect_width(self, width: int) -> dict[str, Any]:
        """Declare how many forks will be wanted at once."""
        return self.client.expect_width(self.id, width)

    def release(self) -> dict[str, Any]:
        """Take the declaration back."""
        return self.client.release_template(self.id)

    def delete(self) -> dict[str, Any]:
        """Delete the template."""
        return self.client.delete_template(self.id)


class Template:
    """Where template handles come from. Without a `client` it is a `GatewayClient` with the environment's key."""

    @staticmethod
    def bake(
        image: str,
        *,
        name: str | None = None,
        ready: Ready | Mapping[str, Any] | None = None,
        width: int = DEFAULT_WIDTH,
        cold_fraction: float | None = None,
        expected_width: int | None = None,
        client: GatewayClient | None = None,
    ) -> TemplateHandle:
        """Have a template baked of an OCI image; baking the same again is no error. Does not wait: `handle.wait()`."""
        gateway = client or GatewayClient()
        made = gateway.create_template(
            name or template_name(image),
            image,
            ready=ready,
            width=width,
            cold_fraction=cold_fraction,
            expected_width=expected_width,
        )
        return TemplateHandle(gateway, made["id"], raw=made)

    @staticmethod
    def attach(template_id: str, *, client: GatewayClient | None = None) -> TemplateHandle:
        """A handle on a template that is there; `GatewayError` with `not_found` when it is not."""
        gateway = client or GatewayClient()
        return TemplateHandle(gateway, template_id, raw=gateway.get_template(template_id))

    @staticmethod
    def status(template_id: str, *, client: GatewayClient | None = None) -> TemplateStatus:
        """How far a template is."""
        return TemplateHandle(client or GatewayClient(), template_id).status()


def template_name(image: str) -> str:
    """A name made of an image's reference: `registry.example/org/name:tag` gives `name-tag`."""
    last = image.rpartition("/")[2].partition("@")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-.")[:63] or "template"


def _text(answer: Mapping[str, Any], key: str) -> str:
    value = answer.get(key)
    return value if isinstance(value, str) else ""


def _count(answer: Mapping[str, Any], key: str) -> int:
    value = answer.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or not is_whole(value, 0):
        raise MalformedAnswer(f"a template's {key} is a whole number from 0, not {str(value)[:80]!r}")
    return value
