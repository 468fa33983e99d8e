"""One typed object with everything a worker can be told, and where each value came from.

The command line beats the environment (`COLLIMATE_*`), which beats the `[worker]` table of `collimate.toml`, which
beats the defaults. A value that is off is a `ValueError` that names its source.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from collimate_rl._config_tables import check_tables
from collimate_rl.protocol.bounds import mask_secrets
from collimate_rl.protocol.timing import Timing

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "on Python 3.10 the worker needs tomli. Install the extra: pip install 'collimate-rl[worker]'", name="tomli"
        ) from error

CONFIG_FILE = "collimate.toml"
MOST_PROCESSES = 512
NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""What names of queues and nodes look like (architecture, bounds)."""


def default_node() -> str:
    """The machine's host name, reduced to the characters that a node's name may have."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:128] or "node"


def default_slots() -> int:
    """Four per core that this process may use: twice what the daemon runs at once, so that when one has ended there the
    next is in its line already, and no processor waits for an answer to travel."""
    return 4 * len(os.sched_getaffinity(0))


def default_state_dir() -> str:
    """Where the slots' lock files live: one directory per user and machine, emptied by a reboot."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return f"{runtime}/collimate-worker"
    if os.geteuid() == 0:
        return "/run/collimate-worker"
    return f"/tmp/collimate-worker-{os.geteuid()}"


