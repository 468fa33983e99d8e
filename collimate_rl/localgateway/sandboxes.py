"""The sandboxes of all keys: whose they are, how many a key may have, and what they are asked to do."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.localgateway.keys import Key
from collimate_rl.localgateway.nodes import Node
from collimate_rl.localgateway.refusals import Proxied, Refusal, at_capacity, bad_request, conflict, not_found
from collimate_rl.localgateway.templates import GatewayTemplate

RUNNING, SUSPENDED = "running", "suspended"
_LOOK_EVERY = 256


class GatewaySandbox:
    """One live sandbox."""

    def __init__(
        self, key: Key, template: GatewayTemplate, node: Node, created: dict[str, Any], kept: dict[str, Any], now: float
    ) -> None:
        self.id = f"sbx-{secrets.token_hex(8)}"
        self.owner = key.key_id
        self.template = template
        self.node = node
        self.session_id: str = created["session_id"]
        self.endpoints: dict[str, str] = created.get("endpoints") or {}
        self.kept = kept
        self.created = now
        self.state = RUNNING
        self.suspend_kind: str | None = None
        self.busy = 0
        self.changing = threading.Lock()

    def row(self) -> dict[str, Any]:
        """What the gateway itself knows of it."""
        row = {"id": self.id, "template": self.template.id, "state": self.state, **self.kept}
        if self.endpoints:
            row["endpoints"] = self.endpoints
        return row


class Places:
    """Room that is held for sandboxes of a key until they are entered."""

    def __init__(self, key: Key, count: int) -> None:
        self.key = key
        self.left = count


class Sandboxes:
    """`create` and all that follows; another key's sandbox is not found."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._all: dict[str, GatewaySandbox] = {}
        self._reserved: dict[str, int] = {}
        self._created = 0

    def create(
        self, key: Key, template: GatewayTemplate, kept: dict[str, Any]
    ) -> tuple[GatewaySandbox, dict[str, Any]]:
        """A fork of a live template: (the sandbox, the daemon's answer)."""
        node = _live(template)
        self._forget_some()
        with self.places(key, 1) as places:
            created = node.create(template.node_template, kept.get("label"))
            return self.enter(places, template, node, created, kept), created

    def enter(
        self, places: Places, template: GatewayTemplate, node: Node, created: dict[str, Any], kept: dict[str, Any]
    ) -> GatewaySandbox:
        """Enter what the node has created; it takes one of the places."""
        sandbox = GatewaySandbox(places.key, template, node, created, kept, self._clock())
        with self._lock:
            self._all[sandbox.id] = sandbox
            self._reserved[sandbox.owner] -= 1
            places.left -= 1
        return sandbox

    def _forget_some(self) -> None:
        """Now and then, forget those that the daemon ended: for keys that neither list nor delete."""
        with self._lock:
            self._created += 1
            looked_at = list(self._all.values()) if self._created % _LOOK_EVERY == 0 else []
        for sandbox in looked_at:
            self.info(sandbox)

    @contextmanager
    def places(self, key: Key, count: int) -> Iterator[Places]:
        """Room for so many more sandboxes of this key; refused before anything is made."""
        limit = key.tier.concurrency
        if limit is not None and self._held(key) + count > limit:
            self._forget_dead(key)
        with self._lock:
            if limit is not None and self._count(key) + count > limit:
                raise Refusal(
                    429,
                    "demo_tier_limit",
                    f"Demo keys run {limit} sandboxes at once: delete some, or ask for a Pro key.",
                    retry_after_s=1,
                )
            self._reserved[key.key_id] = self._reserved.get(key.key_id, 0) + count
        places = Places(key, count)
        try:
            yield places
        finally:
            with self._lock:
                self._reserved[key.key_id] -= places.left

    def _held(self, key: Key) -> int:
        with self._lock:
            return self._count(key)

    def _count(self, key: Key) -> int:
        live = sum(one.owner == key.key_id for one in self._all.values())
        return live + self._reserved.get(key.key_id, 0)

    def _forget_dead(self, key: Key) -> None:
        for sandbox in self._of(key):
            self.info(sandbox)

    def _of(self, key: Key) -> list[GatewaySandbox]:
        with self._lock:
            return [one for one in self._all.values() if one.owner == key.key_id]

    def find(self, key: Key, sandbox_id: str) -> GatewaySandbox:
        """The key's own; 404 otherwise."""
        with self._lock:
            found = self._all.get(sandbox_id)
        if found is None or found.owner != key.key_id:
            raise not_found(f"sandbox {sandbox_id}")
        return found

    def list(self, key: Key) -> list[dict[str, Any]]:
        """The key's live ones, oldest first."""
        rows = (self.info(sandbox) for sandbox in self._of(key))
        return [row for row in rows if row is not None]

    def info(self, sandbox: GatewaySandbox) -> dict[str, Any] | None:
        """With the daemon's counters; None, and forgotten, when the daemon has it no more."""
        try:
            info = sandbox.node.info(sandbox.session_id)
        except CollimateError as exc:
            if exc.status in (404, 410):
                self._forget(sandbox)
                return None
            raise
        return {**sandbox.row(), **{name: info.get(name) for name in ("age_secs", "idle_secs", "exec_count")}}

    def _forget(self, sandbox: GatewaySandbox) -> None:
        with self._lock:
            self._all.pop(sandbox.id, None)

    def exec(self, sandbox: GatewaySandbox, body: dict[str, Any]) -> dict[str, Any]:
        """The daemon's ExecResponse; 409 while it is suspended."""
        with self.in_use(sandbox):
            try:
                return sandbox.node.exec(sandbox.session_id, body)
            except Refusal:
                raise
            except CollimateError as exc:
                if exc.status in (404, 410):
                    self._forget(sandbox)
                if exc.status == 404:
                    raise not_found(f"sandbox {sandbox.id}") from exc
                if exc.error_code == "at_capacity":
                    raise at_capacity(exc.message) from exc
                raise Proxied(exc.message, exc.status, exc.error_code) from exc

    @contextmanager
    def in_use(self, sandbox: GatewaySandbox) -> Iterator[None]:
        """It can't be suspended meanwhile."""
        with self._lock:
            if sandbox.state != RUNNING:
                raise conflict("sandbox_suspended", f"{sandbox.id} is suspended: resume it first")
            sandbox.busy += 1
        try:
            yield
        finally:
            with self._lock:
                sandbox.busy -= 1

    def suspend(self, sandbox: GatewaySandbox) -> dict[str, Any]:
        """Stop every process in it, where the node can; its memory stays in memory. A second time changes nothing."""
        with sandbox.changing:
            with self._lock:
                if sandbox.busy:
                    raise conflict("sandbox_busy", f"an exec runs in {sandbox.id}: wait for it, then suspend")
                again, sandbox.state = sandbox.state == SUSPENDED, SUSPENDED
            if not again:
                sandbox.suspend_kind = "stopped" if self._freeze(sandbox, stop=True) else "refuses_execs"
            return {"id": sandbox.id, "state": SUSPENDED, "suspend_kind": sandbox.suspend_kind}

    def _freeze(self, sandbox: GatewaySandbox, *, stop: bool) -> bool:
        try:
            return sandbox.node.freeze(sandbox.session_id, stop=stop)
        except CollimateError as exc:
            if exc.status not in (404, 410):
                raise
            self._forget(sandbox)
            raise not_found(f"sandbox {sandbox.id}") from exc

    def resume(self, sandbox: GatewaySandbox) -> dict[str, Any]:
        """Let it go on. A second time changes nothing."""
        with sandbox.changing:
            if sandbox.state == SUSPENDED:
                self._freeze(sandbox, stop=False)
                with self._lock:
                    sandbox.state, sandbox.suspend_kind = RUNNING, None
            return {"id": sandbox.id, "state": RUNNING}

    def delete(self, sandbox: GatewaySandbox) -> dict[str, Any]:
        """Everything in it is dead when this returns."""
        sandbox.node.delete(sandbox.session_id)
        self._forget(sandbox)
        return {"deleted": True, "id": sandbox.id}

    def of_template(self, template_id: str) -> int:
        """How many sandboxes of a template live."""
        with self._lock:
            found = [one for one in self._all.values() if one.template.id == template_id]
        return sum(self.info(one) is not None for one in found)

    def close(self) -> None:
        """Delete all that are left."""
        with self._lock:
            left = list(self._all.values())
            self._all.clear()
        for sandbox in left:
            sandbox.node.delete(sandbox.session_id)


def _live(template: GatewayTemplate) -> Node:
    node = template.node
    if template.phase != "Live" or node is None:
        why = f": {template.error}" if template.error else ""
        raise conflict("template_not_live", f"template {template.id} is {template.phase}{why}")
    return node


def kept_fields(body: dict[str, Any]) -> dict[str, Any]:
    """`label`, `labels`, `secret_refs` as they were given, to be told again; 400 when one is off."""
    kept: dict[str, Any] = {}
    label = body.get("label")
    if label is not None:
        if not isinstance(label, str) or len(label) > 256:
            raise bad_request("label must be a string of at most 256 characters")
        kept["label"] = label
    for name in ("labels", "secret_refs"):
        value = body.get(name)
        if value is None:
            continue
        texts = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else [None]
        if not all(isinstance(text, str) and len(text) <= 256 for text in texts):
            raise bad_request(f"{name} must be a list or an object of strings of at most 256 characters")
        kept[name] = value
    return kept
