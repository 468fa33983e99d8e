"""`CollimateProvider`: what OpenEnv's clients take for a container provider, over a daemon's or a gateway's sandboxes.

The methods and their meaning are those of OpenEnv's `ContainerProvider`; its clients call them by name and ask for no
base class, so that neither `openenv` nor `openenv-core`, which cannot be installed side by side, is imported here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

from collimate_rl.errors import CollimateError
from collimate_rl.gateway import GatewayClient
from collimate_rl.openenv.readiness import wait_until_healthy
from collimate_rl.sandbox import Sandbox
from collimate_rl.transport import SessionClient, connect
from collimate_rl.tunnel import PortForward

ENV_PORT: Final = 8000
"""Where OpenEnv's servers listen."""

SNAPSHOT_PREFIX: Final = "snapshot:"

Resolver = Callable[[str, Mapping[str, str]], str]
"""(image, env_vars) -> template."""

_log = logging.getLogger(__name__)


def image_to_template(image: str) -> str:
    """The template that stands for an image: `snapshot:<id>` is `<id>`, and of a reference the last part of its name.

    `registry.example:5000/org/coding-env:v2` and `org/coding-env@sha256:…` are `coding-env`. `ValueError` when nothing
    is left.
    """
    if image.startswith(SNAPSHOT_PREFIX):
        template = image[len(SNAPSHOT_PREFIX) :]
    else:
        template = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    if not template or template != template.strip():
        raise ValueError(f"no template can be named after the image {image!r}: say which in template_for_image")
    return template


class CollimateProvider:
    """One environment in one sandbox: forked by `start_container`, deleted by `stop_container`.

    `base_url`, `api_key` and the environment find the backend as `connect` does; a `client` wins over them, and stays
    open. `template_for_image` is a dict (an image that it lacks goes by `image_to_template`), or a function of
    (image, env_vars). `env_port` is the server's port in the sandbox. `request_timeout` (seconds) bounds one request to
    the backend, `ready_timeout` how long the server may take to be healthy.

    It needs no event loop, blocks while it works, and may be used from any thread. Give each environment its own.
    Failures are `CollimateError`s, with the backend's `error_code`; nothing is left running after one.
    """

    def __init__(
        self,
        base_url: str | None = None,
        template_for_image: Mapping[str, str] | Resolver | None = None,
        env_port: int = ENV_PORT,
        request_timeout: float = 60.0,
        ready_timeout: float = 60.0,
        api_key: str | None = None,
        client: SessionClient | None = None,
    ) -> None:
        self.env_port = _port(env_port)
        self.ready_timeout = ready_timeout
        self._template_for_image = template_for_image
        self._owns_client = client is None
        self._client = client or connect(base_url, api_key=api_key, timeout=request_timeout)
        self._lock = threading.RLock()
        self._sandbox: Sandbox | None = None
        self._forward: PortForward | None = None

    @property
    def session_id(self) -> str | None:
        """The sandbox's id; None before a start and after a stop."""
        sandbox = self._sandbox
        return None if sandbox is None else sandbox.session_id

    def __enter__(self) -> CollimateProvider:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> str:
        """Fork the image's template and return where its server is reached, `http://host:port`.

        `port` is the server's port in the sandbox, else `env_port`. Over a gateway the address is a local listener
        whose connections go through tunnels, which needs the extra `[tunnel]`.

        A fork's variables are those of its template: `env_vars` that are not empty are a `ValueError` unless
        `template_for_image` is a function, which then picks a template that has them. Raises `CollimateError` when the
        backend refuses, when the template does not expose the port, and when this provider has a container already.
        """
        wanted = self.env_port if port is None else _port(port)
        template = self._template(image, dict(env_vars or {}))
        with self._lock:
            if self._sandbox is not None:
                raise CollimateError(
                    f"this provider already runs the session {self._sandbox.session_id}: stop it first, or make a "
                    "CollimateProvider for each environment"
                )
            self._sandbox = sandbox = Sandbox(template, client=self._client)
            try:
                sandbox.start()
                return self._reach(sandbox, wanted)
            except BaseException:
                self._stop_after_failure()
                raise

    def wait_for_ready(self, base_url: str, timeout_s: float | None = None) -> None:
        """Until `GET {base_url}/health` is answered with 200, at most `timeout_s` seconds (None: `ready_timeout`).

        Raises `TimeoutError`. The container is stopped then: openenv-core's client would leave it behind.
        """
        try:
            wait_until_healthy(base_url, self.ready_timeout if timeout_s is None else timeout_s)
        except BaseException:
            self._stop_after_failure()
            raise

    def stop_container(self) -> None:
        """Delete the sandbox and close the way to it; without one, nothing happens.

        When the backend cannot be reached that is raised, and a further call tries again.
        """
        with self._lock:
            if self._forward is not None:
                self._forward.close()
                self._forward = None
            if self._sandbox is not None:
                self._sandbox.close()
                self._sandbox = None

    def close(self) -> None:
        """Stop the container, and close the idle connections to the backend. OpenEnv's clients never call this."""
        try:
            self.stop_container()
        finally:
            closing = getattr(self._client, "close", None)
            if self._owns_client and closing is not None:
                closing()

    def _template(self, image: str, env_vars: Mapping[str, str]) -> str:
        given = self._template_for_image
        if callable(given):
            template: object = given(image, env_vars)
            if not isinstance(template, str) or not template:
                raise ValueError(f"template_for_image gave {template!r} for the image {image!r}, and not a template")
            return template
        if env_vars:
            raise ValueError(
                f"a fork has its template's variables, and {', '.join(sorted(env_vars))} cannot be set in it: make a "
                "template that has them (`env`), and give a function of (image, env_vars) that names it as "
                "template_for_image"
            )
        return image_to_template(image) if given is None or image not in given else given[image]

    def _reach(self, sandbox: Sandbox, port: int) -> str:
        if isinstance(self._client, GatewayClient):
            # Minted once ahead: what the gateway refuses (the tier, the port) is told here, and not by a connection
            # that is cut. Each connection mints its own later.
            sandbox.connect_url(port)
            self._forward = sandbox.port_forward(port)
            return self._forward.url
        place = sandbox.endpoints.get(str(port))
        if not isinstance(place, str):
            exposed = ", ".join(sorted(sandbox.endpoints)) or "none"
            raise CollimateError(
                f"sessions of the template {sandbox.template} expose no port {port} (exposed: {exposed}): set the "
                "template's expose_ports, or the provider's env_port",
                error_code="port_not_exposed",
            )
        return f"http://{place}"

    def _stop_after_failure(self) -> None:
        try:
            self.stop_container()
        except CollimateError as error:
            # The failure that led here is what is raised; stop_container can be called again.
            _log.warning("the session %s could not be deleted: %s", self.session_id, error)


def _port(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise ValueError(f"a port is a whole number from 1 to 65535, not {value!r}")
    return value
