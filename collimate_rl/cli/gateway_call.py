"""What every command on a gateway shares: key and origin, `--json`, and one clear line for what went wrong."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from collimate_rl.cli.interrupt import unwinding
from collimate_rl.errors import CollimateError, DemoTierLimit, TemplateBakeFailed, UnreachableError
from collimate_rl.grading.result import printable

if TYPE_CHECKING:
    from collimate_rl.gateway import GatewayClient

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INFRA = 3

Command = Callable[..., Any]


class Number(click.FloatRange):
    """A finite number within bounds: "nan" passes every bound, and a wait that is told so never ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


def gateway_options(command: Command) -> Command:
    """`--api-key`, `--base-url`, `--json`; the command gets `api_key`, `base_url`, `as_json`."""
    options = (
        click.option("--api-key", envvar="COLLIMATE_API_KEY", help="The gateway's key. Default: $COLLIMATE_API_KEY."),
        click.option(
            "--base-url",
            envvar="COLLIMATE_BASE_URL",
            help="The gateway's origin. Default: $COLLIMATE_BASE_URL, else https://api.collimate.ai.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout; people's lines go to stderr."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def on_gateway(command: Command) -> Command:
    """The options, and the errors told; the command's first argument is the client."""

    @gateway_options
    @functools.wraps(command)
    def run(*arguments: Any, api_key: str | None, base_url: str | None, as_json: bool, **given: Any) -> None:
        with told(), client_of(api_key, base_url) as client:
            command(client, *arguments, as_json=as_json, **given)

    return run


@contextmanager
def client_of(api_key: str | None, base_url: str | None, **options: Any) -> Iterator[GatewayClient]:
    """A client until the context ends; no key anywhere is bad usage."""
    from collimate_rl.gateway import GatewayClient

    if not api_key:
        raise click.UsageError(
            "this needs a gateway's key: give --api-key or set COLLIMATE_API_KEY. Without one, `collimate serve "
            "--gateway` serves the gateway API on this machine and prints keys for it"
        )
    try:
        client = GatewayClient(api_key, base_url, **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    with client:
        yield client


@contextmanager
def told() -> Iterator[None]:
    """Errors become one line and an exit status: 1 a bake that failed or did not end, 2 bad usage, 3 the gateway."""
    try:
        with unwinding():
            yield
    except TemplateBakeFailed as error:
        _leave(str(error), EXIT_FAILED)
    except TimeoutError as error:
        _leave(str(error), EXIT_FAILED)
    except DemoTierLimit as error:
        _leave(error.message, EXIT_INFRA)
    except UnreachableError as error:
        _leave(f"no gateway answers: {error}", EXIT_INFRA)
    except CollimateError as error:
        wrong = error.is_misconfigured or error.status in (400, 404)
        _leave(f"{error}", EXIT_BAD_INPUT if wrong else EXIT_INFRA)
    except ValueError as error:
        _leave(str(error), EXIT_BAD_INPUT)


def _leave(message: str, status: int) -> None:
    click.echo(printable(message), err=True)
    sys.exit(status)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, default=str))
