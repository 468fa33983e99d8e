"""What the commands that look at a queue share: which server, `--json`, one line for what is wrong."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from collimate_rl.cli.gateway_call import EXIT_BAD_INPUT, EXIT_INFRA, Command
from collimate_rl.cli.interrupt import unwinding
from collimate_rl.errors import QueueError, RedisUnavailable
from collimate_rl.grading.result import printable

if TYPE_CHECKING:
    from collimate_rl.queue.batches import BatchQueue

TIMEOUT_S = 5.0
"""For the server to answer one command: who looks wants to hear soon that it hangs."""
DEFAULT_URL = "redis://127.0.0.1:6379/0"


def on_queue(command: Command) -> Command:
    """`--redis-url`, `--queue`, `--json`, and the errors told; the command's first argument is the `BatchQueue`."""
    options = (
        click.option(
            "--redis-url",
            "--redis",
            "redis_url",
            metavar="URL",
            envvar="COLLIMATE_REDIS_URL",
            default=DEFAULT_URL,
            help=f"redis://, rediss:// or unix:PATH. Default: $COLLIMATE_REDIS_URL, else {DEFAULT_URL}.",
        ),
        click.option(
            "--queue",
            "queue_name",
            metavar="NAME",
            envvar="COLLIMATE_QUEUE",
            default="grade",
            help="The queue. Default: $COLLIMATE_QUEUE, else grade.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else there."),
    )

    @functools.wraps(command)
    def run(*arguments: Any, redis_url: str, queue_name: str, as_json: bool, **given: Any) -> None:
        with _told(), queue_at(redis_url, queue_name) as queue:
            command(queue, *arguments, as_json=as_json, **given)

    wrapped: Command = run
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


@contextmanager
def queue_at(redis_url: str, name: str) -> Iterator[BatchQueue]:
    """The queue until the context ends; nothing is connected yet."""
    try:
        from collimate_rl.queue.batches import BatchQueue
        from collimate_rl.queue.clients import connect_commands
    except ModuleNotFoundError as missing:
        raise click.UsageError(str(missing)) from missing
    try:
        client = connect_commands(redis_url, timeout_s=TIMEOUT_S, retries=1)
        queue = BatchQueue(client, name)
    except ValueError as error:
        raise click.UsageError(printable(str(error))) from error
    try:
        yield queue
    finally:
        client.close()


@contextmanager
def _told() -> Iterator[None]:
    """Errors become one line and an exit status: 2 bad usage or a server that refuses, 3 one that is away."""
    try:
        with unwinding():
            yield
    except RedisUnavailable as error:
        _leave(error.message, EXIT_INFRA)
    except QueueError as error:
        _leave(error.message, EXIT_BAD_INPUT)
    except ValueError as error:
        _leave(str(error), EXIT_BAD_INPUT)


def _leave(message: str, status: int) -> None:
    click.echo(printable(message), err=True)
    sys.exit(status)
