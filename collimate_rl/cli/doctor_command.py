"""`collimate doctor`: what this machine has and lacks for the product, and what to do about each fault."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click

from collimate_rl.sandboxd.findings import Finding

MARKS = {"ok": "ok", "weaker": "weaker", "doubtful": "?", "missing": "FAULT"}


@click.command(short_help="Say what the product lacks here, and what to do.")
@click.option("--socket", "unix_socket", type=click.Path(), help="The sandbox daemon's unix socket.")
@click.option(
    "--url", "--backend", "base_url", help="The sandbox daemon's URL, or unix:PATH. Default: as `connect` finds it."
)
@click.option(
    "--redis-url",
    "--redis",
    "redis_url",
    envvar="COLLIMATE_REDIS_URL",
    help="The queue's server. Default: $COLLIMATE_REDIS_URL.",
)
@click.option(
    "--queue",
    "queue_name",
    envvar="COLLIMATE_QUEUE",
    default="grade",
    help="Whose nodes to look at. Default: $COLLIMATE_QUEUE, else grade.",
)
@click.option("--no-trial", is_flag=True, help="Bring no jail up to see whether one would serve.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(
    unix_socket: str | None, base_url: str | None, redis_url: str | None, queue_name: str, no_trial: bool, as_json: bool
) -> None:
    """Look at Python, packages, sandboxing, Redis, clocks and the daemon, and say what to do about each fault.

    Exit 0 when there is no FAULT; 1 otherwise. What was not asked for (no Redis named, no daemon running) is no fault.
    """
    from collimate_rl.cli import doctor_checks

    if unix_socket is not None and base_url is not None:
        raise click.UsageError("--socket and --url name the daemon in two ways: give one")
    with _quiet_log():
        groups = {
            "python": doctor_checks.python_and_packages(),
            "sandboxes": doctor_checks.sandboxes(trial=not no_trial),
            "redis": doctor_checks.redis_server(redis_url, queue_name),
            "daemon": doctor_checks.daemon(unix_socket, base_url),
        }
    found = [finding for group in groups.values() for finding in group]
    well = all(finding.state != "missing" for finding in found)
    if as_json:
        document = {name: [asdict(finding) for finding in group] for name, group in groups.items()}
        click.echo(json.dumps({"well": well, **document}, indent=2))
    else:
        for name, group in groups.items():
            click.echo(name)
            click.echo("\n".join(_lines(group)))
        click.echo("\nno faults" if well else "\nfaults: see the lines marked FAULT")
    sys.exit(0 if well else 1)


@contextmanager
def _quiet_log() -> Iterator[None]:
    """A finding tells what a log line would tell once more. The level is the whole process', so it is put back."""
    logger = logging.getLogger("collimate_rl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _lines(group: list[Finding]) -> list[str]:
    width = max(len(finding.name) for finding in group)
    lines = []
    for finding in group:
        lines.append(f"  {MARKS[finding.state]:>6}  {finding.name:<{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"  {'':>6}  {'':<{width}}  -> {finding.remedy}")
    return lines
