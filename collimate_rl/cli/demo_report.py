"""What the demo shows: progress while it runs (plain lines where there is no terminal), then the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from collimate_rl.cli.candidates import Rollout
from collimate_rl.protocol import BatchResult, Verdict


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """One group's rollouts beside their verdicts."""

    task_id: str
    rollouts: tuple[Rollout, ...]
    result: BatchResult

    @property
    def seconds(self) -> float:
        """From the first claim to the answer, by the server's clock."""
        claimed = self.result.claimed_at
        return self.result.finished_at - claimed if claimed is not None else 0.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        pairs = zip(self.rollouts, self.result.results, strict=True)
        return {
            "task_id": self.task_id,
            "seconds": round(self.seconds, 3),
            "rollouts": [
                {
                    "kind": one.kind,
                    "right": one.right,
                    "reward": v.reward,
                    "outcome": v.outcome,
                    "error_code": v.error_code,
                }
                for one, v in pairs
            ],
        }

    def faults(self) -> list[str]:
        """What is not as it must be, one line each: a right candidate below 1.0, a wrong one above 0.0, no verdict."""
        lines = []
        for rollout, verdict in zip(self.rollouts, self.result.results, strict=True):
            expected = 1.0 if rollout.right else 0.0
            if verdict.reward != expected:
                got = f"{verdict.error_code} (infra)" if verdict.infra_error else f"{verdict.reward} {verdict.outcome}"
                lines.append(f"{self.task_id}, {rollout.kind}: {got}, not {expected}. {verdict.detail or ''}".rstrip())
        return lines


class Advance(Protocol):
    """Called once per finished group."""

    def __call__(self, report: GroupReport) -> None: ...


@contextmanager
def progress(console: Console, groups: int) -> Iterator[Advance]:
    """A live bar on a terminal, a line per group elsewhere."""
    seen: Counter[str] = Counter()

    def count(report: GroupReport) -> str:
        seen["groups"] += 1
        for verdict in report.result.results:
            seen["infra" if verdict.infra_error else "right" if verdict.reward == 1.0 else "zero"] += 1
        return f"{seen['right']} scored 1.0, {seen['zero']} scored 0.0, {seen['infra']} infra errors"

    if not console.is_terminal:

        def line(report: GroupReport) -> None:
            told = count(report)
            console.print(
                f"{seen['groups']}/{groups} groups graded ({report.task_id}); {told}", highlight=False, soft_wrap=True
            )

        yield line
        return
    columns = (TextColumn("grading"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("groups", total=groups, told="")
        yield lambda report: bar.update(task, advance=1, told=count(report))


def group_table(reports: Sequence[GroupReport]) -> Table:
    """A line per group: rewards in the candidates' order, outcomes counted, time."""
    table = Table(title="Groups of eight: three right wordings; wrong, crashing, endless, memory-eating, cheating")
    table.add_column("group", no_wrap=True)
    table.add_column("rewards", no_wrap=True)
    table.add_column("outcomes")
    table.add_column("time", justify="right", no_wrap=True)
    for report in reports:
        outcomes = Counter(_outcome(verdict) for verdict in report.result.results)
        told = ", ".join(f"{count} {outcome}" if count > 1 else outcome for outcome, count in outcomes.items())
        rewards = " ".join("-" if v.reward is None else f"{v.reward:g}" for v in report.result.results)
        table.add_row(report.task_id, rewards, told, f"{report.seconds:.1f} s")
    return table


def totals_table(reports: Sequence[GroupReport], *, seconds: float, sessions_left: int) -> Table:
    """Groups, candidates per second, infra errors, sessions left."""
    verdicts = [verdict for report in reports for verdict in report.result.results]
    rows = {
        "groups": str(len(reports)),
        "candidates": str(len(verdicts)),
        "candidates per second": f"{len(verdicts) / seconds:.1f} ({seconds:.1f} s)" if seconds > 0 else "-",
        "infra errors": str(sum(verdict.infra_error for verdict in verdicts)),
        "sessions left": str(sessions_left),
    }
    table = Table(title="Totals", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _outcome(verdict: Verdict) -> str:
    return f"infra:{verdict.error_code}" if verdict.infra_error else str(verdict.outcome)
