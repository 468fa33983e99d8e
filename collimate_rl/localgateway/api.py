"""The gateway API's requests over tenants' templates and sandboxes: parsed body in, (status, answer) out."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from collimate_rl.localgateway.forking import FORK_KIND, fork, parse_fork
from collimate_rl.localgateway.images import Images
from collimate_rl.localgateway.keys import Key
from collimate_rl.localgateway.nodes import Node
from collimate_rl.localgateway.refusals import Refusal, bad_request, not_found, text_field
from collimate_rl.localgateway.sandboxes import GatewaySandbox, Sandboxes, kept_fields
from collimate_rl.localgateway.templates import Templates
from collimate_rl.localgateway.tunnels import Tunnels
from collimate_rl.localgateway.usage import Usage

Answer = tuple[int, Any]
_NOTE_SECRETS = "a local gateway has no store of secrets: secret_refs are kept and told again, and nothing is set"


class Api:
    """What goes wrong is a CollimateError with status and code: a Refusal when it is the gateway's own."""

    def __init__(
        self, node: Node, images: Images, templates: Templates, sandboxes: Sandboxes, tunnels: Tunnels, usage: Usage
    ) -> None:
        self._node = node
        self._images = images
        self.templates = templates
        self._sandboxes = sandboxes
        self._tunnels = tunnels
        self._usage = usage

    def health(self) -> Answer:
        """Without a key: how the node is."""
        node = self._node.health()
        status = node.get("status", "unknown")
        return (
            200 if status in ("ok", "draining") else 503,
            {
                "status": status,
                "service": "local gateway",
                "version": metadata.version("collimate-rl"),
                "isolation": node.get("isolation"),
                "sessions": node.get("sessions"),
                "tunnels": self._tunnels.serves,
                "fork_kind": FORK_KIND,
            },
        )

    def images(self, key: Key) -> Answer:
        """The shared catalog, and the key's own live templates."""
        own = [
            {
                "id": one["id"],
                "name": one["name"],
                "image": one["image"],
                "visibility": "private",
                "tier": key.tier.name,
                "description": "a template of this key's",
            }
            for one in self.templates.list(key)
            if one["phase"] == "Live"
        ]
        return 200, {"images": [*self._images.rows(), *own]}

    def list_templates(self, key: Key) -> Answer:
        return 200, {"templates": self.templates.list(key)}

    def create_template(self, key: Key, body: dict[str, Any]) -> Answer:
        return self.templates.create(key, body)

    def get_template(self, key: Key, template_id: str) -> Answer:
        return 200, self.templates.status(key, template_id)

    def delete_template(self, key: Key, template_id: str) -> Answer:
        return 200, self.templates.delete(key, template_id, self._sandboxes.of_template)

    def expect(self, key: Key, template_id: str, body: dict[str, Any]) -> Answer:
        return 200, self.templates.expect(key, template_id, body)

    def release(self, key: Key, template_id: str) -> Answer:
        return 200, self.templates.release(key, template_id)

    def list_sandboxes(self, key: Key) -> Answer:
        return 200, {"sandboxes": self._sandboxes.list(key)}

    def create_sandbox(self, key: Key, body: dict[str, Any]) -> Answer:
        template = self.templates.resolve(key, text_field(body, "template") or "")
        kept = kept_fields(body)
        _refuse_egress(key, body.get("egress"))
        sandbox, created = self._sandboxes.create(key, template, kept)
        self._usage.add(key.key_id, sandboxes=1)
        answer = {**sandbox.row(), "fork_time_ms": created["fork_time_ms"], "create_time_ms": created["create_time_ms"]}
        if "secret_refs" in kept:
            answer["notes"] = [_NOTE_SECRETS]
        return 201, answer

    def get_sandbox(self, key: Key, sandbox_id: str) -> Answer:
        row = self._sandboxes.info(self._sandboxes.find(key, sandbox_id))
        if row is None:
            raise not_found(f"sandbox {sandbox_id}")
        return 200, row

    def exec(self, key: Key, sandbox_id: str, body: dict[str, Any]) -> Answer:
        answer = self._sandboxes.exec(self._sandboxes.find(key, sandbox_id), body)
        self._usage.add(key.key_id, execs=1, exec_seconds=float(answer.get("exec_time_ms") or 0.0) / 1000)
        return 200, answer

    def fork(self, key: Key, sandbox_id: str, body: dict[str, Any]) -> Answer:
        """`{parent, children, fork_kind}`: the children have the parent's files and none of its processes."""
        parent = self._sandboxes.find(key, sandbox_id)
        count, labels = parse_fork(key, body)
        children = fork(self._sandboxes, key, parent, labels)
        self._usage.add(key.key_id, forks=count, sandboxes=count)
        return 200, {"parent": parent.id, "children": [_child(one) for one in children], "fork_kind": FORK_KIND}

    def suspend(self, key: Key, sandbox_id: str) -> Answer:
        return 200, self._sandboxes.suspend(self._sandboxes.find(key, sandbox_id))

    def resume(self, key: Key, sandbox_id: str) -> Answer:
        return 200, self._sandboxes.resume(self._sandboxes.find(key, sandbox_id))

    def connect_url(self, key: Key, sandbox_id: str, body: dict[str, Any]) -> Answer:
        answer = self._tunnels.mint(key, self._sandboxes.find(key, sandbox_id), body)
        self._usage.add(key.key_id, tunnels=1)
        return 200, answer

    def delete_sandbox(self, key: Key, sandbox_id: str) -> Answer:
        return 200, self._sandboxes.delete(self._sandboxes.find(key, sandbox_id))

    def usage(self, key: Key, start: str | None, end: str | None) -> Answer:
        return 200, self._usage.report(key.key_id, start, end)


def _child(child: GatewaySandbox) -> dict[str, Any]:
    return child.row()


def _refuse_egress(key: Key, egress: Any) -> None:
    """Local templates have no network card, so no policy applies; on a demo key one that wants a way out says so."""
    if egress is None:
        return
    if not isinstance(egress, dict):
        raise bad_request("egress must be an object")
    if egress.get("mode") != "none" and not key.tier.pro:
        raise Refusal(403, "network_requires_pro", "sandboxes with a network are a Pro feature: drop egress")
    raise bad_request("template is vsock-only: drop egress, a local sandbox has no way out")
