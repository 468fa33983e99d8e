"""`collimate grade`: one candidate, graded here, with an account of why it got its reward."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from collimate_rl.cli.explain import explain
from collimate_rl.cli.interrupt import unwinding
from collimate_rl.errors import CollimateError, UnreachableError

if TYPE_CHECKING:
    from collimate_rl.rewards import GradeResult
    from collimate_rl.transport import SessionClient

EXIT_INFRA = 3
CASES_SHOWN = 20


@click.command(short_help="Grade the candidate in FILE and say why.")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option(
    "--ground-truth",
    "truth_file",
    type=click.File("r", encoding="utf-8"),
    help="A file with the row's ground truth: JSON of any form that training rows have.",
)
@click.option("--tests", help='The ground truth itself, as JSON text: \'[{"input": [2], "expected": 4}]\'.')
@click.option("--entry", default="solve", show_default=True, help="The function to call, where the row names none.")
@click.option("--template", default="py", show_default=True, help="The template to grade in.")
@click.option("--completion", is_flag=True, help="FILE is a model's answer: take the code out of it first.")
@click.option("--socket", "unix_socket", type=click.Path(), help="The sandbox daemon's unix socket.")
@click.option("--url", "--backend", "base_url", help="The sandbox daemon's URL, or unix:PATH.")
@click.option("--local", is_flag=True, help="Start a sandbox daemon for this call.")
@click.option("--seed", help="64 hex characters: the run's seed, and a property's inputs.")
@click.option("--timeout-seconds", type=click.IntRange(1, 3600), default=30, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def grade(
    file: Any,
    truth_file: Any,
    tests: str | None,
    entry: str,
    template: str,
    completion: bool,
    unix_socket: str | None,
    base_url: str | None,
    local: bool,
    seed: str | None,
    timeout_seconds: int,
    as_json: bool,
) -> None:
    """Grade the candidate in FILE ("-" for stdin) and say why it got its reward; or all rows of a FILE.jsonl.

    A row of FILE.jsonl is {"ground_truth", "completions": [...], "id"?, "entry"?, "template"?, "timeout_seconds"?}, and
    gets a line. Exit 0 when every row has verdicts.

    Any other FILE that does not end in .py is taken as a model's answer, as with --completion. Exit 0 when there is a
    verdict, whatever it is; 2 on bad input; 3 when the infrastructure failed, which says nothing about the candidate.
    """
    from collimate_rl import rewards
    from collimate_rl.formats import candidate_of

    if sum((unix_socket is not None, base_url is not None, local)) > 1:
        raise click.UsageError("--socket, --url and --local name the daemon in three ways: give one")
    if file.name.endswith(".jsonl"):
        if truth_file is not None or tests is not None or completion or seed is not None:
            raise click.UsageError("a FILE.jsonl brings its ground truths and completions: give it alone")
        with daemon_errors_told(), unwinding(), ExitStack() as cleanup:
            from collimate_rl.cli.grade_rows import grade_rows

            client = connected(cleanup, unix_socket, base_url, local)
            status = grade_rows(
                client, file, entry=entry, template=template, timeout_seconds=timeout_seconds, as_json=as_json
            )
            sys.exit(status)
    if (truth_file is None) == (tests is None):
        raise click.UsageError("give the ground truth: --ground-truth FILE or --tests JSON, one of the two")
    try:
        spec = rewards.reward_spec_from_ground_truth(tests if tests is not None else truth_file.read(), entry=entry)
    except ValueError as error:
        raise click.UsageError(f"the ground truth cannot be used: {error}") from error
    try:
        text = file.read()
    except ValueError as error:
        raise click.UsageError(f"{file.name} is no text: {error}") from error
    if completion or not file.name.endswith(".py"):
        text = candidate_of(spec, text, entry)
    with daemon_errors_told(), unwinding(), ExitStack() as cleanup:
        client = connected(cleanup, unix_socket, base_url, local)
        result = rewards.grade(client, template, text, spec, seed=seed, timeout_seconds=timeout_seconds)
    if not as_json:
        click.echo(account(result))
        return
    from collimate_rl.protocol.manifest import group_record

    record = group_record(
        template=template,
        spec=spec.to_wire(),
        candidates=[text],
        timeout_seconds=timeout_seconds,
        with_inputs=True,
    )
    click.echo(json.dumps({**as_dict(result), "batch": record}, indent=2))


@contextmanager
def daemon_errors_told(statuses: Mapping[str, int] | None = None) -> Iterator[None]:
    """What the daemon refused or lost, as one clear line and an exit status, which `statuses` may name per code."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except UnreachableError as error:
        click.echo(
            f"no sandbox daemon answers: {error}\nstart one (python -m collimate_rl.local_backend --socket PATH) and "
            "name it with --socket, or let --local start one for this call",
            err=True,
        )
        sys.exit(EXIT_INFRA)
    except CollimateError as error:
        status = (statuses or {}).get(error.error_code or "")
        if status is not None:
            click.echo(error.message, err=True)
            sys.exit(status)
        if error.is_misconfigured:
            raise click.UsageError(error.message) from error
        click.echo(
            f"no verdict, for the infrastructure failed ({error.error_code}): {error}\n"
            "this says nothing about the candidate",
            err=True,
        )
        sys.exit(EXIT_INFRA)