def _setting(help_text: str, *, default: Any = MISSING, factory: Any = MISSING, metavar: str = "", **more: Any) -> Any:
    metadata = {"help": help_text, "metavar": metavar, **more}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What one node's supervisor and its worker processes go by. Durations are seconds."""

    redis_url: str = _setting(
        "the Redis or Valkey server: redis://, rediss:// or unix:PATH",
        default="redis://127.0.0.1:6379/0",
        metavar="URL",
    )
    queue: str = _setting("the queue to serve; one queue per worker", default="grade", metavar="NAME")
    node: str = _setting("this node's name, unique in the fleet", factory=default_node, metavar="NAME")
    processes: int = _setting(
        "worker processes; each grades one batch at a time; 0: two, or one per sixteen slots, and more while all wait "
        "for the last candidates of their batches",
        default=0,
        metavar="N",
    )
    slots: int = _setting("sandboxes that this node asks for side by side", factory=default_slots, metavar="N")
    backend: str = _setting(
        "the sandbox daemon, unix:PATH or http://HOST:PORT, or a gateway, https://HOST (with its key in "
        "COLLIMATE_API_KEY) or gateway:URL; empty looks where the SDK's connect() looks",
        default="",
        metavar="WHERE",
    )
    gateway_cap: int = _setting(
        "sandboxes that a gateway's key may have at once, over all nodes; 0: 8 for a demo key, uncounted for others",
        default=0,
        metavar="N",
    )
    grace: float = _setting(
        "after SIGTERM, how long running batches may take to finish before they are released",
        default=30.0,
        metavar="SECONDS",
    )
    on_stop: str = _setting(
        "what becomes of the sessions of batches that a stop releases: delete, or leave for whoever attaches",
        default="delete",
        metavar="WHAT",
        choices=("delete", "leave"),
    )
    allow_unisolated: bool = _setting("grade on a backend that reports no isolation", default=False)
    batch_concurrency: int = _setting("candidates of one batch in flight side by side", default=24, metavar="N")
    retries: int = _setting("tries again on this node after an infrastructure error", default=3, metavar="N")
    retry_backoff: float = _setting(
        "the first pause before such a try; doubles each time, jittered", default=0.5, metavar="SECONDS"
    )
    hops: int = _setting(
        "how often a batch is released to other nodes before its infrastructure errors are answered",
        default=2,
        metavar="N",
    )
    reap_unclaimed: bool = _setting(
        "let the session janitor also delete idle sessions that are not ours: the daemon is the worker's alone",
        default=False,
    )
    min_idle: float = _setting("how long such a session must have been idle", default=900.0, metavar="SECONDS")
    state_dir: str = _setting("where the slots' lock files live", factory=default_state_dir, metavar="DIR")
    timing: str = _setting(
        "other lengths of leases and pauses, the same on the whole queue: lease_ms=…,renew_every_ms=…",
        default="",
        metavar="NAME=MS,…",
    )
    metrics_port: int = _setting(
        "serve /metrics, /healthz and /readyz on this port; 0 takes a free one and logs it, -1 serves nothing",
        default=-1,
        metavar="N",
    )
    metrics_host: str = _setting(
        "the address to serve them on; beyond loopback whoever reaches the port can read them",
        default="127.0.0.1",
        metavar="HOST",
    )
    log_format: str = _setting(
        "text for people, json for machines", default="text", metavar="FORMAT", choices=("text", "json")
    )
    log_level: str = _setting(
        "the least severe event that is logged",
        default="info",
        metavar="LEVEL",
        choices=("debug", "info", "warning", "error"),
    )

    @property
    def first_processes(self) -> int:
        """Worker processes to begin with. Where more may follow, also how many of all of them may take batches."""
        return self.processes or min(MOST_PROCESSES, max(2, self.slots // 16))

    @property
    def most_processes(self) -> int:
        """Worker processes at most: as many as it takes for each slot to have a batch of its own to end."""
        return self.processes or min(MOST_PROCESSES, self.first_processes + self.slots)

    def more_processes(self, count: int) -> int:
        """How many there are to be where `count` are not enough: a quarter more, and one at least."""
        return min(self.most_processes, count + max(1, count // 4))

    def __post_init__(self) -> None:
        for name in ("queue", "node"):
            if not NAME.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} must match {NAME.pattern}, not {getattr(self, name)!r}")
        for name, low, high in (
            ("processes", 0, MOST_PROCESSES),
            ("slots", 1, 4096),
            ("batch_concurrency", 1, 1024),
            ("retries", 0, 20),
            ("hops", 0, 20),
            ("gateway_cap", 0, 1_000_000),
            ("metrics_port", -1, 65_535),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be between {low} and {high}, not {getattr(self, name)}")
        for name, top in (("grace", 86_400.0), ("retry_backoff", 60.0), ("min_idle", 86_400.0)):
            if not 0.0 <= getattr(self, name) <= top:  # also refuses nan
                raise ValueError(f"{name} must be between 0 and {top:g} seconds, not {getattr(self, name)}")
        if not re.match(r"(redis|rediss|unix)://.|unix:.|/", self.redis_url):
            raise ValueError(
                f"redis_url must be redis://, rediss:// or unix:PATH, not {mask_secrets(self.redis_url)!r}"
            )
        if self.backend and not re.match(r"(unix:|https?://|gateway:https?://).", self.backend):
            raise ValueError(
                f"backend must be unix:PATH, an http URL or gateway:URL, not {mask_secrets(self.backend)!r}"
            )
        if self.gateway_cap == 1:
            raise ValueError("gateway_cap is at least 2: a candidate's sandbox and its judge's; 0 is the tier's own")
        parse_timing(self.timing)
        for item in fields(self):
            choices = item.metadata.get("choices")
            if choices and getattr(self, item.name) not in choices:
                raise ValueError(f"{item.name} must be one of {', '.join(choices)}, not {getattr(self, item.name)!r}")


def parse_timing(text: str) -> Timing:
    """`lease_ms=1500,renew_every_ms=400` as a `Timing`; what isn't named keeps its default. Raises `ValueError`."""
    given: dict[str, int] = {}
    names = [item.name for item in fields(Timing)]
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, number = part.partition("=")
        if not equals or not number.isdecimal():
            raise ValueError(f"timing is a list of name=milliseconds, not {part!r}")
        if name not in names:
            raise ValueError(f"timing has no {name!r}: there are {', '.join(names)}")
        given[name] = int(number)
    return Timing(**given)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The settings in force, and per name where the value came from, as a phrase for people."""

    settings: WorkerSettings
    sources: Mapping[str, str]


def option_name(name: str) -> str:
    """`redis_url` -> `--redis-url`."""
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    """`redis_url` -> `COLLIMATE_REDIS_URL`."""
    return "COLLIMATE_" + name.upper()


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"neither yes nor no: {text!r}")


_KINDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
PARSERS: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": _boolean}


def _typed(name: str, annotation: str, value: Any, source: str) -> Any:
    with suppress(ValueError):
        if isinstance(value, str):
            return PARSERS[annotation](value)
        if annotation == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if type(value).__name__ == annotation:
            return value
    raise ValueError(f"{name} from {source} must be {_KINDS[annotation]}, not {value!r}")


def read_file(path: Path) -> dict[str, Any]:
    """The `[worker]` table of a `collimate.toml`.

    `ValueError` when it can't be read or isn't a table, `UnknownTable` when the file holds others than ours.
    """
    try:
        with path.open("rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise ValueError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the configuration file {path} is not TOML: {error}") from error
    check_tables(path, document)
    table = document.get("worker", {})
    if not isinstance(table, dict):
        raise ValueError(f"[worker] in {path} must be a table")
    return table


def load(
    options: Mapping[str, Any],
    *,
    environ: Mapping[str, str] = os.environ,
    config: str | None = None,
    cwd: Path | None = None,
) -> Loaded:
    """Merge the sources. `options` are the command line's values by setting name; None means not given.

    `config` (or `COLLIMATE_CONFIG`) names the file and must then exist; otherwise `collimate.toml` in `cwd` is read
    where there is one. Raises `ValueError`.
    """
    named = config or environ.get("COLLIMATE_CONFIG") or None
    path = Path(named) if named else (cwd or Path.cwd()) / CONFIG_FILE
    table = read_file(path) if named or path.is_file() else {}
    known = {item.name: str(item.type) for item in fields(WorkerSettings)}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ValueError(f"[worker] in {path} has unknown settings: {', '.join(unknown)}. There are {', '.join(known)}")
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, annotation in known.items():
        if options.get(name) is not None:
            source, raw = f"command line ({option_name(name)})", options[name]
        elif environ.get(environment_name(name)):
            source, raw = f"environment ({environment_name(name)})", environ[environment_name(name)]
        elif name in table:
            source, raw = f"file ({path})", table[name]
        else:
            sources[name] = "default"
            continue
        values[name] = _typed(name, annotation, raw, source)
        sources[name] = source
    return Loaded(settings=WorkerSettings(**values), sources=sources)


def as_environment(settings: WorkerSettings) -> dict[str, str]:
    """The settings as environment variables: how a supervisor hands them to its worker processes.

    The environment, not the command line, so that a password in the Redis URL shows in no process list.
    """
    handed: dict[str, str] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        handed[environment_name(item.name)] = ("1" if value else "0") if isinstance(value, bool) else str(value)
    return handed
