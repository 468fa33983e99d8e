"""Tenants' templates: declared, baked in the background, and found again by id or name."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from collimate_rl.errors import CollimateError
from collimate_rl.localgateway.images import Images
from collimate_rl.localgateway.keys import Key
from collimate_rl.localgateway.nodes import Node
from collimate_rl.localgateway.pools import Pool
from collimate_rl.localgateway.ready import Ready, check_ready, parse_ready
from collimate_rl.localgateway.refusals import (
    Refusal,
    bad_request,
    conflict,
    forbidden,
    not_found,
    number_field,
    text_field,
)
from collimate_rl.localgateway.usage import rfc3339

log = logging.getLogger(__name__)
MAX_WIDTH = 100_000
MAX_TEMPLATES = 64
"""Of one key; each with ports or variables of its own keeps a warm interpreter."""
_STOP_S = 30.0


class GatewayTemplate:
    """One tenant's template, or (`owner` None) an image of the shared catalog."""

    def __init__(self, template_id: str, owner: str | None, name: str, image: str, ready: Ready, pool: Pool) -> None:
        self.id = template_id
        self.owner = owner
        self.name = name
        self.image = image
        self.ready = ready
        self.pool = pool
        self.phase = "Pending"
        self.error: str | None = None
        self.build_fails = 0
        self.node: Node | None = None
        self.node_template = ""
        self.deleted = threading.Event()

    def status(self, node_name: str) -> dict[str, Any]:
        """As on the wire."""
        warm, frozen = self.pool.counts() if self.phase == "Live" else (0, 0)
        declared = self.pool.declared
        return {
            "id": self.id,
            "name": self.name,
            "image": self.image,
            "visibility": "public" if self.owner is None else "private",
            "phase": self.phase,
            "declared": declared,
            "warm": warm,
            "frozen": frozen,
            "per_node": [{"node": node_name, "warm": warm, "frozen": frozen}] if self.phase == "Live" else [],
            "converge_state": "converged" if self.phase == "Live" and warm + frozen >= declared else "converging",
            "bake_mode": "local",
            "error": self.error,
            "build_fails": self.build_fails,
        }


