"""`collimate grade FILE.jsonl`: every row's completions, graded here, a line of JSON or of words for each row."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from collimate_rl.errors import CollimateError
from collimate_rl.formats import candidate_of
from collimate_rl.grading.result import GradeResult
from collimate_rl.protocol.manifest import group_record
from collimate_rl.rewards import grade_batch, reward_spec_from_ground_truth
from collimate_rl.transport import SessionClient

EXIT_BAD_INPUT = 2
EXIT_INFRA = 3


def grade_rows(
    client: SessionClient, lines: Iterator[str], *, entry: str, template: str, timeout_seconds: int, as_json: bool
) -> int:
    """The exit status: 0 when every row has verdicts, 3 when some have none, 2, which wins, when a row can't be graded.

    A row is `{"id"?, "ground_truth", "completions": [text], "entry"?, "template"?, "timeout_seconds"?}`, as for
    `python -m producer submit`. A run that is set up wrongly (no such template, a key refused) raises CollimateError.
    """
    status, rewards, infra, rows = 0, [0.0] * 0, 0, 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _row(line, entry, template, timeout_seconds)
        except ValueError as error:
            status = EXIT_BAD_INPUT
            _tell({"line": number, "error": str(error)}, f"line {number}: {error}", as_json)
            continue
        results = grade_batch(
            client,
            row["template"],
            row["candidates"],
            row["spec"],
            timeout_seconds=row["timeout_seconds"],
            on_infra_error="zero",
        )
        _refuse_misconfigured(results)
        rows += 1
        failed = sum(result.infra_error for result in results)
        infra += failed
        rewards += [result.reward for result in results if not result.infra_error and result.reward is not None]
        if failed and status == 0:
            status = EXIT_INFRA
        name = row["id"] if row["id"] is not None else number
        record = group_record(
            template=row["template"],
            spec=row["spec"].to_wire(),
            candidates=row["candidates"],
            timeout_seconds=row["timeout_seconds"],
            with_inputs=False,
        )
        told = {"id": name, "results": [_as_dict(result) for result in results], "batch": record}
        _tell(told, f"{name}: {_said(results)}", as_json)
    if not rows and status == 0:
        raise click.UsageError("the file holds no rows")
    mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "no verdicts"
    click.echo(f"{rows} rows, {len(rewards)} verdicts, {mean}, {infra} infra errors", err=as_json)
    return status


def _tell(document: dict[str, Any], words: str, as_json: bool) -> None:
    click.echo(json.dumps(document) if as_json else words)
    sys.stdout.flush()


def _row(line: str, entry: str, template: str, timeout_seconds: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(row, dict) or "ground_truth" not in row:
        raise ValueError('a row is an object with "ground_truth" and "completions"')
    completions = row.get("completions")
    if not isinstance(completions, list) or not completions or not all(isinstance(one, str) for one in completions):
        raise ValueError('"completions" must be a list of texts, not empty')
    seconds = row.get("timeout_seconds", timeout_seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= 3600:
        raise ValueError('"timeout_seconds" must be a whole number from 1 to 3600')
    for name in ("entry", "template"):
        if not isinstance(row.get(name, ""), str):
            raise ValueError(f'"{name}" must be a text')
    spec = reward_spec_from_ground_truth(row["ground_truth"], entry=row.get("entry", entry))
    return {
        "id": row.get("id"),
        "spec": spec,
        "candidates": [candidate_of(spec, one, row.get("entry", entry)) for one in completions],
        "template": row.get("template", template),
        "timeout_seconds": seconds,
    }


def _refuse_misconfigured(results: Sequence[GradeResult]) -> None:
    for result in results:
        if result.infra_error:
            why = result.detail or result.error_code
            error = CollimateError(f"a candidate has no verdict: {why}", None, result.error_code)
            if error.is_misconfigured:
                raise error


def _as_dict(result: GradeResult) -> dict[str, Any]:
    return {
        "reward": None if result.infra_error else result.reward,
        "outcome": result.outcome,
        "infra_error": result.infra_error,
        "error_code": result.error_code,
        "cases_passed": result.cases_passed,
        "cases_total": result.cases_total,
        "cases": [{"outcome": case.outcome, "ms": case.ms} for case in result.cases],
        "flags": list(result.flags),
        "seed": result.seed,
        "grader_version": result.grader_version,
        "python": result.python,
    }


def _said(results: Sequence[GradeResult]) -> str:
    rewards = " ".join("-" if result.infra_error else f"{result.reward:g}" for result in results)
    outcomes = Counter(str(result.error_code if result.infra_error else result.outcome) for result in results)
    return f"{rewards}  ({', '.join(f'{count} {name}' for name, count in outcomes.items())})"
