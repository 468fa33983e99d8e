"""The demo's run: stack up, batches submitted, answers shown as they come, stack down."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence

import click
from rich.console import Console

from collimate_rl.cli.candidates import rollouts
from collimate_rl.cli.demo_command import RUN_LIMIT_S, TIMEOUT_SECONDS
from collimate_rl.cli.demo_report import GroupReport, group_table, progress, totals_table
from collimate_rl.cli.interrupt import Interrupt, Interrupted
from collimate_rl.cli.stack import QUEUE, LocalStack, StackFailed
from collimate_rl.errors import CollimateError
from collimate_rl.rewards import extract_code, reward_spec_from_ground_truth
from producer import BatchHandle, Producer

POLL_S = 0.2
FAULTS_SHOWN = 20


def run(rows: Sequence[dict[str, str]], *, as_json: bool = False) -> int:
    """Grades the rows' groups and prints the report; the exit code. With `as_json` people's lines go to stderr."""
    console = Console(stderr=as_json)
    reports: list[GroupReport] = []
    with Interrupt() as interrupt:
        stack = LocalStack(check=interrupt.check)
        try:
            _say(console, "starting Redis, the sandbox daemon and a worker …")
            with stack:
                faults = _grade(stack, rows, console, reports)
                stack.keep_logs = bool(faults)
        except Interrupted as error:
            _say(console, f"{error}: everything is stopped")
            return error.exit_code
        except (StackFailed, CollimateError, OSError) as error:
            _say(console, f"the demo failed: {error}")
            _say(console, f"logs are kept in {stack.logs}")
            return 1
    if as_json:
        click.echo(json.dumps({"groups": [report.as_dict() for report in reports], "faults": faults}, indent=2))
    if faults:
        console.print("not as it must be:", style="red")
        for fault in faults[:FAULTS_SHOWN]:
            _say(console, f"  {fault}")
        if len(faults) > FAULTS_SHOWN:
            _say(console, f"  … and {len(faults) - FAULTS_SHOWN} more")
        _say(console, f"logs are kept in {stack.logs}")
        return 1
    console.print("every right candidate scored 1.0, every wrong one 0.0", style="green")
    return 0


def _say(console: Console, text: str) -> None:
    """A line as it stands: not wrapped, nothing in it taken for markup."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _grade(
    stack: LocalStack, rows: Sequence[dict[str, str]], console: Console, reports: list[GroupReport]
) -> list[str]:
    """The faults found: none when all is as it must be. `reports` is filled."""
    started = time.monotonic()
    with Producer(stack.redis_url, run="demo", queue=QUEUE) as producer:
        handles = {}
        for turn, row in enumerate(rows):
            group = rollouts(row, turn)
            spec = reward_spec_from_ground_truth({key: row[key] for key in ("prompt", "entry_point", "test")})
            handles[turn] = producer.submit(
                template="py",
                candidates=[extract_code(one.completion, entry=row["entry_point"]) for one in group],
                spec=spec,
                timeout_seconds=TIMEOUT_SECONDS,
            )
            stack.watch()
        with progress(console, len(handles)) as advance:
            for turn, handle in _as_answered(handles, stack):
                report = GroupReport(
                    task_id=rows[turn]["task_id"], rollouts=rollouts(rows[turn], turn), result=handle.result(timeout=5)
                )
                reports.append(report)
                advance(report)
    seconds = time.monotonic() - started
    with stack.client() as client:
        sessions_left = len(client.list_sessions())
    reports.sort(key=lambda report: [row["task_id"] for row in rows].index(report.task_id))
    console.print(group_table(reports))
    console.print(totals_table(reports, seconds=seconds, sessions_left=sessions_left))
    faults = [fault for report in reports for fault in report.faults()]
    if sessions_left:
        faults.append(f"{sessions_left} sessions are left on the daemon, not 0")
    return faults


def _as_answered(handles: dict[int, BatchHandle], stack: LocalStack) -> Iterator[tuple[int, BatchHandle]]:
    """Handles in the order of their answers; watches the stack meanwhile."""
    waiting = dict(handles)
    end = time.monotonic() + RUN_LIMIT_S
    while waiting:
        answered = [(turn, handle) for turn, handle in waiting.items() if handle.done()]
        for turn, handle in answered:
            del waiting[turn]
            yield turn, handle
        stack.watch()
        if time.monotonic() > end:
            raise StackFailed(f"{len(waiting)} groups had no answer within {RUN_LIMIT_S:g} s")
        if not answered:
            time.sleep(POLL_S)