class Templates:
    """All of them. `phase_s` is how long each phase of a bake lasts at least, `converge_s` how long a pool fills."""

    def __init__(
        self, node: Node, images: Images, *, node_name: str, phase_s: float, converge_s: float, ready_s: float
    ) -> None:
        self._node = node
        self._images = images
        self._node_name = node_name
        self._phase_s = phase_s
        self._converge_s = converge_s
        self._ready_s = ready_s
        self._lock = threading.Lock()
        self._bakes: set[threading.Thread] = set()
        self._closing = False
        self._all: dict[str, GatewayTemplate] = {}
        for name in images.names:
            shared = self._all[name] = GatewayTemplate(name, None, name, f"local/{name}", Ready(), Pool(0, 0.0, 0.0))
            shared.phase, shared.node, shared.node_template = "Live", node, name

    def create(self, key: Key, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Declare and begin to bake: 201, or 200 when the same is there already."""
        name = text_field(body, "name", longest=128) or ""
        image = text_field(body, "image") or ""
        ready = parse_ready(body.get("ready"))
        pool = body.get("pool") or {}
        if not isinstance(pool, dict):
            raise bad_request("pool must be an object")
        width = number_field(pool, "width", 0, MAX_WIDTH, 0)
        width = max(width, number_field(body, "expected_width", 0, MAX_WIDTH, 0))
        cold = pool.get("cold_fraction")
        cold = 0.0 if cold is None else cold
        if isinstance(cold, bool) or not isinstance(cold, int | float) or not 0 <= cold <= 1:
            raise bad_request("pool.cold_fraction must be a number from 0 to 1")
        if ready.network and not key.tier.pro:
            raise Refusal(403, "network_requires_pro", "templates with a network are a Pro feature: drop ready.network")
        template_id = _id(key.key_id, name, image, body.get("ready"))
        with self._lock:
            found = self._all.get(template_id)
            if found is not None and found.phase != "Failed":
                if width != found.pool.declared:
                    found.pool.declare(width)
                return 200, _created(found)
            if found is None and sum(one.owner == key.key_id for one in self._all.values()) >= MAX_TEMPLATES:
                raise Refusal(403, "quota_exceeded", f"{MAX_TEMPLATES} templates of this key are there: delete some")
            template = GatewayTemplate(
                template_id, key.key_id, name, image, ready, Pool(width, float(cold), self._converge_s)
            )
            template.build_fails = found.build_fails if found is not None else 0
            self._all[template_id] = template
            bake = threading.Thread(target=self._bake, args=(template,), name=f"bake-{template_id}", daemon=True)
            self._bakes.add(bake)
            bake.start()
        return 201, _created(template)

    def _bake(self, template: GatewayTemplate) -> None:
        try:
            steps: dict[str, Callable[[GatewayTemplate], None]] = {
                "Pending": lambda _: None,
                "Converting": self._convert,
                "Distributing": self._check,
            }
            for phase, step in steps.items():
                template.phase = phase
                began = time.monotonic()
                step(template)
                if template.deleted.wait(max(self._phase_s - (time.monotonic() - began), 0.0)):
                    return
            template.pool.fill()
            template.phase = "Live"
        except (ValueError, CollimateError, OSError) as exc:
            template.error, template.build_fails, template.phase = str(exc), template.build_fails + 1, "Failed"
            self._give_back(template)
        finally:
            if template.deleted.is_set():
                self._give_back(template)
            with self._lock:
                self._bakes.discard(threading.current_thread())

    def _convert(self, template: GatewayTemplate) -> None:
        source = self._images.resolve(template.image)
        if source is None:
            known = ", ".join(self._images.names)
            raise ValueError(f"no image {template.image!r}: a local gateway pulls none, and has {known}")
        if template.ready.network:
            raise ValueError("local templates are vsock-only: drop ready.network")
        template.node, template.node_template = self._node.derive(source, template.ready.applied)

    def _check(self, template: GatewayTemplate) -> None:
        assert template.node is not None
        problem = check_ready(
            template.ready,
            template.node,
            template.node_template,
            timeout_s=self._ready_s,
            stopped=template.deleted.wait,
        )
        if problem is not None:
            raise ValueError(f"not ready in time: {problem}")

    def _give_back(self, template: GatewayTemplate) -> None:
        node, template.node = template.node, None
        if node is not None and node is not self._node:
            node.close()

    def find(self, key: Key, template_id: str) -> GatewayTemplate:
        """By id: the key's own, or a shared image; 404 otherwise."""
        with self._lock:
            found = self._all.get(template_id)
        if found is None or found.owner not in (None, key.key_id):
            raise not_found(f"template {template_id}")
        return found

    def resolve(self, key: Key, ref: str) -> GatewayTemplate:
        """By id or else by name; of several of a name the youngest, and one's own before a shared one."""
        with self._lock:
            mine = [one for one in self._all.values() if one.owner in (None, key.key_id)]
        named = sorted((one for one in mine if one.name == ref), key=lambda one: one.owner is not None)
        by_id = [one for one in mine if one.id == ref and one.owner is not None]
        if not by_id and not named:
            raise not_found(f"template {ref}")
        return by_id[0] if by_id else named[-1]

    def status(self, key: Key, template_id: str) -> dict[str, Any]:
        """One template's status."""
        return self.find(key, template_id).status(self._node_name)

    def list(self, key: Key) -> list[dict[str, Any]]:
        """The key's own, oldest first."""
        with self._lock:
            own = [one for one in self._all.values() if one.owner == key.key_id]
        return [one.status(self._node_name) for one in own]

    def delete(self, key: Key, template_id: str, in_use: Callable[[str], int]) -> dict[str, Any]:
        """403 for a shared image, 404, 409 while sandboxes of it live."""
        template = self.find(key, template_id)
        if template.owner is None:
            raise forbidden(f"{template_id} is an image of the shared catalog: only templates of your own are deleted")
        live = in_use(template_id)
        if live:
            raise conflict("template_in_use", f"{live} sandboxes of {template_id} live: delete them first")
        with self._lock:
            self._all.pop(template_id, None)
            baking = template.phase not in ("Live", "Failed")
            template.deleted.set()
        if not baking:
            self._give_back(template)
        return {"deleted": True, "id": template_id}

    def expect(self, key: Key, template_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Declare a width on an own template."""
        template = self.find(key, template_id)
        width = number_field(body, "width", 0, MAX_WIDTH)
        if not key.tier.pro:
            raise Refusal(403, "demo_tier_limit", "Declaring a width is a Pro feature; demo keys fork without one.")
        if template.owner is None:
            raise forbidden(f"{template_id} is an image of the shared catalog: its width is not yours to declare")
        if template.pool.declared != width:
            template.pool.declare(width)
        template.pool.released_at = None
        return {"id": template_id, "expected_width": width}

    def release(self, key: Key, template_id: str) -> dict[str, Any]:
        """Give a declared width back; a second time changes nothing."""
        template = self.find(key, template_id)
        if template.owner is None:
            raise forbidden(f"{template_id} is an image of the shared catalog: there is nothing of yours to release")
        with self._lock:
            if template.pool.released_at is None:
                template.pool.declare(0)
                template.pool.released_at = time.time()
        return {"id": template_id, "released": True, "released_at": rfc3339(template.pool.released_at)}

    def close(self) -> None:
        """End the bakes and what they brought up."""
        with self._lock:
            templates = list(self._all.values())
            bakes = list(self._bakes)
            for template in templates:
                template.deleted.set()
        for bake in bakes:
            bake.join(_STOP_S)
        for template in templates:
            self._give_back(template)


def _created(template: GatewayTemplate) -> dict[str, Any]:
    return {
        "id": template.id,
        "name": template.name,
        "image": template.image,
        "phase": template.phase,
        "bake_mode": "local",
    }


def _id(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True)
    return f"tpl-{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"
