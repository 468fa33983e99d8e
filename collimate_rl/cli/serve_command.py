"""`collimate serve`: the sandbox daemon, the local gateway, or both, in the foreground."""

from __future__ import annotations

import sys

import click

from collimate_rl.sandboxd.config import ISOLATIONS


@click.command(short_help="Serve a sandbox daemon, or the gateway API, here.")
@click.option(
    "--daemon/--no-daemon", default=None, help="Serve the sandbox daemon. Default: unless --gateway is given."
)
@click.option("--gateway/--no-gateway", default=False, help="Serve the gateway API, with sandboxes of its own.")
@click.option("--socket", "unix_socket", type=click.Path(), help="The daemon's unix socket.")
@click.option("--host", help="The address that is listened on. Default: 127.0.0.1 where there is no --socket.")
@click.option("--port", type=click.IntRange(0, 65535), help="The daemon's TCP port (8080; 0: any free one).")
@click.option("--gateway-port", type=click.IntRange(0, 65535), help="The gateway's TCP port (8090; 0: any free one).")
@click.option("--key", "keys", multiple=True, metavar="TIER[:ID:SECRET]", help="A gateway's key; repeatable.")
@click.option("--template", "templates", multiple=True, metavar="NAME", help="Offer a template of this name.")
@click.option("--config", type=click.Path(), help="Its [templates.NAME] tables are offered, too.")
@click.option("--isolation", type=click.Choice(ISOLATIONS), default="namespaces", show_default=True)
@click.option(
    "--max-sessions", type=click.IntRange(1), default=1024, show_default=True, help="Sandboxes alive at once."
)
@click.option("--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="warning")
@click.option("--json", "as_json", is_flag=True, help="Once the gateway serves, its address and keys as one JSON line.")
def serve(
    daemon: bool | None,
    gateway: bool,
    unix_socket: str | None,
    host: str | None,
    port: int | None,
    gateway_port: int | None,
    keys: tuple[str, ...],
    templates: tuple[str, ...],
    config: str | None,
    isolation: str,
    max_sessions: int,
    log_level: str,
    as_json: bool,
) -> None:
    """Serve on this machine until Ctrl-C or SIGTERM: the sandbox daemon, the gateway API, or both.

    The daemon is `python -m collimate_rl.local_backend`, the gateway `python -m collimate_rl.local_gateway`, which have
    more options. Together in one process they serve sandboxes of their own each.
    """
    serves_daemon = not gateway if daemon is None else daemon
    if not serves_daemon and not gateway:
        raise click.UsageError("--no-daemon needs --gateway: there is nothing to serve")
    if keys and not gateway:
        raise click.UsageError("--key is the gateway's: give --gateway too")
    shared = ["--isolation", isolation, "--max-sessions", str(max_sessions), "--log-level", log_level]
    shared += [word for name in templates for word in ("--template", name)]
    shared += ["--config", config] if config is not None else []
    at = ["--host", host] if host is not None else []
    daemon_argv = [*shared, *at, *(["--socket", unix_socket] if unix_socket is not None else [])]
    daemon_argv += ["--port", str(port)] if port is not None else []
    gateway_argv = [*shared, *at, *(word for key in keys for word in ("--key", key))]
    gateway_argv += ["--port", str(gateway_port)] if gateway_port is not None else []
    gateway_argv += ["--json"] if as_json else []
    sys.exit(_serve(daemon_argv if serves_daemon else None, gateway_argv if gateway else None))


def _serve(daemon: list[str] | None, gateway: list[str] | None) -> int:
    from collimate_rl import local_backend, local_gateway

    if gateway is None:
        return local_backend.main(daemon)
    if daemon is None:
        return local_gateway.main(gateway)
    return local_gateway.main(gateway, meanwhile=lambda: local_backend.main(daemon))
