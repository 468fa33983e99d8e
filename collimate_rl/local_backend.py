"""The local sandbox daemon's front door: `python -m collimate_rl.local_backend`, and a class for use in a program."""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from collimate_rl._output import printing
from collimate_rl._variables import warn_once
from collimate_rl.sandboxd.backend import IsolationUnavailable
from collimate_rl.sandboxd.check import check
from collimate_rl.sandboxd.config import DEFAULT_CATALOG, ISOLATIONS, SOCKET_MODES, DaemonConfig, Limits, Template
from collimate_rl.sandboxd.config_file import load_templates
from collimate_rl.sandboxd.daemon import Daemon
from collimate_rl.sandboxd.listening import SocketTaken
from collimate_rl.sandboxd.service import EndpointsFn
from collimate_rl.sandboxd.signals import StopSignals

__all__ = ["DaemonConfig", "IsolationUnavailable", "Limits", "LocalCollimateBackend", "SocketTaken", "Template", "main"]

_DESCRIPTION = "The local sandbox daemon: warm interpreters, forked in isolation for every candidate."
_DESCRIPTORS = 16384
EX_UNAVAILABLE = 69
"""sysexits(3): the isolation that was asked for can't be had."""


class LocalCollimateBackend:
    """A daemon inside this process, as a context manager: it serves from entering to leaving.

    `templates` are names (all of them the same warm interpreter), or a mapping of names to `Template`s; None is the
    default catalog. With `unix_socket` it listens there instead of on TCP (port 0: any free one). `isolation` "auto" is
    namespaces where they can be had, else none with a `RuntimeWarning`. For tests of adapters:
    `endpoints_fn(session_id, template_id, body)` -> `{port: "host:port"}` adds endpoints to a created session's answer,
    and `drop_session_id` leaves the id out of it. Further settings are fields of `Limits`.
    Entering raises IsolationUnavailable, SocketTaken or OSError when it can't serve.
    """

    def __init__(
        self,
        templates: Iterable[str] | Mapping[str, Template] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        endpoints_fn: EndpointsFn | None = None,
        drop_session_id: bool = False,
        *,
        unix_socket: str | None = None,
        isolation: str = "auto",
        limits: Limits | None = None,
    ) -> None:
        self._auto = isolation == "auto"
        self._config = DaemonConfig(
            host=None if unix_socket is not None else host,
            port=port,
            unix_socket=unix_socket,
            isolation="namespaces" if self._auto else isolation,
            templates=_catalog(templates),
            limits=limits or Limits(),
        )
        self._extras: dict[str, Any] = {"endpoints_fn": endpoints_fn, "drop_session_id": drop_session_id}
        self._daemon: Daemon | None = None

    @property
    def base_url(self) -> str:
        """`http://host:port`, or `unix:/path`."""
        if self._config.unix_socket is not None:
            return f"unix:{self._config.unix_socket}"
        if self._daemon is None or self._daemon.host_port is None:
            raise RuntimeError("the backend is not serving: enter it with `with` (or call start) first")
        return _url(self._daemon.host_port)

    @property
    def unix_socket(self) -> str | None:
        """The socket's path, when it listens on one."""
        return self._config.unix_socket

    @property
    def isolation(self) -> str:
        """What isolates the sandboxes: "namespaces" or "none"; settled by `start`."""
        return self._config.isolation

    def start(self) -> None:
        """Serve."""
        if self._daemon is not None:
            raise RuntimeError("the backend is serving already")
        try:
            self._daemon = self._started(self._config)
        except IsolationUnavailable as exc:
            if not self._auto:
                raise
            warnings.warn(
                f"candidates will run WITHOUT isolation, as plain processes of this user: {exc}",
                RuntimeWarning,
                stacklevel=2,
            )
            self._config = replace(self._config, isolation="none")
            self._daemon = self._started(self._config)

    def _started(self, config: DaemonConfig) -> Daemon:
        daemon = Daemon(config, **self._extras)
        daemon.start()
        return daemon

    def close(self) -> None:
        """End everything. Without effect when it is not serving."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.close()

    def __enter__(self) -> LocalCollimateBackend:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _catalog(templates: Iterable[str] | Mapping[str, Template] | None) -> Mapping[str, Template]:
    if isinstance(templates, Mapping):
        return templates
    return dict.fromkeys(DEFAULT_CATALOG if templates is None else templates, Template())


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends it at once. With --check, only look.

    Returns the exit status.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=arguments.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(message)s")
    warn_once()
    try:
        config = _config(arguments)
        daemon = Daemon(config)
    except ValueError as exc:
        print(f"collimate sandboxd: {exc}", file=sys.stderr)
        return 2
    if arguments.check:
        return check(config, as_json=arguments.json)
    _raise_descriptor_limit()
    with StopSignals() as signals:
        try:
            daemon.start()
        except IsolationUnavailable as exc:
            print(f"collimate sandboxd: {exc}", file=sys.stderr)
            return EX_UNAVAILABLE
        except SocketTaken as exc:
            print(f"collimate sandboxd: {exc}", file=sys.stderr)
            return 1
        except OSError as exc:
            listening = [f"--socket {config.unix_socket}"] if config.unix_socket is not None else []
            listening += [f"--host {config.host} --port {config.port}"] if config.host is not None else []
            print(f"collimate sandboxd: cannot serve on {' and '.join(listening)}: {exc}", file=sys.stderr)
            return 1
        print(_banner(daemon), file=sys.stderr, flush=True)
        try:
            signals.wait()
            _drain(daemon, signals)
        finally:
            daemon.close()
    return 0


def _raise_descriptor_limit() -> None:
    """Each session holds two descriptors and each connection one: the usual soft limit of 1,024 is too little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _drain(daemon: Daemon, signals: StopSignals) -> None:
    def drain() -> None:
        try:
            daemon.drain()
        finally:
            signals.wake()

    threading.Thread(target=drain, name="drain", daemon=True).start()
    signals.wait()


