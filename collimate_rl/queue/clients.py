"""Connections to the server, one kind per use; nothing else of the product builds a redis client.

redis-py's defaults do not fit: it reads with a timeout of 5 s and 10 retries, so that a blocking read of more than
5 s hangs for about a minute and then fails; and it speaks RESP3, which parts of rq do not understand. A retry sends
the command again when only its reply was lost, so everything sent over these clients must be idempotent.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from redis import Redis
from redis.backoff import EqualJitterBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.retry import Retry

from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.protocol.bounds import mask_secrets

COMMAND_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
COMMAND_RETRIES = 2
_NOT_NOW = re.compile(r"\b(?:MISCONF|NOREPLICAS)\b")
"""Error codes without a class in redis-py: no writes are taken while the server's disk or its replicas fail it."""


def connect_commands(url: str, *, timeout_s: float = COMMAND_TIMEOUT_S, retries: int = COMMAND_RETRIES) -> Redis:
    """For our own commands and scripts: short timeout, few retries. Does not connect yet.

    url -- redis://, rediss://, unix:///path, unix:path, or an absolute path of a socket. `ValueError` else, and for
           TLS settings in its query that cannot be (`check_tls`).
    """
    return _client(url, timeout_s, Retry(EqualJitterBackoff(cap=0.5, base=0.05), retries))


def connect_blocking(url: str, block_s: float) -> Redis:
    """For reads that block up to `block_s`: the timeout leaves them 5 s more, and nothing is sent again."""
    return _client(url, block_s + 5.0, Retry(NoBackoff(), 0))


def connect_rq(url: str) -> Redis:
    """For rq: its commands are not idempotent, so nothing is sent again; rq raises the timeout as it needs."""
    return _client(url, 15.0, Retry(NoBackoff(), 0))


def _client(url: str, timeout_s: float, retry: Retry) -> Redis:
    url = normal_url(url)
    check_tls(url)
    # A unix socket's connection class takes no keepalive.
    keepalive = {} if url.startswith("unix://") else {"socket_keepalive": True}
    try:
        client = Redis.from_url(
            url,
            protocol=2,
            decode_responses=False,
            # As `_raw.text` reads: what stands on the server under some name is asked for under the very same.
            encoding_errors="surrogatepass",
            # No CLIENT SETINFO at each connection: users of ours have no right to it, as Redis 7.0 does not know it.
            driver_info=None,
            socket_timeout=timeout_s,
            socket_connect_timeout=min(CONNECT_TIMEOUT_S, timeout_s),
            health_check_interval=30,
            retry=retry,
            **keepalive,
        )
        # Said here and not at the first command: what its query names and a connection does not take.
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"{mask_secrets(url)!r} asks in its query for what there is not: {exc}") from exc
    return client


def normal_url(url: str) -> str:
    """`url` as redis-py wants it. `unix:path` (relative to the working directory, too) and a bare absolute path name a
    socket. `ValueError` for anything else that names no server.
    """
    if url.startswith("/"):
        return f"unix://{url}"
    if url.startswith("unix:") and not url.startswith("unix://"):
        path = url.removeprefix("unix:")
        if path:
            return f"unix://{os.path.abspath(path)}"
    shown = repr(mask_secrets(url))
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # what Python says of it quotes a part, and that may be of the password
        raise ValueError(
            f"{shown} names no Redis server: its host and port cannot be told apart from the rest; percent-encode what "
            "is no letter or digit in its password"
        ) from None
    if parts.scheme == "unix" and parts.netloc and "@" not in parts.netloc:
        # redis-py would take the first part of the path for a host, and drop it.
        raise ValueError(f"{shown} names no Redis server: a path after unix:// is absolute; else write unix:path")
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError(f"{shown} names no Redis server: use redis://host:port/0, rediss://… or unix:path/to/socket")
    return url


def check_tls(url: str) -> None:
    """Looks at the TLS settings in a rediss:// URL's query: files that must be readable, and no way around the check of
    the server's certificate. `ValueError`; nothing is said of other URLs.
    """
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return
    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        path = asked.get(name)
        if path is None:
            continue
        try:
            with open(path, "rb"):
                pass
        except OSError as exc:
            raise ValueError(f"{name} in the Redis URL names {path!r}, which cannot be read: {exc.strerror}") from exc
    checks = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}
    if any(asked.get(name, wanted).lower() != wanted for name, wanted in checks.items()):
        raise ValueError(
            f"the Redis URL turns the check of the server's certificate off ({', '.join(checks)}): whoever is in "
            "between could answer rewards of their own; name the authority that vouches for it in ssl_ca_certs"
        )


def _distrusted(exc: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """What the check of the server's certificate said, where that is behind an error of redis-py's."""
    while exc is not None:
        if isinstance(exc, ssl.SSLCertVerificationError):
            return exc
        exc = exc.__cause__ or exc.__context__
    return None


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """redis-py's errors as ours, with what was being done."""
    try:
        yield
    except (AuthenticationError, AuthorizationError, NoPermissionError) as exc:
        told = str(exc).rstrip(".")
        raise QueueError(f"the Redis server refused to {doing}: {told}; check the URL's user and its rights") from exc
    except OutOfMemoryError as exc:
        # It passes when others' keys go or memory comes: to whoever waits, the same as a server that is away.
        told = f"the Redis server is out of memory and refused to {doing}; give it more: {exc}"
        raise RedisUnavailable(told) from exc
    except (BusyLoadingError, MasterDownError, NoScriptError, ReadOnlyError) as exc:
        # A script that it does not know right after it learned it: it was restarted, or told to forget, in between.
        raise RedisUnavailable(f"the Redis server could not {doing} yet: {exc}") from exc
    except (ConnectionError, TimeoutError) as exc:
        distrusted = _distrusted(exc)
        if distrusted is not None:
            # No outage: waiting heals it only where the server gets another certificate.
            raise QueueError(
                f"the Redis server's certificate is not trusted, so nothing was sent to it to {doing}: "
                f"{distrusted.verify_message}; where the server is the right one, name the authority that vouches for "
                "it in the URL (?ssl_ca_certs=FILE), and the host by a name that its certificate has"
            ) from exc
        told = str(exc).rstrip(".")
        raise RedisUnavailable(
            f"the Redis server could not be reached to {doing}: {told}; is it running, and is this its address?"
        ) from exc
    except ResponseError as exc:
        if _NOT_NOW.search(str(exc)):
            raise RedisUnavailable(f"the Redis server takes no writes now, and refused to {doing}: {exc}") from exc
        # What a script isn't let do has no class of its own.
        told = f"{str(exc).rstrip('.')}; if that is about access, check the URL's user and its rights"
        raise QueueError(f"the Redis server refused to {doing}: {told}") from exc
    except RedisError as exc:
        raise QueueError(f"the Redis server refused to {doing}: {exc}") from exc
