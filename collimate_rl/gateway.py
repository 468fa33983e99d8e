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
from collimate_rl._gateway_api import GatewayApi
from collimate_rl._gateway_transport import transport_for
from collimate_rl._retry import RetryPolicy, Sleep, Uniform
from collimate_rl._sockets import ClientCert
from collimate_rl._transport import Sender, Transport
from collimate_rl.errors import CollimateError
from collimate_rl.errors import DemoTierLimit as DemoTierLimit
from collimate_rl.errors import GatewayError as GatewayError

if TYPE_CHECKING:
    from collimate_rl.template import Env, Ready, Session

DEFAULT_ORIGIN: Final = "https://api.collimate.ai"
API_KEY_VARIABLE: Final = "COLLIMATE_API_KEY"
ORIGIN_VARIABLE: Final = "COLLIMATE_BASE_URL"

_log = logging.getLogger(__name__)


class GatewayClient(GatewayApi):
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
        ca_file: str | None = None,
        client_cert: ClientCert | None = None,
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
            transport or transport_for(self.base_url, ca_file=ca_file, client_cert=client_cert),
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

    def _delete_used(self, sandbox_id: str) -> None:
        try:
            self.delete_session(sandbox_id)
        except CollimateError as error:
            # The exec's own answer or error is what the caller wants; the gateway's idle limit takes the sandbox.
            _log.warning("sandbox %s could not be deleted: %s", sandbox_id, error)


def _gone(error: GatewayError) -> GatewayError:
    return wire.recoded(error, "no_such_session") if error.status == 404 else error