def _banner(daemon: Daemon) -> str:
    config = daemon.config
    places = []
    if config.unix_socket is not None:
        places.append(f"unix:{config.unix_socket}")
    if daemon.host_port is not None:
        places.append(_url(daemon.host_port))
    return (
        f"collimate sandboxd: serving on {' and '.join(places)}, isolation {config.isolation}, "
        f"templates {', '.join(config.templates)}"
    )


def _url(host_port: tuple[str, int]) -> str:
    host, port = host_port
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m collimate_rl.local_backend", description=_DESCRIPTION)
    parser.add_argument("--socket", metavar="PATH", help="listen on this unix socket")
    parser.add_argument(
        "--socket-mode",
        choices=tuple(SOCKET_MODES),
        default="600",
        help="who may connect there: 600, this user alone (the default); 660, its group too; 666, anybody",
    )
    parser.add_argument("--host", help="listen on this address (default 127.0.0.1 when there is no --socket)")
    parser.add_argument("--port", type=int, help="TCP port (default 8080; 0: any free one)")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="its [templates.NAME] tables are offered, too (default: ./collimate.toml, if any)",
    )
    parser.add_argument("--template", action="append", metavar="NAME", default=[], help="offer a template of this name")
    parser.add_argument("--interpreter", metavar="PATH", help="the templates' Python (default: the daemon's own)")
    parser.add_argument(
        "--preload", action="append", metavar="MODULE", default=[], help="import this in every template"
    )
    parser.add_argument(
        "--isolation", choices=ISOLATIONS, default="namespaces", help="none: plain subprocesses, for tests on a laptop"
    )
    parser.add_argument("--max-sessions", type=int, default=1024, metavar="N", help="live sessions (default: 1024)")
    parser.add_argument("--max-inflight", type=int, metavar="N", help="execs that run at once (default: two per core)")
    parser.add_argument(
        "--check", action="store_true", help="tell what this machine has and lacks, try one jail, and exit (0 or 2)"
    )
    parser.add_argument("--json", action="store_true", help="--check as one JSON document")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")
    return parser


def _config(arguments: argparse.Namespace) -> DaemonConfig:
    bounds = {"max_sessions": arguments.max_sessions}
    if arguments.max_inflight is not None:
        bounds["max_inflight"] = arguments.max_inflight
    template = Template(interpreter=arguments.interpreter, preload=tuple(arguments.preload))
    host = arguments.host
    if host is None and (arguments.socket is None or arguments.port is not None):
        host = "127.0.0.1"
    return DaemonConfig(
        host=host,
        port=8080 if arguments.port is None else arguments.port,
        unix_socket=arguments.socket,
        socket_mode=SOCKET_MODES[arguments.socket_mode],
        isolation=arguments.isolation,
        templates={
            **dict.fromkeys([*DEFAULT_CATALOG, *arguments.template], template),
            **load_templates(arguments.config),
        },
        limits=Limits(**bounds),
    )


if __name__ == "__main__":
    with printing("collimate sandboxd"):
        sys.exit(main())
