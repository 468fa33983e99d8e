"""`python -m producer submit FILE.jsonl`: grades a file of rows over the queue."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import BinaryIO

from collimate_rl._output import printing
from collimate_rl._variables import warn_once
from collimate_rl.errors import CollimateError
from collimate_rl.protocol.codes import SEED_MODES

try:
    from collimate_rl.queue.batches import DEFAULT_WINDOW
except ModuleNotFoundError as missing:
    print(f"producer: {missing}", file=sys.stderr)
    raise SystemExit(2) from missing
from producer.producer import Producer
from producer.submit_file import EXIT_BAD_INPUT, Defaults, FileRun

EXIT_INTERRUPTED = 130
"""As shells count it: 128 and SIGINT's number."""

_DESCRIPTION = """Grades every row of a JSON-lines file over the queue.

One line in: {"id"?, "ground_truth", "completions": ["…"], "entry"?, "template"?, "timeout_seconds"?}.
One line out per row, in the file's order: {"id", "results": [verdicts]}; a bad line prints {"line", "error"} there.
Exit code: 0 when every batch has verdicts, 3 when some results are infra-flagged, 2 on bad input or configuration.
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m producer`."""
    top = argparse.ArgumentParser(prog="python -m producer", description="The trainer's side of the queue.")
    commands = top.add_subparsers(dest="command", required=True)
    submit = commands.add_parser(
        "submit", help="grade a file", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    submit.add_argument("file", metavar="FILE.jsonl", help="the rows; - for stdin")
    submit.add_argument(
        "--redis-url",
        "--redis",
        metavar="URL",
        default=os.environ.get("COLLIMATE_REDIS_URL"),
        help="redis://host:port/0 or unix:/path (default: $COLLIMATE_REDIS_URL)",
    )
    submit.add_argument("--run", required=True, help="the run's name: the same id of the same run is the same batch")
    submit.add_argument(
        "--queue",
        default=os.environ.get("COLLIMATE_QUEUE") or "grade",
        help="the queue that the workers serve (default: $COLLIMATE_QUEUE, else grade)",
    )
    submit.add_argument("--name", help="this process' name within the run (default: one of its own)")
    submit.add_argument("--epoch", type=int, default=0, help="a higher one grades known ids anew (default: 0)")
    submit.add_argument("--window", type=int, default=DEFAULT_WINDOW, help="batches in flight per run (default: 256)")
    submit.add_argument("--template", default="py", help="where a row names none (default: py)")
    submit.add_argument("--entry", default="solve", help="the function to call, where a row names none")
    submit.add_argument("--seed-mode", choices=sorted(SEED_MODES), default="vanilla", help="default: vanilla")
    submit.add_argument("--base-seed", help="64 hex digits, for crn and deterministic")
    submit.add_argument("--timeout-seconds", type=int, default=30, help="per candidate, wall time (default: 30)")
    submit.add_argument("--cache", action="store_true", help="use the run's verdicts again for the same candidate")
    submit.add_argument("--grader-version", help="pin, or the grader's version that verdicts must carry")
    submit.add_argument("--with-inputs", action="store_true", help="let each line carry what a replay of it needs")
    submit.add_argument("--deadline-seconds", type=float, default=3600.0, help="per batch (default: 3600)")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = parser().parse_args(argv)
    warn_once(lambda told: print(f"producer: {told}", file=sys.stderr))
    if not options.redis_url:
        return _refuse("no Redis server is named: give --redis-url or set COLLIMATE_REDIS_URL")
    defaults = Defaults(
        template=options.template,
        entry=options.entry,
        seed_mode=options.seed_mode,
        base_seed=options.base_seed,
        timeout_seconds=options.timeout_seconds,
        deadline_s=options.deadline_seconds,
        with_inputs=options.with_inputs,
    )
    show = _progress if sys.stderr.isatty() else None
    with ExitStack() as stack:
        try:
            rows: BinaryIO = sys.stdin.buffer if options.file == "-" else stack.enter_context(open(options.file, "rb"))
            producer = stack.enter_context(
                Producer(
                    options.redis_url,
                    run=options.run,
                    queue=options.queue,
                    name=options.name,
                    epoch=options.epoch,
                    window=options.window,
                    grader_version=options.grader_version,
                    cache=options.cache,
                )
            ).open()
        except (OSError, ValueError, CollimateError) as exc:
            return _refuse(str(exc))
        if producer.unserved is not None:
            print(f"producer: {producer.unserved} Waiting for one.", file=sys.stderr)
        try:
            code = FileRun(producer, defaults, write=_write, progress=show).run(rows)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
    if show is not None:
        print(file=sys.stderr)
    if code == EXIT_INTERRUPTED:
        told = "interrupted; what was submitted is graded on, and the same command takes it up again"
        print(f"producer: {told}", file=sys.stderr)
    return code


def _refuse(message: str) -> int:
    print(f"producer: {message}", file=sys.stderr)
    return EXIT_BAD_INPUT


def _write(line: str) -> None:
    print(line, flush=True)


def _progress(answered: int, submitted: int) -> None:
    print(f"\r{answered} of {submitted} rows answered", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with printing("producer"):
        sys.exit(main())
