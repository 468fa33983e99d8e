"""The environment variables that the product reads, by name: one that is misspelled would be left out without a word.

Others may share the prefix, so what is none of ours is told and refused nowhere.
"""

from __future__ import annotations

import difflib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

PREFIX: Final = "COLLIMATE_"
KNOWN: Final = frozenset(
    PREFIX + name
    for name in (
        # finding a daemon or a gateway
        "SERVE_SOCKET", "SERVE_URL", "API_KEY", "BASE_URL",
        # hooks
        "TEMPLATE", "TIMEOUT_SECONDS", "SEED_MODE", "BASE_SEED", "ENTRY", "CONCURRENCY", "ON_INFRA_ERROR",
        "NEUTRAL_REWARD", "INFRA_BUDGET_S", "DEADLINE_S", "RUN", "GRADER_VERSION",
        # the worker, and whoever looks at its queue
        "REDIS_URL", "QUEUE", "NODE", "PROCESSES", "SLOTS", "BACKEND", "GATEWAY_CAP", "GRACE", "ON_STOP",
        "ALLOW_UNISOLATED", "BATCH_CONCURRENCY", "RETRIES", "RETRY_BACKOFF", "HOPS", "REAP_UNCLAIMED", "MIN_IDLE",
        "STATE_DIR", "TIMING", "METRICS_PORT", "METRICS_HOST", "LOG_FORMAT", "LOG_LEVEL", "CONFIG", "DASHBOARD_TOKEN",
        # the Procfile, the daemon's own marks, tests
        "RUN_DIR", "PYTHON", "SANDBOX", "EXEC", "FAULTS", "FAULTS_ONCE",
    )
)  # fmt: skip

_OF_SERVICE: Final = "_SERVICE_HOST"
"""Kubernetes tells each pod of the services beside it, in variables that begin as the service's name."""
_log = logging.getLogger(__name__)
_said = threading.Event()


def unknown(environ: Mapping[str, str] = os.environ) -> str | None:
    """A sentence about the variables of our prefix that nothing of ours reads, with the name of ours that each is like;
    None where there is none. Values are not shown: one may be a key."""
    hosts = [name for name in environ if name.startswith(PREFIX) and name.endswith(_OF_SERVICE)]
    services = tuple(host.removesuffix(_OF_SERVICE) + part for host in hosts for part in ("_SERVICE_", "_PORT"))
    named = [name for name in environ if name.startswith(PREFIX) and name not in KNOWN]
    strange = sorted(name for name in named if not name.startswith(services))
    if not strange:
        return None
    return f"nothing of collimate-rl reads {', '.join(map(_shown, strange))} of the environment"


def _shown(name: str) -> str:
    bare = {known.removeprefix(PREFIX): known for known in KNOWN}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), sorted(bare), n=1)
    meant = f" (did you mean {bare[near[0]]}?)" if near else ""
    return f"{ascii(name)[1:-1]}{meant}"


def warn_once(say: Callable[[str], None] | None = None) -> None:
    """Say what `unknown` says, if anything, at the first call in a process: to `say`, else as a logged warning."""
    if _said.is_set():
        return
    _said.set()
    told = unknown()
    if told is not None:
        (say or _log.warning)(told)
