"""The gateway's requests one by one, as `GatewayClient` offers them: a method per row of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collimate_rl import _gateway_wire as wire
from collimate_rl._retry import GATEWAY_IDEMPOTENT, GATEWAY_NON_IDEMPOTENT, ResendRule
from collimate_rl._transport import Sender
from collimate_rl.client import EXEC_MARGIN_S, checked_exec, exec_body
from collimate_rl.errors import GatewayError

if TYPE_CHECKING:
    from collimate_rl.template import Ready


class GatewayApi:
    """Answers are the wire's dicts; sandboxes have `session_id` and `template_id` beside `id` and `template`."""

    base_url: str
    timeout: float
    _sender: Sender

    # The catalog, and what was used

    def health(self) -> dict[str, Any]:
        """The gateway's own word on how it is."""
        return wire.mapping(self._get("health"), "health")

    def images(self) -> list[dict[str, Any]]:
        """The catalog: `[{id, name, image, visibility, tier, description}]`."""
        return wire.listed(self._get("images"), "images", "templates")

    def list_images(self) -> list[dict[str, Any]]:
        """As `images()`."""
        return self.images()

    def usage(self, from_: str | None = None, to: str | None = None) -> dict[str, Any]:
        """`{from, to, totals}` between two instants in RFC 3339."""
        return wire.mapping(self._send("GET", wire.path("usage", **{"from": from_, "to": to})), "usage")

    # Templates

    def create_template(
        self,
        name: str,
        image: str,
        *,
        ready: Ready | Mapping[str, Any] | None = None,
        width: int = 1,
        cold_fraction: float | None = None,
        expected_width: int | None = None,
    ) -> dict[str, Any]:
        """Have a template baked: `{id, name, image, phase, bake_mode}`. The same again is the same template.

        `width` is how many forks are kept at hand, `cold_fraction` how much of them frozen.
        """
        spec = ready if ready is None or isinstance(ready, Mapping) else ready.to_wire()
        body = wire.given(
            name=name,
            image=image,
            ready=None if spec is None else dict(spec),
            pool=wire.given(width=width, cold_fraction=cold_fraction),
            expected_width=expected_width,
        )
        return wire.with_id(self._send("POST", "/v1/templates", body, rule=GATEWAY_IDEMPOTENT), "a bake")

    def list_templates(self) -> list[dict[str, Any]]:
        """The key's own templates."""
        return wire.listed(self._get("templates"), "templates")

    def templates(self) -> list[str]:
        """Their ids."""
        return [str(template["id"]) for template in self.list_templates()]

    def get_template(self, template_id: str) -> dict[str, Any]:
        """`{id, name, image, phase, declared, warm, frozen, per_node, converge_state, bake_mode, error, …}`."""
        return wire.with_id(self._get("templates", template_id), "a template")

    def delete_template(self, template_id: str) -> dict[str, Any]:
        """`{deleted, id}`; refused for an image of the catalog (403), an unknown one (404), one in use (409)."""
        return wire.mapping(self._send("DELETE", wire.path("templates", template_id)), "a deletion")

    def expect_width(self, template_id: str, width: int) -> dict[str, Any]:
        """Declare how many forks will be wanted at once: `{id, expected_width}`. Tiers pro and ent."""
        path = wire.path("templates", template_id, "expect")
        return wire.mapping(self._send("POST", path, {"width": width}, rule=GATEWAY_IDEMPOTENT), "expect")

    def release_template(self, template_id: str) -> dict[str, Any]:
        """Take a declaration back: `{id, released, released_at}`."""
        path = wire.path("templates", template_id, "release")
        return wire.mapping(self._send("POST", path, {}, rule=GATEWAY_IDEMPOTENT), "release")

    # Sandboxes

    def create_sandbox(
        self,
        template: str,
        *,
        label: str | None = None,
        labels: Mapping[str, str] | None = None,
        egress: Mapping[str, Any] | None = None,
        secret_refs: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """`{id, template, fork_time_ms, create_time_ms, endpoints?}`, with `session_id` and `template_id` beside."""
        body = wire.given(
            template=template,
            label=label,
            labels=None if labels is None else dict(labels),
            egress=None if egress is None else dict(egress),
            secret_refs=None if secret_refs is None else list(secret_refs),
        )
        answer = wire.mapping(self._send("POST", "/v1/sandboxes", body), "a create")
        return wire.as_session({"template": template, **answer})

    def list_sandboxes(self) -> list[dict[str, Any]]:
        """The key's sandboxes."""
        return [wire.as_session(sandbox) for sandbox in wire.listed(self._get("sandboxes"), "sandboxes")]

    def get_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """One sandbox; `GatewayError` with `not_found` when it is gone."""
        return wire.as_session(self._get("sandboxes", sandbox_id))

    def exec(
        self,
        sandbox_id: str,
        command: str | None = None,
        *,
        code: str | None = None,
        commands: Sequence[Sequence[str]] | None = None,
        files: Sequence[Mapping[str, str]] | None = None,
        timeout_seconds: int = 30,
        seed: str | None = None,
    ) -> dict[str, Any]:
        """Run in a sandbox; arguments and answer as `CollimateClient.session_exec`."""
        body = exec_body(command, code, commands, files, timeout_seconds, seed)
        timeout_s = max(self.timeout, timeout_seconds + EXEC_MARGIN_S)
        path = wire.path("sandboxes", sandbox_id, "exec")
        return checked_exec(self._send("POST", path, body, timeout_s=timeout_s), self.base_url)

    def fork(self, sandbox_id: str, count: int = 1, *, labels: Sequence[str] | None = None) -> dict[str, Any]:
        """`{parent, children: [{id, endpoints?}]}`; at most `fan_out` children in one call."""
        body = wire.given(count=count, labels=None if labels is None else list(labels))
        return wire.fork_answer(self._send("POST", wire.path("sandboxes", sandbox_id, "fork"), body))

    def suspend(self, sandbox_id: str) -> dict[str, Any]:
        """Freeze a sandbox; its state."""
        return wire.mapping(self._send("POST", wire.path("sandboxes", sandbox_id, "suspend"), {}), "suspend")

    def resume(self, sandbox_id: str) -> dict[str, Any]:
        """Let a sandbox go on; its state."""
        return wire.mapping(self._send("POST", wire.path("sandboxes", sandbox_id, "resume"), {}), "resume")

    def delete_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """`{deleted, id}`; `GatewayError` with `not_found` when there is none. `delete_session` never raises that."""
        return wire.mapping(self._send("DELETE", wire.path("sandboxes", sandbox_id)), "a deletion")

    def connect_url(
        self, sandbox_id: str, port: int, *, ttl_seconds: int = 600, protocol: str = "tcp"
    ) -> dict[str, Any]:
        """`{url, expires_at}` of a WebSocket that reaches `port` inside; it can be opened for at most 3600 seconds.

        `protocol` is tcp, or cdp for a browser's DevTools. A refusal says what to do: ports are a Pro feature, and must
        be exposed by the template.
        """
        if not wire.is_whole(port, 1, 65535):
            raise ValueError(f"a port is a whole number from 1 to 65535, not {port!r}")
        if protocol not in ("tcp", "cdp"):
            raise ValueError(f"protocol is tcp or cdp, not {protocol!r}")
        if ttl_seconds < 1:
            raise ValueError(f"ttl_seconds is at least 1, not {ttl_seconds!r}")
        body: dict[str, Any] = {"port": port, "ttl_seconds": min(int(ttl_seconds), wire.MAX_TTL_S)}
        if protocol == "cdp":
            body["protocol"] = protocol
        try:
            answer = self._send("POST", wire.path("sandboxes", sandbox_id, "connect-url"), body)
        except GatewayError as error:
            raise wire.explained(error, port) from error
        return wire.url_answer(answer)

    def cdp_url(self, sandbox_id: str, *, ttl_seconds: int = 600) -> str:
        """The URL of the DevTools of a browser that listens on port 9222 inside."""
        return str(self.connect_url(sandbox_id, wire.CDP_PORT, ttl_seconds=ttl_seconds, protocol="cdp")["url"])

    # Sending

    def _get(self, *parts: str) -> Any:
        return self._send("GET", wire.path(*parts))

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        rule: ResendRule | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        if rule is None:
            rule = GATEWAY_NON_IDEMPOTENT if method == "POST" else GATEWAY_IDEMPOTENT
        return self._sender.json(method, path, body, rule=rule, timeout_s=timeout_s or self.timeout)
