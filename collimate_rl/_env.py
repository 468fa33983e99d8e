"""`Env`: what a task runs in, by one reference: a catalog image, a template of one's own, or an image to bake."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from collimate_rl._gateway_wire import is_whole
from collimate_rl._templates import DEFAULT_WIDTH, Ready, TemplateHandle, TemplateStatus, template_name
from collimate_rl.errors import CollimateError, GatewayError
from collimate_rl.gateway import GatewayClient
from collimate_rl.session import DEFAULT_TIMEOUT, Session

_log = logging.getLogger(__name__)

PUBLIC: Final = "public"


class Env:
    """Sandboxes of one template, with what was declared or baked for it. Made by `GatewayClient.env`.

    `template_id` is what sandboxes are made of; `width` the hint or declaration that was given. Leaving the context
    releases what was declared; sandboxes are their callers' to close.
    """

    def __init__(
        self,
        client: GatewayClient,
        ref: str,
        template_id: str,
        *,
        width: int | None,
        secrets: Sequence[str],
        is_declared: bool,
    ) -> None:
        self.client = client
        self.ref = ref
        self.template_id = template_id
        self.width = width
        self.secrets = tuple(secrets)
        self._handle = TemplateHandle(client, template_id)
        self._guard = threading.Lock()
        self._to_release = is_declared

    def __repr__(self) -> str:
        return f"Env({self.ref!r}, template_id={self.template_id!r})"

    def __enter__(self) -> Env:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def sandbox(
        self,
        label: str | None = None,
        egress: Mapping[str, Any] | None = None,
        default_timeout: int = DEFAULT_TIMEOUT,
        secret_refs: Sequence[str] | None = None,
    ) -> Session:
        """A started session; the env's secrets ride along, with `secret_refs` of its own after them."""
        refs = list(dict.fromkeys([*self.secrets, *(secret_refs or ())]))
        session = Session(
            self.template_id,
            client=self.client,
            label=label,
            egress=egress,
            default_timeout=default_timeout,
            secret_refs=refs or None,
        )
        session.start()
        return session

    def status(self) -> TemplateStatus:
        """How far the template is."""
        return self._handle.status()

    def wait(self, timeout: float = 600, **options: Any) -> TemplateStatus:
        """Wait until the template is Live; options as `TemplateHandle.wait`."""
        return self._handle.wait(timeout, **options)

    def release(self) -> None:
        """Take back what was declared, once. A refusal is logged: declarations lapse by themselves."""
        with self._guard:
            due, self._to_release = self._to_release, False
        if not due:
            return
        try:
            self.client.release_template(self.template_id)
        except CollimateError as error:
            _log.warning("template %s could not be released: %s", self.template_id, error)


def open_env(
    client: GatewayClient,
    ref: str,
    *,
    width: int | None = None,
    name: str | None = None,
    ready: Ready | Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Sequence[str] | None = None,
) -> Env:
    """As `GatewayClient.env` says."""
    if not ref:
        raise ValueError("an env is named by a catalog image, a template or an image's reference")
    if isinstance(secrets, str):
        raise ValueError("secrets is a list of references, not one text")
    if width is not None and not is_whole(width, 1):
        raise ValueError(f"width is a whole number from 1, not {width!r}")
    found, is_public = _find(client, ref)
    refs = tuple(secrets or ())
    if ready is not None or env or (found is None and _looks_like_an_image(ref)):
        image = str(found.get("image") or ref) if found is not None else ref
        spec = _with_environment(ready, env)
        made = client.create_template(
            name or (template_name(ref) if found is None else f"{template_name(ref)}-env"),
            image,
            ready=spec or None,
            width=width or DEFAULT_WIDTH,
            expected_width=width,
        )
        return Env(client, ref, made["id"], width=width, secrets=refs, is_declared=True)
    if found is None:
        raise GatewayError(
            f"{ref!r} is neither an image of the catalog nor one of your templates: images() and list_templates() "
            "say what there is; an image's reference with a tag (registry.example/org/name:tag) would be baked",
            404,
            "not_found",
        )
    template_id = str(found["id"])
    is_declared = width is not None and not is_public
    if is_declared and width is not None:
        client.expect_width(template_id, width)
    return Env(client, ref, template_id, width=width, secrets=refs, is_declared=is_declared)


def _find(client: GatewayClient, ref: str) -> tuple[Mapping[str, Any] | None, bool]:
    """What `ref` names, and whether it is the catalog's. An id outranks a name, one's own the catalog."""
    own = client.list_templates()
    own_ids = {item.get("id") for item in own}
    catalog = [item for item in client.images() if item.get("id") not in own_ids]
    listed = [(item, item.get("visibility") == PUBLIC) for item in own]
    listed += [(item, item.get("visibility", PUBLIC) == PUBLIC) for item in catalog]
    for key in ("id", "name"):
        for item, is_public in listed:
            if item.get(key) == ref:
                return item, is_public
    return None, False


def _looks_like_an_image(ref: str) -> bool:
    return "/" in ref or ":" in ref


def _with_environment(ready: Ready | Mapping[str, Any] | None, env: Mapping[str, str] | None) -> dict[str, Any]:
    spec = {} if ready is None else ready.to_wire() if isinstance(ready, Ready) else dict(ready)
    if env:
        spec["env"] = {**env, **(spec.get("env") or {})}
    return spec
