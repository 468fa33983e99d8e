"""`collimate replay`: a verdict explained case by case, and the candidate run again to see whether it stands."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collimate_rl.cli.grade_command import EXIT_INFRA, connected, daemon_errors_told
from collimate_rl.cli.interrupt import unwinding

if TYPE_CHECKING:
    from collimate_rl.replay.recorded import Recorded
    from collimate_rl.transport import SessionClient

EXIT_SAME = 0
EXIT_DIFFERS = 1
EXIT_CANNOT = 4


@click.command(short_help="Run a graded candidate again, case by case.")
@click.argument("result")
@click.option("--index", type=click.IntRange(min=0), help="The candidate's place in its group; all of them by default.")
@click.option("--line", "number", type=click.IntRange(min=1), help="Which line of a file of several, from 1.")
@click.option(
    "--rows", type=click.File("r", encoding="utf-8"), help="The file that was graded, for lines without inputs."
)
@click.option(
    "--redis-url",
    "--redis",
    "redis_url",
    envvar="COLLIMATE_REDIS_URL",
    help="The queue's server, where RESULT is RUN/ID, or a line of it without inputs.",
)
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True, help="Of RUN/ID.")
@click.option("--socket", "unix_socket", type=click.Path(), help="The sandbox daemon's unix socket.")
@click.option("--url", "--backend", "base_url", help="The sandbox daemon's URL, or unix:PATH.")
@click.option("--local", is_flag=True, help="Start a sandbox daemon for this call.")
@click.option("--anyway", is_flag=True, help="Run it even where another grader judged then.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON per candidate.")
def replay(
    result: str,
    index: int | None,
    number: int | None,
    rows: Any,
    redis_url: str | None,
    epoch: int,
    unix_socket: str | None,
    base_url: str | None,
    local: bool,
    anyway: bool,
    as_json: bool,
) -> None:
    """Run a graded candidate again, under the same seed, template, limits and cases, and say whether it is as then.

    RESULT is a file with a line as `python -m producer submit` or `collimate grade --json` write it ("-" for stdin), or
    RUN/ID of a batch that the queue still has. Expected values are shown.

    Exit 0 when everything is as it was, 1 when something differs, 2 on bad input, 3 when the infrastructure failed, 4
    when it can't be run again as it was: its inputs are gone, or its grader or template is another.
    """
    from collimate_rl.replay.recorded import CannotReplay

    if sum((unix_socket is not None, base_url is not None, local)) > 1:
        raise click.UsageError("--socket, --url and --local name the daemon in three ways: give one")
    try:
        recorded = _recorded(result, number, rows, redis_url, epoch)
        if index is not None and index >= len(recorded.answers):
            raise click.UsageError(f"{recorded.name} has candidates 0 to {len(recorded.answers) - 1}, not {index}")
        wanted = range(len(recorded.answers)) if index is None else [index]
        _refuse_other_graders(recorded, wanted, anyway)
        with daemon_errors_told({"no_template": EXIT_CANNOT}), unwinding(), ExitStack() as cleanup:
            client = connected(cleanup, unix_socket, base_url, local)
            status = max([_one(client, recorded, each, anyway, as_json) for each in wanted], default=EXIT_SAME)
    except CannotReplay as why:
        click.echo(f"it can't be run again as it was: {why}", err=True)
        sys.exit(EXIT_CANNOT)
    sys.exit(status)


def _one(client: SessionClient, recorded: Recorded, index: int, anyway: bool, as_json: bool) -> int:
    from collimate_rl.cli.replay_account import account, as_dict
    from collimate_rl.replay.again import grade_again
    from collimate_rl.replay.recorded import CannotReplay

    again = grade_again(client, recorded, index)
    if not anyway:
        was, now = again.then.python, again.now.python
        if was and now and was != now:
            raise CannotReplay(
                f"template {recorded.template!r} had Python {was} then and has {now} here: replay on a node of "
                "then, or with --anyway"
            )
    if as_json:
        click.echo(json.dumps(as_dict(recorded, again)))
    else:
        click.echo(account(recorded, again))
    return EXIT_DIFFERS if again.differences else EXIT_SAME


def _refuse_other_graders(recorded: Recorded, wanted: Sequence[int], anyway: bool) -> None:
    from collimate_rl.grading.version import grader_version
    from collimate_rl.replay.recorded import CannotReplay

    for index in wanted:
        judged = recorded.answers[index].grader_version
        if judged and judged != grader_version() and not anyway:
            raise CannotReplay(
                f"candidate {index} was judged by grader {judged}, and this is {grader_version()}: install the release "
                "of then, or run it here with --anyway"
            )


def _recorded(result: str, number: int | None, rows: Any, redis_url: str | None, epoch: int) -> Recorded:
    from collimate_rl.replay.recorded import CannotReplay, batch_named, from_line

    if result != "-" and not Path(result).is_file():
        run, slash, id = result.partition("/")
        if not slash or "/" in id:
            raise click.UsageError(f"{result!r} is neither a file nor RUN/ID of a batch")
        if redis_url is None:
            raise click.UsageError("name the queue's server that has the batch: --redis-url, or COLLIMATE_REDIS_URL")
        return _from_queue(redis_url, run, epoch, id)
    line = _line_of(result, number)
    found = from_line(line, rows)
    if found is not None:
        return found
    named = batch_named(line)
    if rows is None and named is not None and redis_url is not None:
        return _from_queue(redis_url, *named)
    if rows is not None:
        raise CannotReplay(f"no row of {rows.name} has the candidates and the ground truth that this line is about")
    raise CannotReplay(
        "the line has no inputs: name the file that was graded with --rows, or the queue's server with --redis-url "
        "while it has the batch (a day), or write lines with --with-inputs"
    )


def _line_of(result: str, number: int | None) -> dict[str, Any]:
    """The line of results; a file of one JSON document, over however many lines, is one, too."""
    try:
        text = sys.stdin.read() if result == "-" else Path(result).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{result} cannot be read: {error}") from error
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        whole = json.loads(text) if number is None and len(lines) > 1 and lines[0].strip() == "{" else None
        if whole is None:
            if number is None and len(lines) != 1:
                raise click.UsageError(f"{result} has {len(lines)} lines: say which with --line")
            if number is not None and number > len(lines):
                raise click.UsageError(f"{result} has {len(lines)} lines, not {number}")
            whole = json.loads(lines[(number or 1) - 1])
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{result} is no line of results: {error}") from error
    if not isinstance(whole, dict):
        raise click.UsageError(f"{result} is no line of results: it holds no object")
    return whole


def _from_queue(redis_url: str, run: str, epoch: int, id: str) -> Recorded:
    from collimate_rl.errors import QueueError
    from collimate_rl.protocol import batch_key, check_name
    from collimate_rl.replay.recorded import CannotReplay, from_queue

    try:
        from collimate_rl.queue import codec
        from collimate_rl.queue.batches import BatchQueue
        from collimate_rl.queue.clients import connect_commands
    except ModuleNotFoundError as missing:
        raise click.UsageError(str(missing)) from missing
    try:
        k = batch_key(check_name("run", run), epoch, check_name("id", id))
        queue = BatchQueue(connect_commands(redis_url))
        try:
            result, payload, cases = queue.result(k), queue.payload(k), queue.stored_cases(k)
        finally:
            queue.client.close()
        if payload is None:
            raise CannotReplay(
                f"the server knows no batch {run}/{id} of epoch {epoch}: a batch is kept for a day after its answer"
            )
        if result is None:
            raise CannotReplay(f"batch {run}/{id} has no answer yet, or its answer is gone")
        return from_queue(codec.unpack_batch(payload), result, cases)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except QueueError as error:
        click.echo(f"the queue could not be read: {error.message}", err=True)
        sys.exit(EXIT_INFRA)
