"""`collimate demo`: the main job on this machine, from batches on a queue to rewards."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import click

from collimate_rl.cli.bake_command import template_options
from collimate_rl.cli.gateway_call import client_of, gateway_options, told

ROWS = 24
TIMEOUT_SECONDS = 2
RUN_LIMIT_S = 600.0
"""When the demo gives up waiting; it takes well under two minutes on two cores."""
DATA_BESIDE = Path("..") / "shared" / "data" / "humaneval.jsonl"
FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
_NEEDED = ("redis", "rq", "msgpack")


@click.command(short_help="Run the main job here; with a key, on a gateway.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Rows of HumanEval's form, one JSON object per line. Default: a slice of HumanEval beside the checkout "
    "where there is one, else five rows that the package ships.",
)
@click.option("--rows", type=click.IntRange(1), default=ROWS, show_default=True, help="How many rows, at most.")
@template_options(image_required=False)
@click.option("--rounds", type=click.IntRange(1), default=8, show_default=True, help="Rounds of execs, on a gateway.")
@gateway_options
def demo(
    data: Path | None,
    rows: int,
    rounds: int,
    api_key: str | None,
    base_url: str | None,
    as_json: bool,
    **template: Any,
) -> None:
    """Without a key, run the main job here; with one, bake a template on the gateway and use it.

    Here: Redis, sandbox daemon and worker, and groups of eight candidates graded (--data, --rows). Everything lives in
    a temporary directory, nothing listens on TCP, and all of it is stopped at the end. Exit 0 means that every right
    candidate scored 1.0, every wrong one 0.0, and that there was no infra error.

    On a gateway (all other options): bake, wait until the pool has converged, then rounds of sandboxes with an exec in
    each. Exit 0 means that all of them worked.
    """
    if api_key:
        from collimate_rl.cli.demo_gateway import run_on_gateway

        with told(), client_of(api_key, base_url) as client:
            sys.exit(run_on_gateway(client, template, rounds=rounds, as_json=as_json))
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.UsageError(
            f"the demo needs {', '.join(missing)}: install the extra, pip install 'collimate-rl[demo]'"
        )
    try:
        chosen = load_rows(data, rows)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    from collimate_rl.cli.demo_run import run

    sys.exit(run(chosen, as_json=as_json))


def load_rows(data: Path | None, limit: int) -> list[dict[str, str]]:
    """Up to `limit` rows with task_id, prompt, entry_point, canonical_solution and test; ValueError for other data."""
    text = data.read_text() if data is not None else _default_text()
    rows: list[dict[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if len(rows) == limit:
            break
        try:
            row = json.loads(line)
            rows.append({key: str(row[key]) for key in FIELDS})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"line {number} of {data or 'the data'} is no row of HumanEval's form: {error!r}"
            ) from error
    if not rows:
        raise ValueError(f"{data or 'the data'} holds no rows")
    return rows


def _default_text() -> str:
    checkout = Path(__file__).resolve().parents[2]
    for base in (Path.cwd(), checkout):
        beside = base / DATA_BESIDE
        if beside.is_file():
            return beside.read_text()
    return resources.files("collimate_rl").joinpath("data").joinpath("demo.jsonl").read_text()
