"""Refuses servers that would lose batches: too old, evicting, or a cluster."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from collimate_rl.errors import UnsuitableServer
from collimate_rl.queue.clients import translate_errors

MIN_VERSION = (6, 2)
WANTED_POLICY = "noeviction"


def check_server(client: Redis) -> str:
    """Checks the server behind `client`; returns its name and version for people.

    Raises `UnsuitableServer` when it is a Redis below 6.2 (a Valkey of any version will do), runs as a cluster, or
    may evict keys; `RedisUnavailable` when it cannot be reached. Warns (`RuntimeWarning`) where the policy cannot be
    learnt because CONFIG and INFO are denied.
    """
    with translate_errors("check its version and settings"):
        info = _info(client, "server")
        cluster = _info(client, "cluster")
        policy = _policy(client)
    title = check_version(info)
    if cluster.get("cluster_enabled") in (1, "1"):
        raise UnsuitableServer(f"{title} runs as a cluster: the queue's scripts need a single server")
    if policy is None:
        warnings.warn(
            f"{title} does not tell its maxmemory-policy (CONFIG and INFO are denied): make sure that it is "
            f"{WANTED_POLICY}, since a server that evicts keys loses batches",
            RuntimeWarning,
            stacklevel=2,
        )
    elif policy != WANTED_POLICY:
        raise UnsuitableServer(
            f"{title} may evict keys (maxmemory-policy is {policy}), and batches would be lost with them: "
            f"set maxmemory-policy to {WANTED_POLICY}"
        )
    return title


def check_version(info: Mapping[str, Any]) -> str:
    """Name and version from INFO's server section; `UnsuitableServer` when it is too old."""
    if info.get("server_name") == "valkey" or "valkey_version" in info:
        return f"Valkey {info.get('valkey_version', '')}".strip()
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    # A server that hides its version (some services do) is let through: the scripts fail loudly where it is too old.
    if numbers and numbers < MIN_VERSION:
        raise UnsuitableServer(f"Redis {version} is too old: 6.2 or later is needed, or Valkey")
    return f"Redis {version or 'of unknown version'}"


def _info(client: Redis, section: str) -> Mapping[str, Any]:
    try:
        return dict(client.info(section))
    except ResponseError:  # denied, or unknown to the server: nothing can be said
        return {}


def _policy(client: Redis) -> str | None:
    # INFO first: a user without the right to CONFIG would leave an entry in the server's ACL log at each start.
    policy = _info(client, "memory").get("maxmemory_policy")
    if policy is None:
        try:
            policy = client.config_get("maxmemory-policy").get("maxmemory-policy")
        except ResponseError:  # denied or renamed, as with hosted servers
            return None
    return policy.decode() if isinstance(policy, bytes) else policy