def connected(cleanup: ExitStack, unix_socket: str | None, base_url: str | None, local: bool) -> SessionClient:
    """A client of the daemon that the options name, or of one that lives as long as `cleanup`."""
    from collimate_rl.client import CollimateClient
    from collimate_rl.transport import connect

    if local:
        from collimate_rl.local_backend import LocalCollimateBackend

        backend = cleanup.enter_context(LocalCollimateBackend())
        return CollimateClient(backend.base_url)
    return connect(base_url, unix_socket=unix_socket)


def as_dict(result: GradeResult) -> dict[str, Any]:
    """The result's fields as plain JSON data; `raw` (the exec's answer) is left out."""
    return {
        "reward": result.reward,
        "outcome": result.outcome,
        "cases_total": result.cases_total,
        "cases_passed": result.cases_passed,
        "cases": [{"outcome": case.outcome, "ms": case.ms} for case in result.cases or ()],
        "detail": result.detail,
        "output_tail": (result.output_tail or b"").decode("utf-8", "replace"),
        "truncated": result.truncated,
        "integrity": result.integrity,
        "flags": list(result.flags or ()),
        "seed": result.seed,
        "seed_ack": result.seed_ack,
        "exit_code": result.exit_code,
        "fork_time_ms": result.fork_time_ms,
        "exec_time_ms": result.exec_time_ms,
        "judge_time_ms": result.judge_time_ms,
        "grader_version": result.grader_version,
        "python": result.python,
    }


def account(result: GradeResult) -> str:
    """The result for people, most telling first."""
    from collimate_rl.grading.result import printable

    lines = [f"reward   {result.reward:g}", f"outcome  {result.outcome}: {explain(result.outcome)}"]
    if result.cases_total:
        lines.append(f"cases    {result.cases_passed} of {result.cases_total} passed")
        cases = list(result.cases or ())
        for number, case in enumerate(cases[:CASES_SHOWN], 1):
            lines.append(f"  {number:>4}  {case.outcome:<15} {case.ms:9.1f} ms")
        if result.cases_total > CASES_SHOWN:
            lines.append(f"        … {result.cases_total - min(CASES_SHOWN, len(cases))} more: see --json")
    if result.detail:
        lines += ["detail", *(f"  {line}" for line in result.detail.splitlines())]
    tail = printable((result.output_tail or b"").decode("utf-8", "replace"))
    if tail.strip():
        lines += ["its own prints" + (" (the end)" if result.truncated else ""), *(f"  {x}" for x in tail.splitlines())]
    if result.integrity == "shared":
        lines.append("note     the candidate shared its sandbox with the tests: this spec cannot be split")
    for flag in result.flags or ():
        lines.append(f"flag     {flag}")
    lines.append(f"seed     {result.seed} (seed_ack {result.seed_ack})")
    times = (
        f"fork {result.fork_time_ms:.1f} ms, exec {result.exec_time_ms:.1f} ms, judging {result.judge_time_ms:.1f} ms"
    )
    return "\n".join([*lines, f"time     {times}"])
