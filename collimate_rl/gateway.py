"""The client of the gateway, the multi-tenant cloud in front of the fleet.

Its session surface is `CollimateClient`'s one to one, so whatever takes a client takes either. Answers are the wire's
dicts; sandboxes have `session_id` and `template_id` beside `id` and `template`. Failures are `CollimateError`s: what
the gateway refuses is a `GatewayError`, a limit of the demo tier a `DemoTierLimit` in the server's own words.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from collimate_rl import _gateway_wire as wire
from collimate_rl._gateway_transport import transport_for
from collimate_rl._retry import (
    GATEWAY_IDEMPOTENT,
    GATEWAY_NON_IDEMPOTENT,
    ResendRule,
    RetryPolicy,
    Sleep,
    Uniform,
)
from collimate_rl._transport import Sender, Transport
from collimate_rl.client import EXEC_MARGIN_S, checked_exec, exec_body
from collimate_rl.errors import CollimateError, GatewayError

if TYPE_CHECKING:
    from collimate_rl.template import Env, Ready, Session

DEFAULT_ORIGIN: Final = "https://api.collimate.ai"
API_KEY_VARIABLE: Final = "COLLIMATE_API_KEY"
ORIGIN_VARIABLE: Final = "COLLIMATE_BASE_URL"

_log = logging.getLogger(__name__)


class GatewayClient:
    """Speaks the gateway API with one key; safe to share between threads, and to use after a fork.

    Without an `api_key` it is `$COLLIMATE_API_KEY`'s; without a `base_url` (an origin) `$COLLIMATE_BASE_URL`'s, else
    `https://api.collimate.ai`. The other options are as `CollimateClient`'s. What may have happened is never sent
    again; `at_capacity` is, and a Retry-After is kept to within `retry_budget` seconds. No key anywhere is a
    `ValueError`.
    """

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        timeout: float = 120.0,
        retries: int = 3,
        backoff: float = 0.15,
        retry_budget: float = 30.0,
        transport: Transport | None = None,
        sleep: Sleep = time.sleep,
        uniform: Uniform = random.uniform,
    ) -> None:
        key = api_key or os.environ.get(API_KEY_VARIABLE)
        if not key:
            raise ValueError(f"the gateway needs a key: give api_key=, or set ${API_KEY_VARIABLE} (col_<tier>_…)")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError("an API key is printable ASCII without blanks; this one has other characters in it")
        if not 0 < timeout < float("inf"):
            raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
        self.base_url = (base_url or os.environ.get(ORIGIN_VARIABLE) or DEFAULT_ORIGIN).rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self.retry_budget = retry_budget
        self.tier = wire.tier_of(key)
        """demo, pro or ent, as the key's name says; None where it says something else."""
        self.key_hash = hashlib.sha256(key.encode("ascii")).hexdigest()[:32]
        """What the key is called where the key itself must not be seen."""
        self._sender = Sender(
            transport or transport_for(self.base_url),
            RetryPolicy(retries=retries, backoff_s=backoff, budget_s=retry_budget),
            headers={"Authorization": f"Bearer {key}"},
            refusal=wire.refusal,
            sleep=sleep,
            uniform=uniform,
        )

    @property
    def fan_out(self) -> int:
        """How many forks one call may ask for on this key's tier; the least where the tier is not known."""
        return wire.FAN_OUT[self.tier or "demo"]

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GatewayClient({self.base_url!r}, tier={self.tier!r})"

    def close(self) -> None:
        """Close the idle connections. The client stays usable, and opens new ones when it must."""
        self._sender.transport.close()

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

    # The daemon's session surface

    def create_session(
        self, template_id: str, *, egress: Mapping[str, Any] | None = None, label: str | None = None
    ) -> dict[str, Any]:
        """As `CollimateClient.create_session`; `label` is kept among the sandbox's labels. No such template: 404
        `no_template`."""
        labels = None if label is None else {wire.LABEL_KEY: label}
        try:
            return self.create_sandbox(template_id, labels=labels, egress=egress)
        except GatewayError as error:
            if error.status == 404:
                raise wire.recoded(error, "no_template") from error
            raise

    def get_session(self, session_id: str) -> dict[str, Any]:
        """The sandbox; `no_such_session` when it is gone."""
        try:
            return self.get_sandbox(session_id)
        except GatewayError as error:
            raise _gone(error) from error

    def list_sessions(self) -> list[dict[str, Any]]:
        """The key's sandboxes, as sessions."""
        return self.list_sandboxes()

    def session_exec(
        self,
        session_id: str,
        *,
        command: str | None = None,
        code: str | None = None,
        commands: Sequence[Sequence[str]] | None = None,
        files: Sequence[Mapping[str, str]] | None = None,
        timeout_seconds: int = 30,
        seed: str | None = None,
    ) -> dict[str, Any]:
        """As `CollimateClient.session_exec`; `no_such_session` when the sandbox is gone."""
        try:
            return self.exec(
                session_id,
                command,
                code=code,
                commands=commands,
                files=files,
                timeout_seconds=timeout_seconds,
                seed=seed,
            )
        except GatewayError as error:
            raise _gone(error) from error

    def exec_once(
        self,
        template_id: str,
        *,
        command: str | None = None,
        code: str | None = None,
        commands: Sequence[Sequence[str]] | None = None,
        files: Sequence[Mapping[str, str]] | None = None,
        timeout_seconds: int = 30,
        seed: str | None = None,
        egress: Mapping[str, Any] | None = None,
        label: str | None = None,
    ) -> dict[str, Any]:
        """Create a sandbox, run once, delete it, whatever the exec did. A deletion that fails is logged."""
        made = self.create_session(template_id, egress=egress, label=label)
        try:
            answer = self.session_exec(
                made["session_id"],
                command=command,
                code=code,
                commands=commands,
                files=files,
                timeout_seconds=timeout_seconds,
                seed=seed,
            )
        finally:
            self._delete_used(made["session_id"])
        if not answer.get("fork_time_ms"):
            answer["fork_time_ms"] = made.get("fork_time_ms")
        return answer

    def delete_session(self, session_id: str) -> dict[str, Any]:
        """`{deleted, id, session_id}`; a sandbox that is not there is `deleted: False`, never an error."""
        try:
            return {**self.delete_sandbox(session_id), "session_id": session_id}
        except GatewayError as error:
            if error.status in (404, 410):
                return {"deleted": False, "session_id": session_id}
            raise

    # Objects

    def session(self, template: str, **options: Any) -> Session:
        """A `Session` of `template`, not started yet: enter it as a context, or call `start()`."""
        from collimate_rl.session import Session

        return Session(template, client=self, **options)

    def env(
        self,
        ref: str,
        *,
        width: int | None = None,
        name: str | None = None,
        ready: Ready | Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] | None = None,
    ) -> Env:
        """An `Env` of what `ref` names: an id before a name, of one's own templates before the catalog.

        A catalog image without overrides is used as it is, and `width` is a hint. With `ready` or `env` it is baked
        into a private template, `env` folded into `ready.env` where that does not say otherwise; so is a reference
        to an image that neither knows. A template of one's own with a `width` is declared. `secrets` ride with every
        create, and are never baked. `GatewayError` with `not_found` for what is none of these.
        """
        from collimate_rl._env import open_env

        return open_env(self, ref, width=width, name=name, ready=ready, env=env, secrets=secrets)

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

    def _delete_used(self, sandbox_id: str) -> None:
        try:
            self.delete_session(sandbox_id)
        except CollimateError as error:
            # The exec's own answer or error is what the caller wants; the gateway's idle limit takes the sandbox.
            _log.warning("sandbox %s could not be deleted: %s", sandbox_id, error)


def _gone(error: GatewayError) -> GatewayError:
    return wire.recoded(error, "no_such_session") if error.status == 404 else error
