"""What is under every client: one `Transport`, and one `Sender` over it.

A `Transport` sends one request once, and says by type what became of it. Three things make one:

    transport.request("POST", "/v1/exec", b"{...}", headers={"Authorization": "Bearer ..."}, timeout_s=30.0)
        -> Answer(status=200, headers={"retry-after": "1", ...}, body=b"{...}")
    transport.address   # for messages: "http://host:port", "unix:/path", "https://host"
    transport.close()   # drops idle connections; the transport stays usable

- `UnreachableError`: provably nothing of it was taken. `AmbiguousError`: sent, and no whole answer came back.
  `MalformedAnswer` (an `AmbiguousError`): what came back is no HTTP answer. Nothing else is raised, but `ValueError`
  for a path or a header that HTTP does not take.
- A status is never an error, and a redirect is an answer like any other: it is not followed, with whatever key the
  request had. `timeout_s` bounds the whole request, connecting and the answer's last byte included.
- A transport may be shared between threads, and used after a fork.

There are two: `_http.HttpPool`, on the standard library (TCP, TLS, unix sockets), and
`_requests_transport.RequestsTransport`, which the gateway's client takes where `requests` is installed
(`_gateway_transport.transport_for(origin)` chooses). Both pass tests/integration/test_transport_conformance.py.

A `Sender` is a client's side of it: JSON in and out, refusals as errors, and the repeats.

    sender = Sender(transport, RetryPolicy(retries=3, backoff_s=0.15, budget_s=30.0),
                    headers={"Authorization": "Bearer ..."}, refusal=my_refusal)
    sender.json("POST", "/v1/sandboxes", {"template": "py"}, rule=GATEWAY_NON_IDEMPOTENT, timeout_s=120.0)
        -> the JSON value of the answer

`refusal(answer, address)` makes the error of an answer with status 400 and above (`errors.py`); the sender adds what
the Retry-After header says as `error.retry_after_s`. `rule` (`_retry.py`: IDEMPOTENT, NON_IDEMPOTENT,
GATEWAY_IDEMPOTENT, GATEWAY_NON_IDEMPOTENT) says after which failures the request is sent again; the policy how often
and how long.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from collimate_rl._retry import ResendRule, RetryPolicy, Sleep, Uniform, retry_after_s
from collimate_rl.errors import CollimateDrainingError, CollimateError, MalformedAnswer

_MAX_ERROR_TEXT: Final = 4096

_LONG, _TOO_LONG = 4096, 128 * 1024
"""Characters of a code whose escaped text is kept: of less it is made as fast, and more no exec takes."""

# ASCII escapes carry lone surrogates, which UTF-8 cannot.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True).encode
_encode_long = lru_cache(maxsize=8)(_encode)


def _encode_body(body: Mapping[str, Any]) -> bytes:
    """A long `code` is escaped once: the same program goes with every exec of a group, and is most of its request."""
    code = body.get("code")
    if not isinstance(code, str) or not _LONG <= len(code) <= _TOO_LONG:
        return _encode(body).encode("ascii")
    rest = _encode({name: value for name, value in body.items() if name != "code"})
    return f'{{"code":{_encode_long(code)}{"," if len(body) > 1 else ""}{rest[1:]}'.encode("ascii")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An HTTP answer; the names in `headers` are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """Sends one request once; see the top of this module."""

    @property
    def address(self) -> str: ...

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Answer: ...

    def close(self) -> None: ...


Refusal = Callable[[Answer, str], CollimateError]
"""Makes the error of an answer with status 400 and above; the text is the transport's address."""


class Sender:
    """Sends JSON over a transport, and again where the rule allows; see the top of this module."""

    def __init__(
        self,
        transport: Transport,
        policy: RetryPolicy,
        *,
        headers: Mapping[str, str] | None = None,
        refusal: Refusal | None = None,
        sleep: Sleep = time.sleep,
        uniform: Uniform = random.uniform,
    ) -> None:
        self.transport = transport
        self.policy = policy
        self._headers = dict(headers or {})
        self._refusal = refusal if refusal is not None else daemon_refusal
        self._sleep = sleep
        self._uniform = uniform

    @property
    def address(self) -> str:
        return self.transport.address

    def json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        rule: ResendRule,
        timeout_s: float,
    ) -> Any:
        """The JSON value of a 2xx answer. Raises `CollimateError`s; a body that is no JSON is a `ValueError`."""
        content = None if body is None else _encode_body(body)
        return self.policy.run(
            lambda: self._read(
                self.transport.request(method, path, content, headers=self._headers, timeout_s=timeout_s)
            ),
            rule=rule,
            sleep=self._sleep,
            uniform=self._uniform,
        )

    def _read(self, answer: Answer) -> Any:
        if answer.status >= 400:
            error = self._refusal(answer, self.address)
            error.retry_after_s = retry_after_s(answer.headers.get("retry-after"))
            error.answer = _refused_with(answer)
            raise error
        if not 200 <= answer.status < 300:
            where = answer.headers.get("location", "")[:200]
            raise MalformedAnswer(
                f"{self.address}: answered with status {answer.status}"
                f"{f' and points to {where!r}, which is not followed' if where else ''}; is this the right address?"
            )
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as exc:
            raise MalformedAnswer(
                f"{self.address}: answered {answer.status} with a body that is no JSON: {answer.body[:80]!r}"
            ) from exc


def _refused_with(answer: Answer) -> dict[str, Any] | None:
    """The body of a refusal; None where it is no JSON object."""
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def refusal_fields(answer: Answer) -> tuple[str, str | None]:
    """What a refusal says and its code: the gateway's `{code, message}`, or the daemon's `{error, error_code}`.

    The text is the server's own, word for word, cut at 4,096 characters; of a body that is neither, its beginning.
    """
    fields = _refused_with(answer) or {}
    code = fields.get("error_code", fields.get("code"))
    text = fields.get("error", fields.get("message"))
    if not isinstance(code, str):
        code = None
    if not isinstance(text, str):
        text = answer.body[:200].decode("utf-8", "replace").strip() or "no explanation"
    return text[:_MAX_ERROR_TEXT], code


def daemon_refusal(answer: Answer, address: str) -> CollimateError:
    """A daemon's refusal as an error."""
    text, code = refusal_fields(answer)
    message = f"{text} (status {answer.status}{f', {code}' if code else ''}, {address})"
    if code == "draining":
        return CollimateDrainingError(message, answer.status, code)
    return CollimateError(message, answer.status, code)
