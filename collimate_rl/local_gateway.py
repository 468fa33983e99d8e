"""The local gateway's front door: `python -m collimate_rl.local_gateway`, and a class for use in a program."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from collimate_rl._output import printing
from collimate_rl._variables import warn_once
from collimate_rl.errors import CollimateError
from collimate_rl.localgateway.gateway import Gateway, GatewayConfig
from collimate_rl.localgateway.keys import Key, make_key, parse_key
from collimate_rl.sandboxd.backend import IsolationUnavailable
from collimate_rl.sandboxd.config import DEFAULT_CATALOG, ISOLATIONS, Limits, Template
from collimate_rl.sandboxd.config_file import load_templates
from collimate_rl.sandboxd.listening import SocketTaken
from collimate_rl.sandboxd.signals import StopSignals

__all__ = ["GatewayConfig", "Key", "LocalGateway", "main", "make_key", "parse_key"]

_DESCRIPTION = "The gateway API in front of local sandboxes: key tiers, templates, forks, tunnels, on this machine."
EX_UNAVAILABLE = 69
"""sysexits(3): the isolation that was asked for can't be had."""


class LocalGateway:
    """A gateway inside this process, as a context manager. The arguments are the fields of `GatewayConfig`.

    Without `keys` there is one of each tier, made up: `key("pro")`. Entering raises IsolationUnavailable, SocketTaken,
    CollimateError (its `backend` does not answer) or OSError when it can't serve; building it, ValueError.
    """

    def __init__(self, **settings: Any) -> None:
        self._config = GatewayConfig(**settings)
        self._gateway: Gateway | None = None

    @property
    def base_url(self) -> str:
        """The origin: `http://host:port`, or `unix:/path` where it listens on no TCP port."""
        if self._config.host is None:
            return f"unix:{self._config.unix_socket}"
        if self._gateway is None or self._gateway.host_port is None:
            raise RuntimeError("the gateway is not serving: enter it with `with` first")
        host, port = self._gateway.host_port
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def keys(self) -> tuple[Key, ...]:
        """Who is let in."""
        return self._config.keys

    def key(self, tier: str) -> str:
        """The bearer token of the first key of a tier; a KeyError when there is none."""
        for key in self._config.keys:
            if key.tier.name == tier:
                return key.text
        raise KeyError(tier)

    def __enter__(self) -> LocalGateway:
        gateway = Gateway(self._config)
        gateway.start()
        self._gateway = gateway
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.close()


def main(argv: Sequence[str] | None = None, *, meanwhile: Callable[[], int] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, or until `meanwhile` returns; every sandbox is ended then. The exit status."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=arguments.log_level.upper(), stream=sys.stderr, format="%(levelname)s %(message)s")
    warn_once()
    try:
        gateway = LocalGateway(**_settings(arguments))
    except ValueError as exc:
        print(f"collimate gateway: {exc}", file=sys.stderr)
        return 2
    with StopSignals() as signals:
        try:
            with gateway:
                for line in banner(gateway):
                    print(line, file=sys.stderr, flush=True)
                if arguments.json:
                    print(json.dumps(_document(gateway)), flush=True)
                if meanwhile is not None:
                    return meanwhile()
                signals.wait()
        except IsolationUnavailable as exc:
            print(f"collimate gateway: {exc}", file=sys.stderr)
            return EX_UNAVAILABLE
        except (SocketTaken, CollimateError, OSError) as exc:
            print(f"collimate gateway: cannot serve: {exc}", file=sys.stderr)
            return 1
    return 0


def banner(gateway: LocalGateway) -> list[str]:
    """What it prints once it serves: where, and with which keys."""
    lines = [f"collimate gateway: serving on {gateway.base_url}"]
    lines += [f"collimate gateway: {key.tier.name} key {key.text}" for key in gateway.keys]
    first = gateway.keys[-1]
    return [*lines, f"  export COLLIMATE_BASE_URL={gateway.base_url} COLLIMATE_API_KEY={first.text}"]


def _document(gateway: LocalGateway) -> dict[str, Any]:
    keys = [{"tier": key.tier.name, "id": key.key_id, "key": key.text} for key in gateway.keys]
    return {"base_url": gateway.base_url, "keys": keys}


def parser() -> argparse.ArgumentParser:
    """The command line's options."""
    options = argparse.ArgumentParser(prog="python -m collimate_rl.local_gateway", description=_DESCRIPTION)
    options.add_argument("--socket", metavar="PATH", help="listen on this unix socket")
    options.add_argument("--host", help="listen on this address (default 127.0.0.1 when there is no --socket)")
    options.add_argument("--port", type=int, help="TCP port (default 8090; 0: any free one)")
    options.add_argument(
        "--backend", metavar="WHERE", help="a sandbox daemon, unix:/path or a URL (default: sandboxes of its own)"
    )
    options.add_argument(
        "--key",
        action="append",
        metavar="TIER[:ID:SECRET]",
        default=[],
        help="let this key in; a tier alone makes one up, which is printed (default: one of each tier)",
    )
    options.add_argument("--template", action="append", metavar="NAME", default=[], help="offer an image of this name")
    options.add_argument("--config", metavar="FILE", help="its [templates.NAME] tables are images, too")
    options.add_argument("--isolation", choices=ISOLATIONS, default="namespaces", help="none: plain subprocesses")
    options.add_argument("--max-sessions", type=int, default=1024, metavar="N", help="sandboxes alive, of all keys")
    options.add_argument(
        "--phase-seconds", type=float, default=0.2, metavar="S", help="each phase of a bake lasts so long (0.2)"
    )
    options.add_argument(
        "--converge-seconds", type=float, default=0.5, metavar="S", help="a pool fills in so long (0.5)"
    )
    options.add_argument(
        "--ready-seconds", type=float, default=10.0, metavar="S", help="how long a ready check may take (10)"
    )
    options.add_argument(
        "--rate", type=float, default=0.0, metavar="N", help="requests per second of each key (0: no limit)"
    )
    options.add_argument("--json", action="store_true", help="once it serves, its address and keys as one JSON line")
    options.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")
    return options


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    host = arguments.host
    if host is None and (arguments.socket is None or arguments.port is not None):
        host = "127.0.0.1"
    settings: dict[str, Any] = {
        "host": host,
        "port": 8090 if arguments.port is None else arguments.port,
        "unix_socket": arguments.socket,
        "backend": arguments.backend,
        "isolation": arguments.isolation,
        "limits": Limits(max_sessions=arguments.max_sessions),
        "phase_s": arguments.phase_seconds,
        "converge_s": arguments.converge_seconds,
        "ready_s": arguments.ready_seconds,
        "requests_per_second": arguments.rate,
        "templates": {
            **dict.fromkeys([*DEFAULT_CATALOG, *arguments.template], Template()),
            **load_templates(arguments.config),
        },
    }
    if arguments.key:
        settings["keys"] = tuple(parse_key(text) for text in arguments.key)
    return settings


if __name__ == "__main__":
    with printing("collimate gateway"):
        sys.exit(main())
